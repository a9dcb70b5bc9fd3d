from typing import Any

from dtd.core.membership_events import Job, JobState, Submitted
from dtd.core.waiting import RESUME_WAIT_S
from dtd.wire import messages as m


def test_job_waits_for_enough_workers(desk: Any) -> None:
    job = desk.submit(min_workers=2)
    desk.register("a")
    desk.warmed("a")
    assert job.state is JobState.WAITING
    assert desk.core.explain() == "1 of at least 2 workers are ready"


def test_first_generation_waits_for_all_who_warm_up(desk: Any) -> None:
    job = desk.submit()
    for name in ("a", "b"):
        desk.register(name)
    desk.warmed("a")
    assert job.state is JobState.WARMING
    assert desk.core.explain() == "warming up: b"
    desk.warmed("b")
    assert desk.books.roster == ["a", "b"]


def test_first_generation_gives_late_workers_a_moment(desk: Any) -> None:
    desk.submit(settle_s=2.0)
    desk.register("a")
    desk.warmed("a")
    assert desk.core.explain() == "settling: giving late workers a moment to join"
    desk.tick(1.5)
    assert desk.books.roster == []
    desk.tick(2.0)
    assert desk.books.roster == ["a"]


def test_the_moment_begins_anew_when_somebody_comes(desk: Any) -> None:
    desk.submit(settle_s=2.0)
    desk.register("a")
    desk.warmed("a")
    desk.tick(1.5)
    desk.register("b")
    desk.warmed("b")
    desk.tick(3.0)
    assert desk.books.roster == []
    desk.tick(3.5)
    assert desk.books.roster == ["a", "b"]


def test_survivors_do_not_wait_for_those_who_warm_up(desk: Any) -> None:
    """A killed worker is back in a moment, and its warm-up takes many seconds."""
    desk.submit(settle_s=0.0)
    number = desk.run_generation("a", "b")
    desk.register("b", incarnation=2)
    desk.froze("a", generation=number, step=5)
    assert desk.state("b") == "warming"
    assert desk.books.roster == ["a"]


def test_survivors_wait_for_those_who_come_back_with_a_state(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.register("b", job="j-1", generation=number)
    desk.froze("a", generation=number, step=5)
    assert desk.books.roster == []
    desk.froze("b", generation=number, step=6)
    assert desk.told("a", m.Assign)[-1].held_step == 6


def test_after_a_total_loss_it_goes_on_once_all_are_back(desk: Any) -> None:
    job = desk.submit()
    number = desk.run_generation("a", "b")
    desk.say("a", m.Heartbeat(state="running", job="j-1", generation=number, step=9))
    desk.lost("a")
    desk.lost("b")
    desk.register("a", incarnation=2)
    desk.warmed("a")
    assert job.state is JobState.WAITING
    assert desk.core.explain() == "waiting for b: nobody here holds the state of step 9"
    desk.register("b", incarnation=2)
    desk.warmed("b")
    assert desk.books.roster == ["a", "b"]
    assert job.steps_lost == 9


def test_after_a_total_loss_nobody_is_waited_for_forever(desk: Any) -> None:
    desk.submit()
    desk.run_generation("a", "b")
    desk.lost("a")
    desk.lost("b")
    desk.register("a", incarnation=2)
    desk.warmed("a")
    desk.tick(RESUME_WAIT_S - 1)
    assert desk.books.roster == []
    desk.tick(RESUME_WAIT_S)
    assert desk.books.roster == ["a"]


def test_standby_does_not_begin_again_while_a_member_may_come_back(desk: Any) -> None:
    desk.submit(max_workers=1)
    number = desk.run_generation("a")
    desk.register("b")
    desk.warmed("b")
    desk.say("a", m.Heartbeat(state="running", job="j-1", generation=number, step=9))
    desk.lost("a")
    assert desk.books.roster == []
    desk.register("a", job="j-1", generation=number)
    desk.froze("a", generation=number, step=20)
    assert desk.told("a", m.Assign)[-1].held_step == 20


def test_holder_of_the_newest_checkpoint_is_waited_for(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.saved_checkpoint("a", generation=number, step=5)
    desk.say("a", m.Leave(reason="stop"))
    for name in "ab":
        desk.froze(name, generation=number, step=5)
    assert desk.books.roster == ["b"]
    desk.register("b", incarnation=2)
    desk.warmed("b")
    assert "waiting for a" in desk.core.explain()
    desk.register("a", incarnation=2)
    held = m.Held(job="j-1", generation=number, step=5, digest="", where="checkpoint")
    desk.warmed("a", held=(held,))
    assert desk.told("b", m.Assign)[-1].held_step == 5


def test_survivors_one_step_behind_a_checkpoint_do_not_wait_for_it(desk: Any) -> None:
    """Redoing one step is sooner done than waiting for a disk that died with its worker."""
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.saved_checkpoint("a", generation=number, step=6)
    desk.lost("a")
    desk.froze("b", generation=number, step=5)
    assert desk.told("b", m.Assign)[-1].held_step == 5


def restored(**elastic: Any) -> Job:
    """A job as a restarted coordinator reads it back."""
    table = {"min_workers": 1, "max_workers": 2, "settle_s": 5.0, "warmup_timeout_s": 60.0}
    spec = {"job": {"name": "j"}, "elastic": {**table, **elastic}}
    return Job(id="j-1", spec=spec, state=JobState.RUNNING, generation=3, roster=("a", "b"))


def test_restarted_coordinator_goes_on_once_all_members_are_back(make_desk: Any) -> None:
    desk = make_desk(last_generation=3)
    desk.handle(Submitted(job=restored()))
    for name in "ab":
        desk.register(name, job="j-1", generation=3)
    desk.froze("a", generation=3, step=5)
    desk.froze("b", generation=3, step=5)
    assert desk.books.generation == 4
    assert desk.books.roster == ["a", "b"]


def test_restarted_coordinator_does_not_begin_again_with_a_stranger(make_desk: Any) -> None:
    desk = make_desk(last_generation=3)
    desk.handle(Submitted(job=restored()))
    desk.register("c")
    desk.warmed("c")
    desk.tick(30.0)
    assert desk.books.roster == []
    assert "waiting for a, b" in desk.core.explain()
    desk.register("a", job="j-1", generation=3)
    desk.froze("a", generation=3, step=700)
    desk.tick(36.0)
    assert desk.books.roster == ["a", "c"]
