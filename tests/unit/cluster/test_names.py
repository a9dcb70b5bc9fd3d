"""A name belongs to one living worker; its successor in the same state directory takes it."""

from __future__ import annotations

from typing import Any

from dtd.cluster import registration
from dtd.cluster.events import Submitted
from dtd.wire import messages as m


def coming(incarnation: int, instance: str) -> m.Register:
    return m.Register(
        name="a",
        incarnation=incarnation,
        pid=1,
        host="h",
        device="cpu",
        data_host="h",
        data_port=1,
        version="0",
        instance=instance,
    )


def taken(desk: Any, incarnation: int = 2, instance: str = "elsewhere") -> bool:
    return (
        registration.name_holder(desk.cluster, coming(incarnation, instance), desk.now) is not None
    )


def test_the_later_of_two_is_not_let_in(desk: Any) -> None:
    assert not taken(desk)
    desk.submit()
    desk.register("a", instance="here")
    desk.warmed("a")
    desk.all_run("a")
    assert taken(desk)
    assert not taken(desk, incarnation=1)  # the same process calls again


def test_the_successor_in_the_same_directory_replaces_its_dead_self_at_once(desk: Any) -> None:
    desk.register("a", instance="here")
    assert not taken(desk, instance="here")


def test_a_member_whose_connection_is_lost_keeps_its_name_while_it_is_expected(desk: Any) -> None:
    desk.submit()
    desk.register("a", instance="here")
    desk.warmed("a")
    desk.all_run("a")
    desk.lost("a", farewell=False)
    assert desk.state("a") == "away"
    assert taken(desk)
    desk.silence(3.0)
    assert desk.state("a") == "lost"
    assert not taken(desk)


def test_one_that_does_not_answer_while_it_may_be_silent_loses_its_name(desk: Any) -> None:
    desk.submit()
    desk.register("a", instance="here")
    assert desk.state("a") == "warming"
    assert taken(desk)
    desk.silence(2.0)
    assert desk.state("a") == "warming"
    assert not taken(desk)


def test_a_coordinator_that_starts_knows_whose_names_are_taken(desk: Any, make_desk: Any) -> None:
    job = desk.submit()
    desk.register("a", instance="here")
    desk.warmed("a")
    desk.all_run("a")
    assert job.instances == ("here",)
    later = make_desk(last_generation=1)
    later.handle(Submitted(job=job))
    assert later.state("a") == "away"
    assert taken(later)
    assert not taken(later, instance="here")
    job.instances = ()  # as an older store has it
    older = make_desk(last_generation=1)
    older.handle(Submitted(job=job))
    assert not taken(older)
