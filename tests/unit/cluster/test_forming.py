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


# --- joining ---------------------------------------------------------------------------------


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
