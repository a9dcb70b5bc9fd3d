"""Each sentence follows from figures, and other figures make another sentence."""

from __future__ import annotations

import math

import pytest

from dtd.observe.report import words
from dtd.observe.report.document import document_of
from dtd.observe.report.facts import facts_of
from tests.unit.observe.report.conftest import EVENTS, STEPS, details, metrics


def said(facts, against=None) -> str:
    return "\n".join(words.interpretation(facts, against))


def of(job=None, events=EVENTS, **curves) -> str:
    return said(facts_of(details(**(job or {})), [metrics(**curves)], events))


def test_a_job_that_never_trained(untrained, facts) -> None:
    (only,) = words.interpretation(untrained)
    assert only.startswith("idle-3 never trained a step; it failed: <script>")
    older = facts_of(details("old-1"), [], [])
    assert "has trained 100 steps, and their figures are not known" in said(older)
    assert "Nothing to compare with: idle-3 never trained" in said(facts, untrained)


def test_the_whole_of_an_ordinary_job(facts) -> None:
    text = said(facts)
    assert "The job finished after 100 steps in 1m30s." in text
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


def test_the_last_loss_is_that_of_the_last_step() -> None:
    assert facts_of(details(result={}), [metrics()], []).last_loss == 2.0 / STEPS
    assert facts_of(details(result={"train_loss": 0.5}), [metrics()], []).last_loss == 0.5


def test_a_metric_that_never_was_a_number_is_named_and_drawn_nowhere() -> None:
    answer = metrics()
    nothing = [[at, at, 0, None, None, None] for at in (20, 60)]
    answer["series"].append(
        {"name": "eval/score", "kind": "evaluations", "source": "", "to": "", "points": nothing}
    )
    found = facts_of(details(), [answer], [])
    assert found.without_numbers == ["score"]
    assert list(found.evaluations) == ["accuracy"]
    document = document_of(found, None, made="now")
    assert "score was not a finite number in any evaluation." in str(document)
