from typing import Any

import pytest

from dtd.cluster import admission, suspicion
from dtd.cluster.diagnostics import standing
from dtd.cluster.events import Submitted, Ticked
from dtd.cluster.records import Job
from dtd.wire import messages as m

# --- silence ---------------------------------------------------------------------------------


def test_silent_member_is_evicted_within_two_seconds(driver: Any) -> None:
    driver.submit()
    driver.run_generation("a", "b")
    driver.silence(1.5, "b")
    assert driver.state("a") == "running"
    driver.silence(2.0, "b")
    assert driver.state("a") == "lost"
    assert "no heartbeat for" in driver.disconnected[0].reason


def test_silence_is_excused_while_the_generation_advances(driver: Any) -> None:
    """Every step needs every member: what commits steps lives, whatever reaches us of it."""
    driver.submit()
    driver.run_generation("a", "b")
    for step in range(1, 21):
        driver.now += 0.25
        driver.beat("b", step=step)
    assert driver.now == 5.0
    assert driver.state("a") == "running"
    assert driver.cluster.workers["a"].reason.endswith("but its generation advances")
    driver.silence(driver.now + 1.0, "b")
    assert driver.state("a") == "lost"


def test_slow_steps_count_as_advancing_for_longer(driver: Any) -> None:
    driver.submit()
    driver.run_generation("a", "b")
    driver.beat("a", step=1)
    driver.beat("b", step=1, step_s=4.0)
    for _ in range(4 * 6):
        driver.now += 0.25
        driver.beat("b", step=1, step_s=4.0)
    assert driver.now == suspicion.ADVANCING_STEPS * 4.0
    assert driver.state("a") == "running"
    driver.now += 0.25
    driver.beat("b", step=1, step_s=4.0)
    assert driver.state("a") == "lost"


def test_silence_of_one_that_is_no_member_is_not_excused(driver: Any) -> None:
    driver.submit(max_workers=1)
    driver.run_generation("a")
    driver.warm_up("b")
    for step in range(1, 9):
        driver.now += 0.25
        driver.beat("a", step=step)
    assert driver.state("b") == "lost"


# --- a neighbour's word ------------------------------------------------------------------------


@pytest.mark.parametrize("evidence", ["silent", "unreachable"])
def test_neighbours_word_and_missed_beats_evict(driver: Any, evidence: str) -> None:
    driver.submit()
    number = driver.run_generation("a", "b")
    driver.silence(0.75, "a")
    driver.froze("a", generation=number, step=0, suspect="b", evidence=evidence)
    assert driver.state("b") == "lost"
    assert "silent towards its neighbour" in driver.disconnected[0].reason
    assert driver.cluster.run.roster == ["a"]


def test_process_that_has_ended_is_gone_even_if_its_connection_still_stands(driver: Any) -> None:
    """The kernel closes a dead process's connections one after the other; both neighbours know."""
    driver.submit()
    number = driver.run_generation("a", "b", "c")
    driver.froze("a", generation=number, step=0, suspect="b", evidence="ended")
    assert driver.disconnected == []
    driver.froze("c", generation=number, step=0, suspect="b", evidence="ended")
    assert [(one.name, one.reason) for one in driver.disconnected] == [
        ("b", "its process has ended")
    ]
    assert driver.cluster.run.roster == ["a", "c"]


def test_one_word_that_a_process_has_ended_counts_once_beats_are_missing(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("a", "b")
    driver.froze("a", generation=number, step=0, suspect="b", evidence="ended")
    driver.silence(0.5, "a")
    assert driver.disconnected == []
    driver.silence(0.75, "a")
    assert [(one.name, one.reason) for one in driver.disconnected] == [
        ("b", "its process has ended")
    ]
    assert driver.cluster.run.roster == ["a"]


def test_one_word_that_a_process_has_ended_counts_once_its_connection_ends(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("a", "b")
    driver.froze("a", generation=number, step=0, suspect="b", evidence="ended")
    driver.lost("b", farewell=False)
    assert driver.cluster.run.roster == ["a"]


def test_a_process_that_has_ended_may_be_forgotten_before_the_next_generation(driver: Any) -> None:
    """While a job waits for more workers, many others may come and go."""
    driver.submit(min_workers=2)
    number = driver.run_generation("a", "b")
    driver.froze("a", generation=number, step=0, suspect="b", evidence="ended")
    driver.lost("b", farewell=False)
    for index in range(admission.MAX_KNOWN_WORKERS):
        driver.register(f"passer-{index}")
        driver.lost(f"passer-{index}")
    assert "b" not in driver.cluster.workers
    assert driver.state("a") == "frozen"


@pytest.mark.parametrize("says", ["ended", "reset"])
def test_a_process_cannot_bear_out_itself_nor_a_reset_a_death(driver: Any, says: str) -> None:
    """A ring that one member breaks is reset all round."""
    driver.submit()
    number = driver.run_generation("a", "b", "c")
    driver.froze("a", generation=number, step=0, suspect="b", evidence="ended")
    by = "b" if says == "ended" else "c"
    driver.froze(by, generation=number, step=0, suspect="b", evidence=says)
    assert driver.disconnected == []


@pytest.mark.parametrize(
    ("evidence", "silent_s"),
    [
        pytest.param("silent", 0.5, id="a word alone"),
        pytest.param("reset", 0.75, id="a reset, of one that answers a little late"),
    ],
)
def test_neighbours_word_without_missed_beats_evicts_nobody(
    driver: Any, evidence: str, silent_s: float
) -> None:
    driver.submit()
    number = driver.run_generation("a", "b")
    driver.silence(silent_s, "a")
    driver.froze("a", generation=number, step=0, suspect="b", evidence=evidence)
    assert driver.disconnected == []


def test_beats_missed_while_the_coordinator_slept_are_not_missed(driver: Any) -> None:
    """They lie unread in its sockets, behind the neighbour's word."""
    driver.submit()
    number = driver.run_generation("a", "b")
    driver.now = 10.0
    driver.froze("a", generation=number, step=0, suspect="b", evidence="silent")
    assert driver.disconnected == []


def test_member_whose_connection_and_ring_are_both_gone_is_lost_at_once(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("a", "b")
    driver.lost("b", farewell=False)
    assert driver.state("b") == "away"
    driver.froze("a", generation=number, step=0, suspect="b", evidence="reset")
    assert driver.state("b") == "lost"
    assert driver.cluster.run.roster == ["a"]


@pytest.mark.parametrize("suspect", ["", "nobody", "c"])
def test_word_about_nobody_in_the_generation_is_no_accusation(driver: Any, suspect: str) -> None:
    driver.submit(max_workers=2)
    number = driver.run_generation("a", "b")
    driver.warm_up("c")
    driver.froze("a", generation=number, step=0, suspect=suspect, evidence="silent")
    assert driver.disconnected == []
    assert driver.state("c") == "ready"


# --- replicas that differ ------------------------------------------------------------------------


@pytest.mark.parametrize("first", [True, False])
def test_when_most_see_no_majority_nobody_brings_its_memory(driver: Any, first: bool) -> None:
    """Their word is enough for one that tells no digest."""
    driver.submit()
    number = driver.run_generation("a", "b", "c")
    if first:
        driver.froze("b", generation=number, step=3)
    for name in "ac":
        driver.froze(name, generation=number, step=0, where="none", evidence="diverged")
    if not first:
        driver.froze("b", generation=number, step=3)
    assert [driver.state(name) for name in "abc"] == ["frozen", "lost", "frozen"]
    driver.register("b", incarnation=2)
    driver.warmed("b")
    assign = driver.told("a", m.Assign)[-1]
    assert assign.generation == number + 1
    assert (assign.held_generation, assign.held_step) == (0, 0)


def test_one_that_differs_is_put_out_when_it_comes_later(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation("a", "b", "c", "d")
    for name in "cd":
        driver.lost(name)
    for name in "ab":
        driver.froze(name, generation=number, step=3, suspect="c", evidence="diverged")
    for name in "cd":
        driver.register(name, job="j-1", generation=number, roster_id=driver.cluster.job.roster_id)
        driver.froze(name, generation=number, step=3)
    assert driver.told("c", m.Release)[-1].reason == "its state differs from the majority's"
    assert driver.state("d") == "ready"


def diverge(driver: Any, *names: str, step: int, differs: str = "model.w") -> None:
    """All members see that no state has a majority, and go back to the beginning."""
    number = driver.all_run(*names)
    for name in names:
        driver.froze(
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


def test_bits_that_flip_at_different_points_do_not_fail_the_job(driver: Any) -> None:
    driver.submit()
    driver.warm_up("a", "b")
    diverge(driver, "a", "b", step=50)
    diverge(driver, "a", "b", step=100)
    diverge(driver, "a", "b", step=100, differs="model.b")
    assert not driver.ended
    assert driver.cluster.run.roster == ["a", "b"]


def test_a_worker_that_knows_what_differed_may_report_later(driver: Any) -> None:
    """A ring that breaks during the search leaves somebody without an answer."""
    driver.submit()
    number = driver.run_generation("a", "b")
    more = {"where": "none", "evidence": "diverged", "diverged_step": 5}
    driver.froze("a", generation=number, step=0, **more)
    driver.froze("b", generation=number, step=0, differs="model.w", **more)
    assert driver.cluster.job.divergences == ((1, 5, "model.w"),)


# --- probes ----------------------------------------------------------------------------------


def bad_link(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation(*"abcd")
    for name in "abcd":
        other = {"a": "b", "b": "a"}.get(name, "")
        driver.froze(
            name, generation=number, step=0, suspect=other, evidence="silent" * bool(other)
        )


def test_ends_of_a_bad_link_are_asked_to_try_again(driver: Any) -> None:
    bad_link(driver)
    driver.handle(Ticked())
    assert driver.told("a", m.Probe) == [m.Probe(name="b", host="h", port=1)]
    assert driver.told("b", m.Probe) == [m.Probe(name="a", host="h", port=1)]
    driver.tick(2.0)
    assert len(driver.told("a", m.Probe)) == 2


def test_a_link_that_loses_large_packets_is_told_as_such(driver: Any) -> None:
    bad_link(driver)
    driver.handle(Ticked())
    assert [one.kind for one in standing(driver.cluster)] == ["no-way"]
    failed = m.Probed(name="a", reachable=False, reason="no answer", greeted=True)
    driver.say("b", failed)
    [diagnostic] = standing(driver.cluster)
    assert (diagnostic.kind, diagnostic.where) == ("narrow-way", "a - b")
    assert "large ones are lost" in diagnostic.message
    assert "mtu" in diagnostic.remedy


def test_link_that_works_both_ways_is_good_again(driver: Any) -> None:
    bad_link(driver)
    driver.handle(Ticked())
    driver.say("a", m.Probed(name="b", reachable=True))
    driver.say("b", m.Probed(name="a", reachable=False, reason="no route"))
    assert driver.told_of("link_good") == []
    driver.say("b", m.Probed(name="a", reachable=True))
    assert driver.cluster.links.bad == frozenset()
    assert len(driver.told_of("link_good")) == 1


def test_a_disputed_state_stays_disputed_when_the_coordinator_starts_again(driver: Any) -> None:
    elastic = {"min_workers": 1, "max_workers": 8, "settle_s": 0.0, "warmup_timeout_s": 120.0}
    spec = {"job": {"name": "j"}, "elastic": elastic}
    values: dict[str, Any] = {"generation": 3, "roster": ("a", "b"), "roster_id": 7, "step": 9}
    stored = Job(id="j-1", spec=spec, divergences=((3, 8, "w"),), **values)
    driver.handle(Submitted(job=stored))
    driver.register("b", job="j-1", phase="frozen", generation=3, roster_id=7)
    driver.froze("b", generation=3, step=9, held_generation=3)
    assert [one.state for one in driver.told("b", m.Release)] == ["evicted"]
    assert driver.state("b") == "lost"
