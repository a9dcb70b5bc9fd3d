from typing import Any

import pytest

from dtd.cluster.events import CancelRequested, DrainRequested
from dtd.cluster.transitions import JobState
from dtd.wire import messages as m

# --- announcing ------------------------------------------------------------------------------


def test_generation_is_announced_to_all_members_alike(desk: Any) -> None:
    job = desk.submit()
    desk.warm_up("w-10", "w-2")
    (first,), (second,) = desk.told("w-2", m.Assign), desk.told("w-10", m.Assign)
    assert [one.name for one in first.roster] == ["w-2", "w-10"]
    assert (first.rank, second.rank) == (0, 1)
    assert (first.generation, first.roster_id) == (second.generation, second.roster_id)
    assert (first.held_generation, first.held_step) == (0, 0)
    assert [one.holds for one in first.roster] == [True, False]
    assert (job.state, job.generation, job.world_size) == (JobState.FORMING, 1, 2)
    assert (job.roster, job.roster_id) == (("w-2", "w-10"), first.roster_id)
    assert (job.announced, job.fenced) == (True, False)
    assert desk.core.explain() == "forming generation 1: waiting for w-2, w-10"


def test_job_is_saved_with_its_decision_before_its_generation_is_announced(desk: Any) -> None:
    desk.submit()
    desk.register("a")
    kinds: list[str] = []
    saved: list[tuple[int, bool]] = []
    handle = desk.core.handle

    def listen(event: Any, now: float) -> Any:
        effects = handle(event, now)
        for effect in effects:
            message = getattr(effect, "message", effect)
            kinds.append(type(message).__name__)
            if kinds[-1] == "SaveJob":
                saved.append((effect.job.generation, effect.job.announced))
        return effects

    desk.core.handle = listen
    desk.warmed("a")
    assert kinds.index("SaveJob") < kinds.index("Assign")
    assert saved[0] == (1, True)


def test_numbers_exceed_all_that_were_ever_given(make_desk: Any) -> None:
    desk = make_desk(last_generation=7)
    desk.submit()
    desk.register("a")
    held = m.Held(job="j-1", generation=7, step=5, digest="", where="checkpoint")
    desk.warmed("a", held=(held,))
    assert desk.cluster.run.generation == 8


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
    desk: Any, of_a: tuple[int, int], of_b: tuple[int, int], decided: int
) -> None:
    """As the survivors' (committed, prepared) say; and nobody copies anything."""
    job = desk.submit()
    number = desk.run_generation("a", "b", "c")
    desk.lost("c")
    for name, (step, prepared) in (("a", of_a), ("b", of_b)):
        desk.froze(name, generation=number, step=step, prepared=(number, prepared))
    for name in "ab":
        assign = desk.told(name, m.Assign)[-1]
        assert (assign.held_generation, assign.held_step) == (number, decided)
        assert [(one.name, one.holds) for one in assign.roster] == [("a", True), ("b", True)]
    assert (job.start_generation, job.start_step, job.step) == (number, decided, decided)
    assert job.steps_lost == 0


def test_decision_to_commit_stays_when_the_generation_comes_to_nothing(desk: Any) -> None:
    """One of its members may have got the decision and acted on it."""
    desk.submit()
    number = desk.run_generation("a", "b", "c")
    desk.lost("c")
    for name in "ab":
        desk.froze(name, generation=number, step=4, prepared=(number, 5))
    desk.lost("b")
    desk.froze("a", generation=number + 1, step=4, held_generation=number, prepared=(number, 5))
    assign = desk.told("a", m.Assign)[-1]
    assert assign.generation == number + 2
    assert (assign.held_generation, assign.held_step) == (number, 5)


def test_decision_to_redo_stays_when_the_generation_comes_to_nothing(desk: Any) -> None:
    """The generation that was to redo the step may have done so, out of our hearing."""
    desk.submit()
    number = desk.run_generation("a", "b", "c")
    desk.lost("c")
    desk.froze("a", generation=number, step=4, prepared=(number, 5))
    desk.froze("b", generation=number, step=4)
    desk.lost("b")
    desk.froze("a", generation=number + 1, step=4, held_generation=number, prepared=(number, 5))
    assign = desk.told("a", m.Assign)[-1]
    assert assign.generation == number + 2
    assert (assign.held_generation, assign.held_step) == (number, 4)


def test_who_lacks_the_state_gets_it_from_all_who_hold_it(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.warm_up("c")
    for name in "ab":
        desk.froze(name, generation=number, step=3)
    assign = desk.told("c", m.Assign)[-1]
    assert [(one.name, one.holds) for one in assign.roster] == [
        ("a", True),
        ("b", True),
        ("c", False),
    ]
    assert "state of step 3 from a, b" in desk.told_of("generation_forming")[-1].message


def test_steps_that_nobody_holds_any_more_are_counted(desk: Any) -> None:
    job = desk.submit()
    desk.run_generation("a")
    desk.beat("a", step=6)
    desk.register("a", incarnation=2)
    desk.warmed("a")
    assert job.steps_lost == 6
    (incident,) = desk.told_of("steps_lost")
    assert incident.details == {"steps_lost": 6}


def test_steps_are_lost_once_though_members_still_speak_of_them(desk: Any) -> None:
    """Until it has taken over the older state, a member of the next generation has the newer."""
    job = desk.submit()
    number = desk.run_generation("a", "b")
    desk.commit(6)
    for name in "ab":
        desk.froze(name, generation=number, step=0, held_generation=0)
    assert (job.generation, job.step, job.steps_lost) == (number + 1, 0, 6)
    desk.commit(6)
    assert job.step == 0
    for name in "ab":
        desk.froze(name, generation=number + 1, step=0, held_generation=0)
    assert (job.generation, job.steps_lost) == (number + 2, 6)


# --- bad links -------------------------------------------------------------------------------


def break_link(desk: Any, number: int, *names: str) -> None:
    """The first two cannot reach each other; all freeze."""
    one, other, *rest = names
    desk.froze(one, generation=number, step=0, suspect=other, evidence="silent")
    desk.froze(other, generation=number, step=0, suspect=one, evidence="reset")
    for name in rest:
        desk.froze(name, generation=number, step=0, suspect=one, evidence="reset")


def test_ring_is_ordered_round_a_bad_link(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation(*"abcd")
    break_link(desk, number, *"abcd")
    assert desk.cluster.run.roster == ["a", "c", "b", "d"]
    assert desk.cluster.isolation.links.bad == {("a", "b")}
    (incident,) = desk.told_of("link_bad")
    assert "a and b live and cannot reach each other (silent)" in incident.message


def test_who_has_no_place_in_the_ring_stays_out_until_its_link_works(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation(*"abc")
    break_link(desk, number, *"bac")
    assert desk.cluster.run.roster == ["a", "c"]
    assert desk.state("b") == "barred"
    assert desk.cluster.workers["b"].reason == "no working link to a; probed every 2 s"
    assert [one.worker for one in desk.told_of("worker_barred")] == ["b"]
    number = desk.all_run("a", "c")
    for name in "ac":
        desk.froze(name, generation=number, step=1)
    assert desk.cluster.run.roster == ["a", "c"]
    assert len(desk.told_of("worker_barred")) == 1


def probed(desk: Any, by: str, other: str, *, reachable: bool) -> None:
    desk.say(by, m.Probed(name=other, reachable=reachable))


def test_only_holder_of_the_state_stays_whatever_it_says(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a")
    desk.commit(1)
    desk.warm_up("b")
    desk.froze("a", generation=number, step=1)
    desk.froze(
        "a", generation=number + 1, step=1, held_generation=1, suspect="b", evidence="silent"
    )
    desk.froze("b", generation=number + 1, step=0, held=())
    assert desk.cluster.run.roster == ["a"]
    assert desk.state("b") == "barred"


def test_too_few_without_the_barred_wait_for_a_working_link(desk: Any) -> None:
    desk.submit(min_workers=2)
    number = desk.run_generation("a", "b")
    break_link(desk, number, "a", "b")
    assert desk.cluster.run.roster == []
    assert desk.core.explain() == "waiting for a working link between a and b"
    desk.tick(0.25)
    for one, other in ("ab", "ba"):
        assert [probe.name for probe in desk.told(one, m.Probe)] == [other]
        desk.say(one, m.Probed(name=other, reachable=True))
    assert desk.cluster.run.roster == ["a", "b"]


def test_who_starts_afresh_meanwhile_is_not_to_blame(desk: Any) -> None:
    """It was unreachable because it had died."""
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.register("b", incarnation=2)
    desk.froze("a", generation=number, step=0, suspect="b", evidence="unreachable")
    assert desk.cluster.isolation.links.bad == frozenset()


# --- until it runs ---------------------------------------------------------------------------


def test_generation_runs_when_all_members_do(desk: Any) -> None:
    job = desk.submit()
    desk.warm_up("a", "b")
    running = m.Running(job="j-1", generation=1, step=0)
    desk.say("a", running)
    desk.say("a", running)
    assert job.state is JobState.FORMING
    desk.say("b", m.Running(job="j-1", generation=9, step=0))
    assert job.state is JobState.FORMING
    desk.saved.clear()
    desk.say("b", running)
    assert job.state is JobState.RUNNING
    assert desk.saved == [job]
    assert desk.core.explain() == ""


def test_member_that_runs_when_the_generation_ends_already_does_not_revive_it(desk: Any) -> None:
    desk.submit()
    desk.warm_up("a", "b", "c")
    desk.lost("a")
    desk.all_run("b", "c")
    assert desk.core.explain() == "ending generation 1: waiting for b, c"


def test_cancel_while_forming_stops_after_the_first_step(desk: Any) -> None:
    job = desk.submit()
    desk.warm_up("a")
    desk.handle(CancelRequested(job="j-1"))
    assert desk.told("a", m.Freeze) == []
    desk.all_run("a")
    assert [one.stop for one in desk.told("a", m.Freeze)] == [True]
    assert job.state is JobState.STOPPING


def test_drain_while_forming_lets_go_after_the_first_step(desk: Any) -> None:
    desk.submit()
    desk.warm_up("a", "b")
    desk.handle(DrainRequested(name="a"))
    assert desk.told("a", m.Freeze) == []
    desk.all_run("a", "b")
    assert [(one.at_boundary, one.leave) for one in desk.told("a", m.Freeze)] == [(True, True)]
    assert [(one.at_boundary, one.leave) for one in desk.told("b", m.Freeze)] == [(True, False)]
