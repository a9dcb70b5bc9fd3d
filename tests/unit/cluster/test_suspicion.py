from typing import Any

import pytest

from dtd.cluster import admission, suspicion
from dtd.cluster.diagnostics import standing
from dtd.cluster.events import Submitted, Ticked
from dtd.cluster.records import Job
from dtd.wire import messages as m

# --- silence ---------------------------------------------------------------------------------


def test_silent_member_is_evicted_within_two_seconds(desk: Any) -> None:
    desk.submit()
    desk.run_generation("a", "b")
    desk.silence(1.5, "b")
    assert desk.state("a") == "running"
    desk.silence(2.0, "b")
    assert desk.state("a") == "lost"
    assert "no heartbeat for" in desk.disconnected[0].reason


def test_silence_is_excused_while_the_generation_advances(desk: Any) -> None:
    """Every step needs every member: what commits steps lives, whatever reaches us of it."""
    desk.submit()
    desk.run_generation("a", "b")
    for step in range(1, 21):
        desk.now += 0.25
        desk.beat("b", step=step)
    assert desk.now == 5.0
    assert desk.state("a") == "running"
    assert desk.cluster.workers["a"].reason.endswith("but its generation advances")
    desk.silence(desk.now + 1.0, "b")
    assert desk.state("a") == "lost"


def test_slow_steps_count_as_advancing_for_longer(desk: Any) -> None:
    desk.submit()
    desk.run_generation("a", "b")
    desk.beat("a", step=1)
    desk.beat("b", step=1, step_s=4.0)
    for _ in range(4 * 6):
        desk.now += 0.25
        desk.beat("b", step=1, step_s=4.0)
    assert desk.now == suspicion.ADVANCING_STEPS * 4.0
    assert desk.state("a") == "running"
    desk.now += 0.25
    desk.beat("b", step=1, step_s=4.0)
    assert desk.state("a") == "lost"


def test_silence_of_one_who_is_no_member_is_not_excused(desk: Any) -> None:
    desk.submit(max_workers=1)
    desk.run_generation("a")
    desk.warm_up("b")
    for step in range(1, 9):
        desk.now += 0.25
        desk.beat("a", step=step)
    assert desk.state("b") == "lost"


# --- a neighbour's word ------------------------------------------------------------------------


@pytest.mark.parametrize("evidence", ["silent", "unreachable"])
def test_neighbours_word_and_missed_beats_evict(desk: Any, evidence: str) -> None:
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.silence(0.75, "a")
    desk.froze("a", generation=number, step=0, suspect="b", evidence=evidence)
    assert desk.state("b") == "lost"
    assert "silent towards its neighbour" in desk.disconnected[0].reason
    assert desk.cluster.run.roster == ["a"]


def test_process_that_has_ended_is_gone_even_if_its_connection_still_stands(desk: Any) -> None:
    """The kernel closes a dead process's connections one after the other; both neighbours know."""
    desk.submit()
    number = desk.run_generation("a", "b", "c")
    desk.froze("a", generation=number, step=0, suspect="b", evidence="ended")
    assert desk.disconnected == []
    desk.froze("c", generation=number, step=0, suspect="b", evidence="ended")
    assert [(one.name, one.reason) for one in desk.disconnected] == [("b", "its process has ended")]
    assert desk.cluster.run.roster == ["a", "c"]


def test_one_word_that_a_process_has_ended_counts_once_beats_are_missing(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.froze("a", generation=number, step=0, suspect="b", evidence="ended")
    desk.silence(0.5, "a")
    assert desk.disconnected == []
    desk.silence(0.75, "a")
    assert [(one.name, one.reason) for one in desk.disconnected] == [("b", "its process has ended")]
    assert desk.cluster.run.roster == ["a"]


def test_one_word_that_a_process_has_ended_counts_once_its_connection_ends(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.froze("a", generation=number, step=0, suspect="b", evidence="ended")
    desk.lost("b", farewell=False)
    assert desk.cluster.run.roster == ["a"]


def test_a_process_that_has_ended_may_be_forgotten_before_the_next_generation(desk: Any) -> None:
    """While a job waits for more workers, many others may come and go."""
    desk.submit(min_workers=2)
    number = desk.run_generation("a", "b")
    desk.froze("a", generation=number, step=0, suspect="b", evidence="ended")
    desk.lost("b", farewell=False)
    for index in range(admission.MAX_KNOWN_WORKERS):
        desk.register(f"passer-{index}")
        desk.lost(f"passer-{index}")
    assert "b" not in desk.cluster.workers
    assert desk.state("a") == "frozen"


@pytest.mark.parametrize("says", ["ended", "reset"])
def test_a_process_cannot_bear_out_itself_nor_a_reset_a_death(desk: Any, says: str) -> None:
    """A ring that one member breaks is reset all round."""
    desk.submit()
    number = desk.run_generation("a", "b", "c")
    desk.froze("a", generation=number, step=0, suspect="b", evidence="ended")
    by = "b" if says == "ended" else "c"
    desk.froze(by, generation=number, step=0, suspect="b", evidence=says)
    assert desk.disconnected == []


@pytest.mark.parametrize(
    ("evidence", "silent_s"),
    [
        pytest.param("silent", 0.5, id="a word alone"),
        pytest.param("reset", 0.75, id="a reset, of one that answers a little late"),
    ],
)
def test_neighbours_word_without_missed_beats_evicts_nobody(
    desk: Any, evidence: str, silent_s: float
) -> None:
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.silence(silent_s, "a")
    desk.froze("a", generation=number, step=0, suspect="b", evidence=evidence)
    assert desk.disconnected == []


def test_beats_missed_while_the_coordinator_slept_are_not_missed(desk: Any) -> None:
    """They lie unread in its sockets, behind the neighbour's word."""
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.now = 10.0
    desk.froze("a", generation=number, step=0, suspect="b", evidence="silent")
    assert desk.disconnected == []


def test_member_whose_connection_and_ring_are_both_gone_is_lost_at_once(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b")
    desk.lost("b", farewell=False)
    assert desk.state("b") == "away"
    desk.froze("a", generation=number, step=0, suspect="b", evidence="reset")
    assert desk.state("b") == "lost"
    assert desk.cluster.run.roster == ["a"]


@pytest.mark.parametrize("suspect", ["", "nobody", "c"])
def test_word_about_nobody_in_the_generation_is_no_accusation(desk: Any, suspect: str) -> None:
    desk.submit(max_workers=2)
    number = desk.run_generation("a", "b")
    desk.warm_up("c")
    desk.froze("a", generation=number, step=0, suspect=suspect, evidence="silent")
    assert desk.disconnected == []
    assert desk.state("c") == "ready"


# --- replicas that differ ------------------------------------------------------------------------


@pytest.mark.parametrize("first", [True, False])
def test_when_most_see_no_majority_nobody_brings_its_memory(desk: Any, first: bool) -> None:
    """Their word is enough for one that tells no digest."""
    desk.submit()
    number = desk.run_generation("a", "b", "c")
    if first:
        desk.froze("b", generation=number, step=3)
    for name in "ac":
        desk.froze(name, generation=number, step=0, where="none", evidence="diverged")
    if not first:
        desk.froze("b", generation=number, step=3)
    assert [desk.state(name) for name in "abc"] == ["frozen", "lost", "frozen"]
    desk.register("b", incarnation=2)
    desk.warmed("b")
    assign = desk.told("a", m.Assign)[-1]
    assert assign.generation == number + 1
    assert (assign.held_generation, assign.held_step) == (0, 0)


def test_one_that_differs_is_put_out_when_it_comes_later(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation("a", "b", "c", "d")
    for name in "cd":
        desk.lost(name)
    for name in "ab":
        desk.froze(name, generation=number, step=3, suspect="c", evidence="diverged")
    for name in "cd":
        desk.register(name, job="j-1", generation=number, roster_id=desk.cluster.job.roster_id)
        desk.froze(name, generation=number, step=3)
    assert desk.told("c", m.Release)[-1].reason == "its state differs from the majority's"
    assert desk.state("d") == "ready"


def diverge(desk: Any, *names: str, step: int, differs: str = "model.w") -> None:
    """All members see that no state has a majority, and go back to the beginning."""
    number = desk.all_run(*names)
    for name in names:
        desk.froze(
            name,
            generation=number,
            step=0,
            held_generation=0,
            where="none",
            evidence="diverged",
            diverged_step=step,
            differs=differs,
            reason=f"it differs in {differs}",
        )


def test_bits_that_flip_at_different_points_do_not_fail_the_job(desk: Any) -> None:
    desk.submit()
    desk.warm_up("a", "b")
    diverge(desk, "a", "b", step=50)
    diverge(desk, "a", "b", step=100)
    diverge(desk, "a", "b", step=100, differs="model.b")
    assert not desk.ended
    assert desk.cluster.run.roster == ["a", "b"]


def test_who_knows_what_differed_may_report_later(desk: Any) -> None:
    """A ring that breaks during the search leaves somebody without an answer."""
    desk.submit()
    number = desk.run_generation("a", "b")
    more = {"where": "none", "evidence": "diverged", "diverged_step": 5}
    desk.froze("a", generation=number, step=0, **more)
    desk.froze("b", generation=number, step=0, differs="model.w", **more)
    assert desk.cluster.job.divergences == ((1, 5, "model.w"),)


# --- probes ----------------------------------------------------------------------------------


def bad_link(desk: Any) -> None:
    desk.submit()
    number = desk.run_generation(*"abcd")
    for name in "abcd":
        other = {"a": "b", "b": "a"}.get(name, "")
        desk.froze(name, generation=number, step=0, suspect=other, evidence="silent" * bool(other))


def test_ends_of_a_bad_link_are_asked_to_try_again(desk: Any) -> None:
    bad_link(desk)
    desk.handle(Ticked())
    assert desk.told("a", m.Probe) == [m.Probe(name="b", host="h", port=1)]
    assert desk.told("b", m.Probe) == [m.Probe(name="a", host="h", port=1)]
    desk.tick(2.0)
    assert len(desk.told("a", m.Probe)) == 2


def test_a_link_that_loses_large_packets_is_told_as_such(desk: Any) -> None:
    bad_link(desk)
    desk.handle(Ticked())
    assert [one.kind for one in standing(desk.cluster)] == ["no-way"]
    failed = m.Probed(name="a", reachable=False, reason="no answer", greeted=True)
    desk.say("b", failed)
    [diagnostic] = standing(desk.cluster)
    assert (diagnostic.kind, diagnostic.where) == ("narrow-way", "a - b")
    assert "large ones are lost" in diagnostic.message
    assert "mtu" in diagnostic.remedy


def test_link_that_works_both_ways_is_good_again(desk: Any) -> None:
    bad_link(desk)
    desk.handle(Ticked())
    desk.say("a", m.Probed(name="b", reachable=True))
    desk.say("b", m.Probed(name="a", reachable=False, reason="no route"))
    assert desk.told_of("link_good") == []
    desk.say("b", m.Probed(name="a", reachable=True))
    assert desk.cluster.isolation.links.bad == frozenset()
    assert len(desk.told_of("link_good")) == 1


def test_a_disputed_state_stays_disputed_when_the_coordinator_starts_again(desk: Any) -> None:
    elastic = {"min_workers": 1, "max_workers": 8, "settle_s": 0.0, "warmup_timeout_s": 120.0}
    spec = {"job": {"name": "j"}, "elastic": elastic}
    values: dict[str, Any] = {"generation": 3, "roster": ("a", "b"), "roster_id": 7, "step": 9}
    stored = Job(id="j-1", spec=spec, divergences=((3, 8, "w"),), **values)
    desk.handle(Submitted(job=stored))
    desk.register("b", job="j-1", phase="frozen", generation=3, roster_id=7)
    desk.froze("b", generation=3, step=9, held_generation=3)
    assert [one.state for one in desk.told("b", m.Release)] == ["evicted"]
    assert desk.state("b") == "lost"
