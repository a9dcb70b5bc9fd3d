"""Replicas that differ: whose memory counts, and when that is no chance any more."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.cluster.events import Submitted
from dtd.cluster.generation.digests import (
    MAX_DIVERGENCES,
    Divergence,
    noted,
    remembered,
    why_hopeless,
)
from dtd.cluster.records import Job
from dtd.wire import messages as m

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


# --- when replicas that differ are no chance any more --------------------------------------------


def run(*points: tuple[int, str]) -> list[str]:
    known: list[Divergence] = []
    verdicts = []
    for generation, point in enumerate(points, 1):
        known = noted(known, Divergence(generation, *point))
        verdicts.append(why_hopeless(known))
    return verdicts


def test_the_same_entry_at_the_same_step_twice_is_no_chance() -> None:
    assert run((50, "model.d"), (50, "model.d")) == [
        "",
        "replicas differ again after step 50, again in model.d",
    ]


def test_what_differs_may_be_unknown() -> None:
    assert run((50, ""), (50, ""))[1] == "replicas differ again after step 50"


def test_bits_that_flip_at_different_points_are_chance() -> None:
    assert not any(run((50, "model.w"), (100, "model.w"), (150, "model.w"), (200, "model.w")))
    assert not any(run((50, "model.w"), (50, "model.b")))


def test_what_was_passed_does_not_count() -> None:
    assert not any(run((50, "model.w"), (100, "model.b"), (50, "model.w")))
    assert not any(run((50, "model.w"), (100, "model.b"), (51, "model.w")))


def test_differing_without_end_is_no_chance_whatever_differs() -> None:
    verdicts = run(*((50, f"model.{number}") for number in range(MAX_DIVERGENCES)))
    assert verdicts[-1] == "replicas have differed 4 times, the last time after step 50"
    assert not any(verdicts[:-1])


def test_members_of_one_generation_report_one_divergence() -> None:
    """Also to a coordinator that has just started, and knows it from its store."""
    known = remembered([[3, 50, ""]])
    for entry in ("model.w", "", "model.w"):
        known = noted(known, Divergence(3, 50, entry))
        assert why_hopeless(known) == ""
    assert known == [Divergence(3, 50, "model.w")]
    assert why_hopeless(noted(known, Divergence(4, 50, "model.w")))
