"""Members that send heartbeats, and do not say what others of their generation have said."""

from typing import Any

from dtd.cluster import laggards
from dtd.cluster.diagnostics import standing
from dtd.cluster.events import Ticked
from dtd.wire import messages as m

MOST_S = 10 * 120.0
"""Ten times the longest limit of the tests' jobs."""


def busy(desk: Any, until: float) -> None:
    """Time passes; everybody sends heartbeats, as of a thread that gets on."""
    values = {"stalled_s": 0.1, "patience_s": 5.0}
    while desk.now < until:
        desk.now = min(until, desk.now + 0.25)
        for name in list(desk.cluster.detector._heard):
            of = desk.cluster.workers[name].participation.generation
            desk.say(name, m.Heartbeat(state="", job="j-1", generation=of, **values))
        desk.handle(Ticked())


def withholding(desk: Any) -> list[str]:
    return [one.where for one in standing(desk.cluster) if one.kind == "withheld"]


# --- it runs ---------------------------------------------------------------------------------


def test_members_that_two_need_for_their_steps_run_whatever_they_say(desk: Any) -> None:
    desk.submit()
    desk.warm_up(*"abc")
    desk.all_run("a", "b")
    desk.beat("a", step=1)
    assert desk.cluster.run.phase.value == "forming"
    desk.beat("b", step=1)
    assert desk.cluster.run.phase.value == "running"
    assert [desk.state(name) for name in "abc"] == ["running"] * 3
    assert desk.cluster.job.step == 1


def test_one_of_two_that_does_not_say_that_it_runs_is_named_and_not_put_out(desk: Any) -> None:
    """It may be loading a large state while the other one lies."""
    desk.submit()
    desk.warm_up("a", "b")
    desk.all_run("a")
    assert desk.core.explain() == "forming generation 1: waiting for a, b"
    assert withholding(desk) == []
    busy(desk, laggards.TELL_AFTER_S + 1)
    assert desk.core.explain() == (
        "forming generation 1: waiting for a, b; a has said that it runs, and b not:"
        " `dtdctl kill-worker b` gives it up"
    )
    assert withholding(desk) == ["b"]
    busy(desk, 600.0)
    assert desk.state("b") == "forming"
    desk.all_run("b")
    assert withholding(desk) == []
    assert desk.core.explain() == ""


def test_nobody_is_waited_for_beyond_ten_times_the_longest_limit(desk: Any) -> None:
    desk.submit()
    desk.warm_up("a", "b")
    desk.all_run("a")
    busy(desk, MOST_S + 1)
    assert [one.name for one in desk.disconnected] == ["b"]
    assert "has not said that it runs for 1200 s, as others have" in desk.disconnected[0].reason
    assert desk.told("b", m.Release) == []  # an honest one comes back with what it holds


def test_time_in_which_the_coordinator_did_not_run_does_not_count(desk: Any) -> None:
    desk.submit()
    desk.warm_up("a", "b")
    desk.all_run("a")
    busy(desk, 5.0)
    desk.now += 1000.0
    desk.handle(Ticked())
    assert withholding(desk) == []
    busy(desk, desk.now + laggards.TELL_AFTER_S)
    assert withholding(desk) == ["b"]


# --- it has left -----------------------------------------------------------------------------


def at_boundary(desk: Any) -> int:
    """A worker joins at a step boundary, and one member has come to it."""
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.warm_up("c")
    assert desk.told("b", m.Freeze)[-1].at_boundary
    desk.froze("a", generation=number, step=1)
    return number


def test_one_that_stays_where_others_left_is_told_to_leave_and_given_up(desk: Any) -> None:
    at_boundary(desk)
    desk.tick(desk.now + 4.0)
    assert desk.told("b", m.Freeze)[-1].at_boundary
    desk.tick(desk.now + 2.0)
    assert not desk.told("b", m.Freeze)[-1].at_boundary
    desk.tick(desk.now + 6.0)
    assert desk.state("b") == "lost"
    assert desk.cluster.run.roster == ["a", "c"]


def test_one_that_gets_on_leaves_at_its_step_boundary(desk: Any) -> None:
    """Its update may take long, or its last checkpoint."""
    number = at_boundary(desk)
    busy(desk, desk.now + 600.0)
    assert desk.told("b", m.Freeze)[-1].at_boundary
    assert "a has said that it has left, and b not" in desk.core.explain()
    desk.froze("b", generation=number, step=1)
    assert desk.cluster.run.roster == ["a", "b", "c"]


def test_one_alone_that_does_not_leave_is_named_and_not_put_out(desk: Any) -> None:
    """Its step may take hours."""
    desk.submit()
    desk.run_generation("a")
    desk.warm_up("b")
    busy(desk, 5.0)
    assert desk.core.explain() == "ending generation 1: waiting for a"
    busy(desk, MOST_S + 60)
    assert desk.core.explain() == (
        "ending generation 1: waiting for a; a has not come to the end of its step:"
        " `dtdctl kill-worker a` gives it up"
    )
    assert withholding(desk) == []
    assert desk.state("a") == "running"


def test_one_that_pretends_to_get_on_is_given_up_in_the_end(desk: Any) -> None:
    at_boundary(desk)
    busy(desk, desk.now + MOST_S + 1)
    assert [one.name for one in desk.disconnected] == ["b"]
    assert desk.cluster.run.roster == ["a", "c"]


def test_one_that_came_back_and_pretends_to_get_on_is_given_up_in_the_end(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.lost("b", farewell=False)
    desk.silence(3.0, "a")
    desk.froze("a", generation=number, step=0)
    desk.all_run("a")
    desk.register("b", job="j-1", generation=number, roster_id=desk.cluster.job.roster_id)
    assert desk.cluster.workers["b"].reconnection.returning
    busy(desk, desk.now + 600.0)
    assert desk.state("b") == "warming"
    busy(desk, desk.now + MOST_S)
    assert desk.state("b") == "lost"


# --- it has finished, or is warm -------------------------------------------------------------


def test_one_that_does_not_finish_is_named_and_not_put_out(desk: Any) -> None:
    """Its last checkpoint may take as long, and one that says that it has finished may lie."""
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.finished("a", generation=number)
    busy(desk, MOST_S + 60)
    assert withholding(desk) == ["b"]
    assert desk.state("b") == "running"


def test_members_that_have_finished_ran_whatever_they_said(desk: Any) -> None:
    job = desk.submit()
    desk.warm_up("a", "b")
    desk.all_run("a")
    for name in "ab":
        desk.finished(name, generation=1, step=10_000)
    assert (job.state.value, job.step) == ("done", 10_000)


def test_a_job_whose_steps_are_all_done_says_who_has_not_finished(desk: Any) -> None:
    desk.submit()
    desk.run_generation("a", "b")
    desk.commit(9_999)
    assert desk.core.explain() == ""
    desk.commit(10_000)
    assert desk.core.explain() == (
        "all steps are committed; waiting for a, b to finish: `dtdctl kill-worker a` gives it up"
    )


def test_a_job_begins_without_one_that_warms_up_for_too_long(desk: Any) -> None:
    desk.submit()
    desk.register("b")
    desk.warm_up("a")
    busy(desk, 119.0)
    assert desk.cluster.run.roster == []
    busy(desk, 121.0)
    assert desk.cluster.run.roster == ["a"]
    assert desk.state("b") == "warming"  # it makes progress, and joins later
    desk.all_run("a")
    desk.warmed("b")
    assert desk.told("a", m.Freeze)[-1].at_boundary
