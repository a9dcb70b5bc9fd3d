from typing import Any

import pytest

from dtd.cluster.events import CancelRequested, DrainRequested
from dtd.cluster.transitions import JobState
from dtd.wire import messages as m

# --- announcing ------------------------------------------------------------------------------


def test_generation_is_announced_to_all_members_alike(driver: Any) -> None:
    job = driver.submit()
    driver.warm_up("w-10", "w-2")
    (first,), (second,) = driver.told("w-2", m.Assign), driver.told("w-10", m.Assign)
    assert [one.name for one in first.roster] == ["w-2", "w-10"]
    assert (first.rank, second.rank) == (0, 1)
    assert (first.generation, first.roster_id) == (second.generation, second.roster_id)
    assert (first.held_generation, first.held_step) == (0, 0)
    assert [one.holds for one in first.roster] == [True, False]
    assert (job.state, job.generation, job.world_size) == (JobState.FORMING, 1, 2)
    assert (job.roster, job.roster_id) == (("w-2", "w-10"), first.roster_id)
    assert (job.announced, job.fenced) == (True, False)
    assert driver.core.explain() == "forming generation 1: waiting for w-2, w-10"


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


def test_numbers_exceed_all_that_were_ever_given(make_desk: Any) -> None:
    driver = make_desk(last_generation=7)
    driver.submit()
    driver.register("a")
    held = m.Held(job="j-1", generation=7, step=5, digest="", where="checkpoint")
    driver.warmed("a", held=(held,))
    assert driver.cluster.run.generation == 8


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


def test_a_worker_that_lacks_the_state_gets_it_from_all_who_hold_it(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("a", "b")
    driver.warm_up("c")
    for name in "ab":
        driver.froze(name, generation=number, step=3)
    assign = driver.told("c", m.Assign)[-1]
    assert [(one.name, one.holds) for one in assign.roster] == [
        ("a", True),
        ("b", True),
        ("c", False),
    ]
    assert "state of step 3 from a, b" in driver.told_of("generation_forming")[-1].message


def test_steps_that_nobody_holds_any_more_are_counted(driver: Any) -> None:
    job = driver.submit()
    driver.run_generation("a")
    driver.beat("a", step=6)
    driver.register("a", incarnation=2)
    driver.warmed("a")
    assert job.steps_lost == 6
    (incident,) = driver.told_of("steps_lost")
    assert incident.details == {"steps_lost": 6}


def test_steps_are_lost_once_though_members_still_speak_of_them(driver: Any) -> None:
    """Until it has taken over the older state, a member of the next generation has the newer."""
    job = driver.submit()
    number = driver.run_generation("a", "b")
    driver.commit(6)
    for name in "ab":
        driver.froze(name, generation=number, step=0, held_generation=0)
    assert (job.generation, job.step, job.steps_lost) == (number + 1, 0, 6)
    driver.commit(6)
    assert job.step == 0
    for name in "ab":
        driver.froze(name, generation=number + 1, step=0, held_generation=0)
    assert (job.generation, job.steps_lost) == (number + 2, 6)


# --- bad links -------------------------------------------------------------------------------


def break_link(driver: Any, number: int, *names: str) -> None:
    """The first two cannot reach each other; all freeze."""
    one, other, *rest = names
    driver.froze(one, generation=number, step=0, suspect=other, evidence="silent")
    driver.froze(other, generation=number, step=0, suspect=one, evidence="reset")
    for name in rest:
        driver.froze(name, generation=number, step=0, suspect=one, evidence="reset")


def test_ring_is_ordered_round_a_bad_link(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation(*"abcd")
    break_link(driver, number, *"abcd")
    assert driver.cluster.run.roster == ["a", "c", "b", "d"]
    assert driver.cluster.links.bad == {("a", "b")}
    (incident,) = driver.told_of("link_bad")
    assert "a and b live and cannot reach each other (silent)" in incident.message


def test_a_worker_that_has_no_place_in_the_ring_stays_out_until_its_link_works(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation(*"abc")
    break_link(driver, number, *"bac")
    assert driver.cluster.run.roster == ["a", "c"]
    assert driver.state("b") == "barred"
    assert driver.cluster.workers["b"].reason == "no working link to a; probed every 2 s"
    assert [one.worker for one in driver.told_of("worker_barred")] == ["b"]
    number = driver.all_run("a", "c")
    for name in "ac":
        driver.froze(name, generation=number, step=1)
    assert driver.cluster.run.roster == ["a", "c"]
    assert len(driver.told_of("worker_barred")) == 1


def probed(driver: Any, by: str, other: str, *, reachable: bool) -> None:
    driver.say(by, m.Probed(name=other, reachable=reachable))


def test_only_holder_of_the_state_stays_whatever_it_says(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("a")
    driver.commit(1)
    driver.warm_up("b")
    driver.froze("a", generation=number, step=1)
    driver.froze(
        "a", generation=number + 1, step=1, held_generation=1, suspect="b", evidence="silent"
    )
    driver.froze("b", generation=number + 1, step=0, held=())
    assert driver.cluster.run.roster == ["a"]
    assert driver.state("b") == "barred"


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


def test_a_worker_that_starts_afresh_meanwhile_is_not_to_blame(driver: Any) -> None:
    """It was unreachable because it had died."""
    driver.submit()
    number = driver.run_generation("a", "b")
    driver.register("b", incarnation=2)
    driver.froze("a", generation=number, step=0, suspect="b", evidence="unreachable")
    assert driver.cluster.links.bad == frozenset()


# --- until it runs ---------------------------------------------------------------------------


def test_generation_runs_when_all_members_do(driver: Any) -> None:
    job = driver.submit()
    driver.warm_up("a", "b")
    running = m.Running(job="j-1", generation=1, step=0)
    driver.say("a", running)
    driver.say("a", running)
    assert job.state is JobState.FORMING
    driver.say("b", m.Running(job="j-1", generation=9, step=0))
    assert job.state is JobState.FORMING
    driver.saved.clear()
    driver.say("b", running)
    assert job.state is JobState.RUNNING
    assert driver.saved == [job]
    assert driver.core.explain() == ""


def test_member_that_runs_when_the_generation_ends_already_does_not_revive_it(driver: Any) -> None:
    driver.submit()
    driver.warm_up("a", "b", "c")
    driver.lost("a")
    driver.all_run("b", "c")
    assert driver.core.explain() == "ending generation 1: waiting for b, c"


def test_cancel_while_forming_stops_after_the_first_step(driver: Any) -> None:
    job = driver.submit()
    driver.warm_up("a")
    driver.handle(CancelRequested(job="j-1"))
    assert driver.told("a", m.Freeze) == []
    driver.all_run("a")
    assert [one.stop for one in driver.told("a", m.Freeze)] == [True]
    assert job.state is JobState.STOPPING


def test_drain_while_forming_lets_go_after_the_first_step(driver: Any) -> None:
    driver.submit()
    driver.warm_up("a", "b")
    driver.handle(DrainRequested(name="a"))
    assert driver.told("a", m.Freeze) == []
    driver.all_run("a", "b")
    assert [(one.at_boundary, one.leave) for one in driver.told("a", m.Freeze)] == [(True, True)]
    assert [(one.at_boundary, one.leave) for one in driver.told("b", m.Freeze)] == [(True, False)]
