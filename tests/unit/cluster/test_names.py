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


def taken(driver: Any, incarnation: int = 2, instance: str = "elsewhere") -> bool:
    return (
        registration.name_holder(driver.cluster, coming(incarnation, instance), driver.now)
        is not None
    )


def test_the_later_of_two_is_not_let_in(driver: Any) -> None:
    assert not taken(driver)
    driver.submit()
    driver.register("a", instance="here")
    driver.warmed("a")
    driver.all_run("a")
    assert taken(driver)
    assert not taken(driver, incarnation=1)  # the same process calls again


def test_the_successor_in_the_same_directory_replaces_its_dead_self_at_once(driver: Any) -> None:
    driver.register("a", instance="here")
    assert not taken(driver, instance="here")


def test_a_member_whose_connection_is_lost_keeps_its_name_while_it_is_expected(driver: Any) -> None:
    driver.submit()
    driver.register("a", instance="here")
    driver.warmed("a")
    driver.all_run("a")
    driver.lost("a", farewell=False)
    assert driver.state("a") == "away"
    assert taken(driver)
    driver.silence(3.0)
    assert driver.state("a") == "lost"
    assert not taken(driver)


def test_one_that_does_not_answer_while_it_may_be_silent_loses_its_name(driver: Any) -> None:
    driver.submit()
    driver.register("a", instance="here")
    assert driver.state("a") == "warming"
    assert taken(driver)
    driver.silence(2.0)
    assert driver.state("a") == "warming"
    assert not taken(driver)


def test_a_coordinator_that_starts_knows_whose_names_are_taken(driver: Any, make_desk: Any) -> None:
    job = driver.submit()
    driver.register("a", instance="here")
    driver.warmed("a")
    driver.all_run("a")
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
