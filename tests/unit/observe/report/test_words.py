"""Each sentence follows from figures, and other figures make another sentence."""

from __future__ import annotations

import math

import pytest

from dtd.observe.report import words
from dtd.observe.report.facts import facts_of
from tests.unit.observe.report.conftest import EVENTS, details, event, metrics


def said(facts, against=None) -> str:
    return "\n".join(words.interpretation(facts, against))


def of(job=None, events=EVENTS, **curves) -> str:
    return said(facts_of(details(**(job or {})), [metrics(**curves)], events))


def test_a_job_that_never_trained(untrained, facts) -> None:
    (only,) = words.interpretation(untrained)
    assert only.startswith("idle-3 never trained a step; it is failed: <script>")
    older = facts_of(details("old-1"), [], [])
    assert "has trained 100 steps, and their figures are not known" in said(older)
    assert "Nothing to compare with: idle-3 never trained" in said(facts, untrained)


def test_the_whole_of_an_ordinary_job(facts) -> None:
    text = said(facts)
    assert "The job is done after 100 steps in 1m30s." in text
    assert "training loss fell from 0.9133 to 0.02041" in text
    assert "Best accuracy: 0.98, at step 60; the last was 0.97." in text
    assert "It trained 300/s with 2 workers, 360/s with 3 workers" in text
    assert "3 workers are 1.20 times as fast as 2 (efficiency 80 %)" in text
    assert "most of the loss is time in which training waits for communication" in text
    assert "waits for communication in 22 % of a step; 38 % of the exchange is hidden" in text
    assert "it limits this job" in text
    assert "w-2 needs 50 % more time of its own" in text
    assert (
        "It recovered once, the longest in 1.50 s; 1 step redone, 0 committed steps lost." in text
    )


@pytest.mark.parametrize(
    ("curves", "sentence"),
    [
        ({"loss": lambda step: 1.0 + step}, "rose from .* It did not learn"),
        ({"loss": lambda step: 0.5 + 2.0 / step**2}, "less than 1 %: more of the same"),
        ({"loss": lambda step: math.nan if step == 5 else 1.0 / step}, "diverged at times"),
        ({"exposed_s": lambda step: 0.001}, "it does not limit this job"),
        ({"exposed_s": lambda step: 0.02}, "costs something, but does not limit"),
        ({"exposed_s": lambda step: 0.12}, "0.0 % of the exchange is hidden: .*still compute"),
        ({"data_s": lambda step: 0.1}, "Rank 0 waits for its rows in 55 % of a step"),
        ({"step_s": lambda step: 0.2 if step < 51 else 0.14}, "efficiency 95 %.*pay off"),
        (
            {"exposed_s": lambda step: 0.01},
            "explains less than half of the loss; the batch is small",
        ),
    ],
)
def test_other_figures_say_something_else(curves, sentence) -> None:
    import re

    assert re.search(sentence, of(**curves)), of(**curves)
    assert not re.search(sentence, of())


def test_quiet_and_unfinished_jobs() -> None:
    quiet = [one for one in EVENTS if one["kind"] == "generation_running"]
    assert "Nothing broke." in of(events=quiet)
    failed = of({"state": "failed", "reason": "the task raised ValueError"}, events=quiet)
    assert "The job is failed (the task raised ValueError)" in failed
    assert "Nothing broke." not in failed
    lost = event("worker_lost", worker="w-1")
    assert "Lost workers: w-1." in of(events=[*quiet, lost])
    stopped = of({"state": "cancelled", "reason": "by bob", "total_steps": 400, "ended_s": None})
    assert "The job is cancelled (by bob) after 100 of 400 steps." in stopped


def test_a_job_beside_one_of_one_worker(facts, alone) -> None:
    text = said(facts, alone)
    assert "Against alone-2 (1 worker): 2.40 times its rate with 3 workers, efficiency 80 %" in text
    assert "A loss of 0.02041 was reached at step 98 after 19s; by alone-2 at step 98" in text
    assert "Best accuracy: 0.98, alone-2 0.98 (difference +0)" in text
    assert "One worker exchanges nothing" in said(alone)


def test_the_better_of_a_metric_is_the_jobs_choice() -> None:
    spec = details()["spec"]
    chosen = spec | {"checkpoint": {"best_metric": "accuracy", "best_mode": "min"}}
    assert "Best accuracy: 0.5, at step 20" in of({"spec": chosen})
