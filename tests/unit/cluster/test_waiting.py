from typing import Any

import pytest

from dtd.cluster import waiting
from dtd.cluster.events import ResumeRequested, Ticked
from dtd.cluster.state import FRUITFUL_STEPS
from dtd.cluster.transitions import JobState
from dtd.cluster.waiting import MOST_RESUME_WAIT_S, RESUME_WAIT_S
from dtd.errors import RequestRefused
from dtd.wire import messages as m


def test_job_waits_for_enough_workers(desk: Any) -> None:
    job = desk.submit(min_workers=2)
    desk.warm_up("a")
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
    assert desk.cluster.run.roster == ["a", "b"]


def test_first_generation_gives_late_workers_a_moment(desk: Any) -> None:
    desk.submit(settle_s=2.0)
    desk.warm_up("a")
    assert desk.core.explain() == "settling: giving late workers a moment to join"
    desk.tick(1.5)
    assert desk.cluster.run.roster == []
    desk.tick(2.0)
    assert desk.cluster.run.roster == ["a"]


def test_the_moment_begins_anew_when_somebody_comes(desk: Any) -> None:
    desk.submit(settle_s=2.0)
    desk.warm_up("a")
    desk.tick(1.5)
    desk.warm_up("b")
    desk.tick(3.0)
    assert desk.cluster.run.roster == []
    desk.tick(3.5)
    assert desk.cluster.run.roster == ["a", "b"]


def test_survivors_do_not_wait_for_those_who_warm_up(desk: Any) -> None:
    """A killed worker is back in a moment, and its warm-up takes many seconds."""
    desk.submit(settle_s=0.0)
    number = desk.run_generation("a", "b")
    desk.register("b", incarnation=2)
    desk.froze("a", generation=number, step=5)
    assert desk.state("b") == "warming"
    assert desk.cluster.run.roster == ["a"]


def test_survivors_wait_for_those_who_come_back_with_a_state(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.register("b", job="j-1", generation=number)
    desk.froze("a", generation=number, step=5, prepared=(number, 6))
    assert desk.cluster.run.roster == []
    desk.froze("b", generation=number, step=6)
    assert desk.told("a", m.Assign)[-1].held_step == 6


def test_after_a_total_loss_it_goes_on_once_all_are_back(desk: Any) -> None:
    job = desk.submit()
    desk.run_generation("a", "b")
    desk.commit(9)
    desk.lost("a")
    desk.lost("b")
    desk.register("a", incarnation=2)
    desk.warmed("a")
    assert job.state is JobState.WAITING
    assert desk.core.explain() == (
        "waiting for b: no present worker holds the state of step 9; `dtdctl resume j-1` goes"
        " on without it, as the job does in 60 s"
    )
    desk.register("b", incarnation=2)
    desk.warmed("b")
    assert desk.cluster.run.roster == ["a", "b"]
    assert job.steps_lost == 9


def test_after_a_total_loss_nobody_is_waited_for_forever(desk: Any) -> None:
    desk.submit()
    desk.run_generation("a", "b")
    desk.lost("a")
    desk.lost("b")
    desk.register("a", incarnation=2)
    desk.warmed("a")
    desk.tick(RESUME_WAIT_S - 1)
    assert desk.cluster.run.roster == []
    desk.tick(RESUME_WAIT_S)
    assert desk.cluster.run.roster == ["a"]


def test_time_in_which_the_coordinator_slept_does_not_count_as_waiting(desk: Any) -> None:
    """Who holds the newer state may have called all the while."""
    desk.submit()
    desk.run_generation("a", "b")
    desk.commit(9)
    desk.lost("a")
    desk.lost("b")
    desk.register("a", incarnation=2)
    desk.warmed("a")
    desk.now += 2 * RESUME_WAIT_S
    desk.handle(Ticked())
    assert desk.cluster.run.roster == []
    desk.tick(desk.now + RESUME_WAIT_S)
    assert desk.cluster.run.roster == ["a"]


def test_workers_have_time_to_settle_after_the_coordinator_slept(desk: Any) -> None:
    desk.submit(settle_s=5.0)
    desk.warm_up("a")
    desk.now += 60.0
    desk.handle(Ticked())
    assert desk.cluster.run.roster == []
    desk.warm_up("b")
    desk.tick(desk.now + 5.0)
    assert desk.cluster.run.roster == ["a", "b"]


def test_standby_does_not_begin_again_while_a_member_may_come_back(desk: Any) -> None:
    desk.submit(max_workers=1)
    number = desk.run_generation("a")
    desk.warm_up("b")
    desk.say("a", m.Heartbeat(state="running", job="j-1", generation=number, step=9))
    desk.lost("a")
    assert desk.cluster.run.roster == []
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
    assert desk.cluster.run.roster == ["b"]
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


def test_joiner_that_never_got_the_state_is_no_survivor(desk: Any) -> None:
    """What it remembers is one step old, and those who have the newest may come back with it."""
    desk.submit()
    number = desk.run_generation("a", "c")
    desk.beat("a", step=4)
    desk.lost("c")
    desk.froze("a", generation=number, step=4, prepared=(number, 5))
    second = desk.all_run("a")
    desk.register("c", job="j-1", generation=number)
    desk.froze("c", generation=number, step=4, held_generation=number)
    desk.froze("a", generation=second, step=5, held_generation=number)
    assert desk.cluster.run.roster == ["a", "c"]
    desk.lost("a")
    desk.froze("c", generation=second + 1, step=4, held_generation=number)
    assert desk.cluster.run.roster == []
    assert "waiting for a" in desk.core.explain()
    desk.register("a", job="j-1", generation=second + 1)
    desk.froze("a", generation=second + 1, step=5, held_generation=number)
    assert desk.told("c", m.Assign)[-1].held_step == 5


def test_who_is_more_than_one_step_behind_is_no_survivor(desk: Any) -> None:
    """Members of one ring are never two steps apart: it must have been elsewhere."""
    job = desk.submit()
    number = desk.run_generation("a", "b")
    desk.commit(4)
    desk.lost("b")
    desk.froze("a", generation=number, step=2)
    assert desk.cluster.survivors(job) == []
    assert "waiting for b: no present worker holds the state of step 4" in desk.core.explain()


def test_member_that_has_the_newest_checkpoint_is_waited_for(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.saved_checkpoint("a", generation=number, step=5)
    desk.beat("a", step=5)
    desk.lost("a")
    desk.lost("b")
    desk.register("b", incarnation=2)
    desk.warmed("b")
    assert desk.cluster.run.roster == []
    assert "waiting for a" in desk.core.explain()


def test_same_process_that_comes_back_has_stopped_only_when_it_says_so(desk: Any) -> None:
    job = desk.submit(min_workers=2)
    number = desk.run_generation("a", "b")
    desk.silence(2.0)
    desk.register("a", job="j-1", generation=number)
    assert not job.fenced
    desk.froze("a", generation=number, step=0)
    assert job.fenced


def test_operator_may_say_that_nobody_comes_back(desk: Any) -> None:
    job = desk.submit()
    desk.run_generation("a", "b")
    desk.commit(9)
    desk.lost("a")
    desk.lost("b")
    desk.register("a", incarnation=2)
    desk.warmed("a")
    assert desk.cluster.run.roster == []
    desk.handle(ResumeRequested(job="j-1"))
    assert desk.cluster.run.roster == ["a"]
    assert job.steps_lost == 9
    assert "job_resumed" in desk.kinds()


def test_operator_who_is_in_a_hurry_is_not_told_to_wait_for_nobody(desk: Any) -> None:
    desk.submit(settle_s=2.0)
    desk.warm_up("a")
    desk.handle(ResumeRequested(job="j-1"))
    assert desk.core.explain() == "settling: giving late workers a moment to join"


def a_child(desk: Any, **terms: Any) -> Any:
    job = desk.submit(**terms)
    job.from_job, job.from_newest = "j-0", 31
    desk.cluster.run.highest = 4
    return job


def origin(*, step: int = 31) -> tuple[m.Held, ...]:
    return (m.Held(job="j-0", generation=4, step=step, digest="", where="checkpoint"),)


def test_a_job_waits_for_the_checkpoint_from_which_it_is_to_start(desk: Any) -> None:
    a_child(desk, settle_s=0.0)
    desk.warm_up("a", "b")
    desk.tick(desk.now + MOST_RESUME_WAIT_S + 1.0)
    assert desk.cluster.run.roster == []
    assert desk.core.explain() == (
        "waiting for workers that have the checkpoint of step 31 of j-0, from which the job is to"
        " start: those present have none, or not all parts of it (`dtdctl checkpoints j-0` names"
        " the holders); `dtdctl resume j-1` begins at step 0 without it"
    )
    desk.register("c")
    desk.warmed("c", held=origin())
    assert desk.cluster.run.roster == ["a", "b", "c"]
    assert desk.cluster.run.start_step == 31


@pytest.mark.parametrize("step", [0, 31])
def test_a_job_whose_origin_is_there_begins_at_once(desk: Any, step: int) -> None:
    """Weights alone are taken over as a state of step 0."""
    job = a_child(desk, settle_s=0.0)
    desk.register("a")
    desk.warmed("a", held=origin(step=step))
    assert desk.cluster.run.roster == ["a"]
    assert (job.start_generation, job.start_step) == (4, step)


def test_the_operator_may_have_it_begin_without_its_origin_for_good(desk: Any) -> None:
    a_child(desk, settle_s=0.0)
    desk.warm_up("a", "b")
    desk.handle(ResumeRequested(job="j-1"))
    assert desk.cluster.run.roster == ["a", "b"]
    desk.froze("a", generation=desk.cluster.run.generation, step=0)
    desk.lost("b")
    assert desk.cluster.run.roster == ["a"]


def test_a_job_does_not_fall_back_to_step_0_when_its_origin_is_gone(desk: Any) -> None:
    """Its only holders are lost before it has a checkpoint of its own."""
    a_child(desk, settle_s=0.0)
    desk.register("a")
    desk.warmed("a", held=origin())
    desk.all_run("a")
    desk.lost("a")
    desk.register("a", incarnation=2)
    desk.warmed("a")
    desk.tick(desk.now + MOST_RESUME_WAIT_S + 1.0)
    assert desk.cluster.run.roster == []
    assert desk.core.explain().startswith("waiting for workers that have the checkpoint of step 31")
    desk.handle(ResumeRequested(job="j-1"))
    assert desk.cluster.run.roster == ["a"]


@pytest.mark.parametrize(("job", "why"), [("k-1", "not the active one"), ("j-1", "does not wait")])
def test_nothing_to_resume(desk: Any, job: str, why: str) -> None:
    desk.submit()
    desk.run_generation("a")
    with pytest.raises(RequestRefused, match=why):
        desk.handle(ResumeRequested(job=job))


def test_nobody_begins_while_the_last_generation_may_run_out_of_our_hearing(desk: Any) -> None:
    """Both members were evicted for their silence, and neither is known to have stopped."""
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.register("c")
    desk.silence(2.0)
    desk.silence(90.0, "c")
    desk.warmed("c")
    assert desk.cluster.run.roster == []
    assert f"generation {number} may still run there" in desk.core.explain()
    desk.register("b", incarnation=2)
    assert desk.core.explain() == "warming up: b"
    desk.warmed("b")
    assert "waiting for a" in desk.core.explain()
    desk.register("a", incarnation=2)
    desk.warmed("a")
    assert desk.cluster.run.roster == ["a", "b", "c"]


def test_generations_that_come_to_nothing_follow_each_other_ever_more_slowly(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a")
    pauses_s = []
    for _ in range(12):
        before = desk.now
        desk.froze("a", generation=number, step=0)
        if desk.cluster.run.roster == []:
            assert desk.core.explain().startswith("pausing after")
            assert desk.core.next_deadline(desk.now) is not None
        while desk.cluster.run.roster == []:
            desk.tick(desk.now + 0.25)
        pauses_s.append(desk.now - before)
        number = desk.all_run("a")
    assert pauses_s == [0.0, 0.0, 0.0, 0.25, 0.5, 1.0, 1.75, 3.25, 6.5, 6.5, 6.5, 6.5]
    desk.beat("a", step=waiting.QUICK_GENERATIONS)
    desk.froze("a", generation=number, step=waiting.QUICK_GENERATIONS)
    assert desk.cluster.run.roster == ["a"]


def test_a_step_in_each_generation_is_no_progress(desk: Any) -> None:
    """A ring that breaks after its first step, again and again, is not formed at once each time."""
    desk.submit()
    number = desk.run_generation("a")
    pauses_s = []
    for step in range(1, 9):
        before = desk.now
        desk.beat("a", step=step)
        desk.froze("a", generation=number, step=step)
        if desk.cluster.run.roster == []:
            assert desk.core.explain() == (
                f"pausing after {step} generations that broke after hardly a step"
            )
        while desk.cluster.run.roster == []:
            desk.tick(desk.now + 0.25)
        pauses_s.append(desk.now - before)
        number = desk.all_run("a")
    assert pauses_s == [0.0, 0.0, 0.0, 0.25, 0.5, 1.0, 1.75, 3.25]
    assert desk.cluster.setbacks.no_progress_generations == 1
    desk.froze("a", generation=number, step=8 + FRUITFUL_STEPS)
    assert desk.cluster.run.roster == ["a"]


def test_members_that_come_and_go_at_step_boundaries_cost_no_pause(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a")
    for step in range(1, 9):
        other = f"b-{step}"
        desk.warm_up(other)
        desk.froze("a", generation=number, step=step)
        assert desk.cluster.run.roster == ["a", other]
        number = desk.all_run("a", other)
        desk.say(other, m.Leave(reason="bye"))
        for name in ("a", other):
            desk.froze(name, generation=number, step=step)
        assert desk.cluster.run.roster == ["a"]
        number = desk.all_run("a")
    assert desk.cluster.setbacks.brief_generations == 0


def test_pause_begins_anew_when_something_else_was_waited_for(desk: Any) -> None:
    desk.submit(min_workers=2)
    number = desk.run_generation("a", "b")
    for _ in range(waiting.QUICK_GENERATIONS):
        for name in "ab":
            desk.froze(name, generation=number, step=0)
        number = desk.all_run("a", "b")
    for name in "ab":
        desk.froze(name, generation=number, step=0)
    assert desk.cluster.waiting.form_at is not None
    desk.lost("b")
    assert desk.cluster.waiting.form_at is None
    assert desk.core.explain() == "1 of at least 2 workers are ready"
