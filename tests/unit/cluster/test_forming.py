"""Generations that form, run and take workers in."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.cluster.events import ResumeRequested, SaveJob
from dtd.errors import RequestRefused
from dtd.wire import messages as m

# --- announcing ------------------------------------------------------------------------------


def test_job_is_saved_with_its_decision_before_its_generation_is_announced(driver: Any) -> None:
    driver.submit()
    driver.register("a")
    kinds: list[str] = []
    saved: list[tuple[int, bool]] = []
    handle = driver.core.handle

    def listen(event: Any, now: float) -> Any:
        effects = handle(event, now)
        for effect in effects:
            message = getattr(effect, "message", effect)
            kinds.append(type(message).__name__)
            if kinds[-1] == "SaveJob":
                saved.append((effect.job.generation, effect.job.announced))
        return effects

    driver.core.handle = listen
    driver.warmed("a")
    assert kinds.index("SaveJob") < kinds.index("Assign")
    assert saved[0] == (1, True)


def test_buckets_travel_whole_up_to_a_size_that_changes_with_a_generation_alone(
    driver: Any,
) -> None:
    driver.submit()
    for name in "abcd":
        driver.register(name, data_host=f"host of {name}")
    for name in "abcd":
        driver.warmed(name)
    number = driver.all_run(*"abcd")
    sizes = [driver.told(name, m.Assign)[-1].whole_bytes for name in "abcd"]
    assert sizes == [256 * 1024 // 3] * 4
    for hop_bytes in (1000, 4000):
        for name in "abcd":
            driver.beat(name, step=1, hop_bytes=hop_bytes)
    assert [len(driver.told(name, m.Assign)) for name in "abcd"] == [1] * 4
    driver.lost("d")
    for name in "abc":
        driver.froze(name, generation=number, step=1)
    sizes = [driver.told(name, m.Assign)[-1].whole_bytes for name in "abc"]
    assert sizes == [4000 * (4 - 1) * 3 // 2] * 3


# --- which state -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of_a", "of_b", "decided"),
    [
        # Who died may have committed it.
        pytest.param((4, 5), (4, 5), 5, id="prepared by all: committed"),
        pytest.param((5, 5), (4, 5), 5, id="committed by one: committed by the others"),
        # That one has not voted, so nobody has committed.
        pytest.param((4, 5), (4, 4), 4, id="not prepared by one: redone"),
    ],
)
def test_step_in_which_somebody_died_is_committed_by_all_or_redone_by_all(
    driver: Any, of_a: tuple[int, int], of_b: tuple[int, int], decided: int
) -> None:
    """As the survivors' (committed, prepared) say; and nobody copies anything."""
    job = driver.submit()
    number = driver.run_generation("a", "b", "c")
    driver.lost("c")
    for name, (step, prepared) in (("a", of_a), ("b", of_b)):
        driver.froze(name, generation=number, step=step, prepared=(number, prepared))
    for name in "ab":
        assign = driver.told(name, m.Assign)[-1]
        assert (assign.held_generation, assign.held_step) == (number, decided)
        assert [(one.name, one.holds) for one in assign.roster] == [("a", True), ("b", True)]
    assert (job.start_generation, job.start_step, job.step) == (number, decided, decided)
    assert job.steps_lost == 0


def test_decision_to_commit_stays_when_the_generation_comes_to_nothing(driver: Any) -> None:
    """One of its members may have got the decision and acted on it."""
    driver.submit()
    number = driver.run_generation("a", "b", "c")
    driver.lost("c")
    for name in "ab":
        driver.froze(name, generation=number, step=4, prepared=(number, 5))
    driver.lost("b")
    driver.froze("a", generation=number + 1, step=4, held_generation=number, prepared=(number, 5))
    assign = driver.told("a", m.Assign)[-1]
    assert assign.generation == number + 2
    assert (assign.held_generation, assign.held_step) == (number, 5)


def test_decision_to_redo_stays_when_the_generation_comes_to_nothing(driver: Any) -> None:
    """The generation that was to redo the step may have done so, out of our hearing."""
    driver.submit()
    number = driver.run_generation("a", "b", "c")
    driver.lost("c")
    driver.froze("a", generation=number, step=4, prepared=(number, 5))
    driver.froze("b", generation=number, step=4)
    driver.lost("b")
    driver.froze("a", generation=number + 1, step=4, held_generation=number, prepared=(number, 5))
    assign = driver.told("a", m.Assign)[-1]
    assert assign.generation == number + 2
    assert (assign.held_generation, assign.held_step) == (number, 4)


def test_steps_that_nobody_holds_any_more_are_counted(driver: Any) -> None:
    job = driver.submit()
    driver.run_generation("a")
    driver.beat("a", step=6)
    driver.register("a", incarnation=2)
    driver.warmed("a")
    assert job.steps_lost == 6
    (incident,) = driver.told_of("steps_lost")
    assert incident.details == {"steps_lost": 6}


# --- bad links -------------------------------------------------------------------------------


def break_link(driver: Any, number: int, *names: str) -> None:
    """The first two cannot reach each other; all freeze."""
    one, other, *rest = names
    driver.froze(one, generation=number, step=0, suspect=other, evidence="silent")
    driver.froze(other, generation=number, step=0, suspect=one, evidence="reset")
    for name in rest:
        driver.froze(name, generation=number, step=0, suspect=one, evidence="reset")


def test_too_few_without_the_barred_wait_for_a_working_link(driver: Any) -> None:
    driver.submit(min_workers=2)
    number = driver.run_generation("a", "b")
    break_link(driver, number, "a", "b")
    assert driver.cluster.run.roster == []
    assert driver.core.explain() == "waiting for a working link between a and b"
    driver.tick(0.25)
    for one, other in ("ab", "ba"):
        assert [probe.name for probe in driver.told(one, m.Probe)] == [other]
        driver.say(one, m.Probed(name=other, reachable=True))
    assert driver.cluster.run.roster == ["a", "b"]


# --- joining ---------------------------------------------------------------------------------


def test_joiners_that_warm_up_are_taken_in_together(driver: Any) -> None:
    driver.submit()
    driver.run_generation("a")
    driver.register("b")
    driver.register("c")
    driver.warmed("b")
    assert driver.told("a", m.Freeze) == []
    driver.warmed("c")
    assert driver.told("a", m.Freeze)[0].reason == "b, c joins"


def test_standby_waits_until_there_is_room_and_is_used_at_once(driver: Any) -> None:
    driver.submit(max_workers=2)
    number = driver.run_generation("a", "b")
    driver.warm_up("c")
    assert driver.state("c") == "ready"
    assert driver.told("a", m.Freeze) == []
    driver.lost("a")
    driver.froze("b", generation=number, step=3)
    assert driver.cluster.run.roster == ["b", "c"]


def test_leaver_hands_its_state_to_the_standby_even_beyond_max_workers(driver: Any) -> None:
    driver.submit(max_workers=1)
    number = driver.run_generation("a")
    driver.warm_up("b")
    driver.say("a", m.Leave(reason="stop"))
    driver.saved_checkpoint("a", generation=number, step=3)
    driver.froze("a", generation=number, step=3)
    assert driver.cluster.run.roster == ["a", "b"]
    number = driver.all_run("a", "b")
    for name in "ab":
        driver.froze(name, generation=number, step=4)
    assert driver.state("a") == "released"
    assert driver.cluster.run.roster == ["b"]


def test_a_worker_that_would_not_fit_in_ends_nothing(driver: Any) -> None:
    """Otherwise the generation ends over and over for one who has no working link."""
    driver.submit()
    number = driver.run_generation("a", "b", "c")
    for name, suspect in (("a", "b"), ("b", "a"), ("c", "a")):
        driver.froze(name, generation=number, step=0, suspect=suspect, evidence="silent")
    assert (driver.cluster.run.roster, driver.state("a")) == (["b", "c"], "barred")
    driver.all_run("b", "c")
    worker = driver.cluster.workers["a"]
    worker.state = worker.state.READY
    before = len(driver.told("b", m.Freeze))
    driver.tick(driver.now + 0.25)
    assert driver.state("a") == "barred"
    assert len(driver.told("b", m.Freeze)) == before


def test_member_that_fetched_the_state_holds_it_as_well(driver: Any) -> None:
    """Otherwise it counts as one who could stay out in favour of those who come."""
    driver.submit()
    number = driver.run_generation("a")
    driver.beat("a", step=1)
    driver.warm_up("c")
    driver.froze("a", generation=number, step=1)
    driver.all_run("a", "c")
    for other in "de":
        driver.register(other)
        driver.cluster.links.accuse("c", other, "silent")
    driver.cluster.links.judge({"a", "c", "d", "e"}, driver.now)
    before = len(driver.told("a", m.Freeze))
    for other in "de":
        driver.warmed(other)
    assert [driver.state(name) for name in "acde"] == ["running", "running", "barred", "barred"]
    assert len(driver.told("a", m.Freeze)) == before


# --- a generation is announced once it is written down, and not before ---------------------------


@pytest.fixture
def held(driver: Any) -> Any:
    """A driver whose store has not answered yet; the decision is in `driver.saved`."""
    driver.submit()
    driver.writes = False
    driver.warm_up("a", "b")
    return driver


def announcing(driver: Any) -> SaveJob:
    return SaveJob(job=driver.cluster.job, announces=driver.cluster.run.generation)


def test_what_cannot_be_written_is_tried_again(held: Any) -> None:
    held.written(announcing(held), failure="disk full")
    assert held.told("a", m.Assign) == []
    explained = held.core.explain()
    assert explained.startswith("generation 1 cannot be stored, and is not announced")
    assert "disk full; make room on the coordinator's disk" in explained
    tries = len(held.saved)
    held.silence(0.75, "a", "b")
    assert len(held.saved) == tries
    held.silence(1.0, "a", "b")
    assert len(held.saved) == tries + 1
    assert held.core.next_deadline(held.now) is not None
    held.written(announcing(held))
    assert held.told("b", m.Assign)


@pytest.mark.parametrize("failure", ["", "disk full"])
def test_what_does_not_stand_any_more_is_decided_again(held: Any, failure: str) -> None:
    first = announcing(held)
    held.lost("b")
    held.writes = True
    held.written(first, failure=failure)
    held.silence(2.0, "a")
    (assign,) = held.told("a", m.Assign)
    assert assign.generation == 2
    assert [member.name for member in assign.roster] == ["a"]


# --- what happens before the store has answered --------------------------------------------------


@pytest.fixture
def going_on(driver: Any) -> Any:
    """One of two that had done seven steps is left; the store has not answered yet."""
    driver.submit()
    number = driver.run_generation("a", "b")
    for name in "ab":
        driver.beat(name, step=7)
    driver.writes = False
    driver.lost("b")
    driver.froze("a", generation=number, step=7)
    assert driver.cluster.run.decision is not None
    return driver


def test_a_job_that_fails_meanwhile_does_not_train_on(going_on: Any) -> None:
    decided = announcing(going_on)
    going_on.register("c")
    for _ in range(8):
        going_on.say("a", m.Failed(job="j-1", reason="boom", traceback="t", step=7))
        going_on.say("c", m.Failed(job="j-1", reason="boom", traceback="t", step=0))
    going_on.written(decided)
    assert [one.generation for one in going_on.told("a", m.Assign)] == [1]


@pytest.fixture
def falling_back(driver: Any) -> Any:
    """Those who had done 3000 steps are gone; the fall-back to step 0 is being written down."""
    driver.submit()
    number = driver.run_generation("a", "b")
    for name in "ab":
        driver.beat(name, step=3000)
    driver.saved_checkpoint("a", generation=number, step=2000)
    driver.lost("b")
    driver.lost("a", farewell=False)
    driver.register("c")
    driver.warmed("c")
    driver.writes = False
    driver.silence(driver.now + 3.0, "c")
    driver.handle(ResumeRequested(job="j-1"))
    assert (driver.cluster.run.decision is not None, number) == (True, 1)
    return driver


@pytest.mark.parametrize("failure", ["", "disk full"])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_holder_of_newer_state_that_returns_meanwhile_is_waited_for(
    falling_back: Any, frozen: bool, failure: str
) -> None:
    driver = falling_back
    decided = announcing(driver)
    driver.register("a", job="j-1", phase="running", generation=1)
    if frozen:
        driver.froze("a", generation=1, step=3000, held_generation=1)
    driver.written(decided, failure=failure)
    driver.silence(driver.now + 1.25, "a", "c")
    assert driver.told("c", m.Assign) == []
    driver.writes = True
    if not frozen:
        driver.froze("a", generation=1, step=3000, held_generation=1)
    elif driver.cluster.run.decision is not None:
        driver.written(announcing(driver))
    (assign,) = driver.told("c", m.Assign)
    assert (assign.generation, assign.held_step) == (3, 3000)
    assert driver.cluster.job.steps_lost == 0
    assert driver.told_of("steps_lost") == driver.told_of("branch_left") == []


def test_what_is_being_written_down_cannot_be_resumed(going_on: Any) -> None:
    """Else it would be taken for stopped before it has begun, and run beside the next one."""
    with pytest.raises(RequestRefused, match="does not wait for any worker"):
        going_on.handle(ResumeRequested(job="j-1"))
    going_on.written(announcing(going_on))
    assert not going_on.cluster.job.fenced
    going_on.all_run("a")
    going_on.beat("a", step=20)
    going_on.lost("a", farewell=False)
    going_on.register("z")
    going_on.warmed("z")
    going_on.silence(going_on.now + 100.0, "z")
    assert going_on.told("z", m.Assign) == []
    assert "generation 2 may still run there" in going_on.core.explain()
