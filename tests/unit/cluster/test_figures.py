"""Figures and environments that workers report."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dtd.cluster import figures
from dtd.cluster.figures import MAX_CHARACTERS, MAX_ENTRIES, heard, told
from dtd.wire import messages as m

# --- workers' reports of a job's result become values that JSON can hold, and bounded ------------


NAN, INF = float("nan"), float("inf")


def test_what_is_not_finite_is_null_wherever_it_is() -> None:
    said = {"a": NAN, "b": [INF, 1, (2.5, -INF)], "c": {"d": NAN, "e": "nan"}, "f": None}
    kept = figures.finite(said)
    assert kept == {"a": None, "b": [None, 1, [2.5, None]], "c": {"d": None, "e": "nan"}, "f": None}
    assert json.loads(json.dumps(kept, allow_nan=False)) == kept


@pytest.mark.parametrize("alien", [b"octets", [1], {"a": 1}, True, "words", object()])
def test_what_is_no_figure_is_no_part_of_a_result(alien: Any) -> None:
    assert figures.result({"steps": 3, "x": alien, "eval_loss": None}) == {
        "steps": 3,
        "eval_loss": None,
    }


def test_a_result_is_bounded() -> None:
    words = "w" * (figures.MAX_WORDS + 1)
    assert len(figures.result({"ended_early": words})["ended_early"]) == figures.MAX_WORDS
    many = {f"x{number}": 1.0 for number in range(figures.MAX_FIGURES + 1)}
    assert list(figures.result(many)) == list(many)[: figures.MAX_FIGURES]
    assert list(figures.metrics(many)) == list(many)[: figures.MAX_FIGURES]
    long = "n" * (figures.MAX_NAME_CHARACTERS + 1)
    assert (figures.result({long: 1.0, 7: 2.0}), figures.metrics({long: 1.0})) == ({}, {})


def test_a_finished_job_holds_plain_figures_whatever_rank_0_says(driver: Any) -> None:
    job = driver.submit()
    number = driver.run_generation("a")
    driver.say("a", m.Evaluated(job="j-1", step=9, metrics={"loss": NAN, "accuracy": 0.5}))
    said = {"steps": 10, "train_loss": NAN, "x": b"\x01", "ended_early": "it is enough"}
    driver.finished("a", generation=number, result=said)
    assert (job.result["train_loss"], job.result["ended_early"]) == (None, "it is enough")
    assert job.result["metrics"] == {"loss": None, "accuracy": 0.5}
    assert "x" not in job.result
    json.dumps(job.result, allow_nan=False)


# --- a worker's report of its software and hardware is bounded -----------------------------------


def test_what_is_told_is_heard() -> None:
    said = {"torch": "2.14.0+cpu", "processor": "A = B", "libc": ""}
    assert heard(told(said)) == said


def test_lies_are_cut() -> None:
    assert heard(["nothing", "=value", "a" * 300 + "=" + "b" * 300]) == {
        "a" * MAX_CHARACTERS: "b" * MAX_CHARACTERS
    }
    assert len(heard(f"{number}=x" for number in range(MAX_ENTRIES + 5))) == MAX_ENTRIES
