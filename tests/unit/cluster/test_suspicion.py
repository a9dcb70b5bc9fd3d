"""Members that hold a generation up: silent, lost to neighbours, stuck, or with another state."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.cluster.digests import Divergence, noted, why_hopeless
from dtd.cluster.events import Ticked
from dtd.cluster.status import standing
from dtd.cluster.suspicion import ALIKE_PATIENCE_S
from dtd.wire import messages as m

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


# --- probes ----------------------------------------------------------------------------------


def bad_link(driver: Any) -> None:
    driver.submit()
    number = driver.run_generation(*"abcd")
    for name in "abcd":
        other = {"a": "b", "b": "a"}.get(name, "")
        driver.froze(
            name, generation=number, step=0, suspect=other, evidence="silent" * bool(other)
        )


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


# --- training that stands still: evictions, workers that are kept, and the operator's messages


STILL_S = 5.25
STUCK = {"stalled_s": STILL_S, "still_s": STILL_S, "patience_s": 5.0}


def train(driver: Any, *names: str, step: int = 17) -> int:
    """A generation that has committed some steps."""
    driver.submit()
    number: int = driver.run_generation(*names)
    for name in names:
        driver.beat(name, step=step)
    return number


def all_stand(driver: Any, *names: str, **how: float) -> None:
    """They stand still, and not for long enough yet."""
    for name in names:
        driver.beat(
            name, step=17, **{"stalled_s": 4.0, "still_s": 4.0, "patience_s": 5000.0, **how}
        )


def released(driver: Any) -> list[str]:
    """The workers that were told to start afresh."""
    return [
        one.name
        for one in driver.sent
        if isinstance(one.message, m.Release) and one.message.state == "evicted"
    ]


# --- several alike -------------------------------------------------------------------------------


@pytest.mark.parametrize("names", ["a", "abc"])
def test_the_last_who_remember_are_kept_for_ever_and_the_operator_is_told(
    driver: Any, names: str
) -> None:
    train(driver, *names)
    all_stand(driver, *names)
    for _ in range(3600):
        driver.now += 1.0
        for name in names:
            driver.beat(name, step=17, **STUCK, where="task.py:12 in loss")
    assert driver.disconnected == []
    assert len(driver.told_of("training_stalled")) == len(names)
    assert driver.core.explain() == (
        f"waiting for {', '.join(names)}, kept since no other worker that makes progress holds"
        " step 17;"
        " a: its training thread has been stuck in task.py:12 in loss for 5.2 s (limit 5.0 s);"
        " `dtdctl kill-worker a` gives it up, `dtdctl cancel j-1` ends the job"
    )


def test_several_alike_are_put_out_after_long_where_others_remember(driver: Any) -> None:
    number = train(driver, "a", "b", "c")
    all_stand(driver, "b", "c")
    begun = driver.now
    while not driver.disconnected:
        driver.now += 0.25
        driver.beat("a", step=17)
        for name in "bc":
            still_s = STILL_S + driver.now - begun
            driver.beat(name, step=17, stalled_s=still_s, still_s=still_s, patience_s=5.0)
    assert driver.now - begun == pytest.approx(ALIKE_PATIENCE_S + 0.25)
    assert "c are stuck alike" in driver.told_of("training_stalled")[0].message
    assert released(driver) == ["b", "c"]
    driver.froze("a", generation=number, step=17)
    assert driver.cluster.run.roster == ["a"]


# --- where nothing is lost -----------------------------------------------------------------------


@pytest.mark.parametrize("saved", [0, 17])
def test_the_last_one_starts_afresh_after_long_where_nothing_is_lost(
    driver: Any, saved: int
) -> None:
    """No step is committed yet, or the last one is on a disk."""
    number = train(driver, "a", step=saved)
    if saved:
        driver.saved_checkpoint("a", generation=number, step=saved)
    driver.beat("a", step=saved, **STUCK)
    assert "no worker waits for it" in driver.told_of("training_stalled")[0].message
    driver.silence(ALIKE_PATIENCE_S - 0.25, "a", job="j-1", step=saved, **STUCK)
    assert driver.disconnected == []
    driver.silence(ALIKE_PATIENCE_S, "a", job="j-1", step=saved, **STUCK)
    assert released(driver) == ["a"]


# --- when replicas that differ are no chance any more --------------------------------------------


def test_nobody_is_blamed_for_what_befalls_all(driver: Any) -> None:
    """Storage hangs for eight seconds."""
    train(driver, "a", "b", "c")
    for quarter in range(24):
        for name in "abc":
            since_s = STILL_S - 0.5 + quarter / 4
            driver.beat(name, step=17, stalled_s=since_s, still_s=since_s, patience_s=5.0)
    assert driver.disconnected == []
    assert [one.worker for one in driver.told_of("training_stalled")] == ["a", "b", "c"]
    assert "no other worker that makes progress holds step 17" in driver.incidents[-1].message
    for name in "abc":
        driver.beat(name, step=18)
    assert [one.worker for one in driver.told_of("training_goes_on")] == ["a", "b", "c"]
    assert driver.core.explain() == ""


def run(*points: tuple[int, str]) -> list[str]:
    known: list[Divergence] = []
    verdicts = []
    for generation, point in enumerate(points, 1):
        known = noted(known, Divergence(generation, *point))
        verdicts.append(why_hopeless(known))
    return verdicts
