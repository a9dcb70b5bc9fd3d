"""Tasks put together by chance: trained as plain torch trains them, or refused before training.

`python -m scripts.fuzz_jobs` trains thousands; its figures are in docs/evaluation.md.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, seed, settings

from tests.jobs.recipe import Recipe, made, recipes
from tests.jobs.verdict import judge

BLOCKS = 2
JOBS = 20


@pytest.mark.parametrize("block", range(BLOCKS))
def test_jobs_agree_with_plain_torch_or_are_refused(block: int) -> None:
    @seed(block)
    @settings(
        max_examples=JOBS,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(recipes())
    def train(recipe: Recipe) -> None:
        verdict = judge(recipe)
        assert verdict.kind != "fails", verdict.why

    train()


@pytest.mark.parametrize(
    ("strategy", "event"),
    [
        ("replicated", "cut gather"),
        ("replicated", "stop"),
        ("stage 1", "cut start"),
        ("stage 1", "yield"),
        ("stage 2", "cut wait"),
        ("stage 2", "stop"),
        ("stage 3", "cut wait"),
        ("stage 3", "cut gather"),
        ("stage 3", "stop"),
    ],
)
def test_a_plain_job_agrees_whatever_interrupts_it(strategy: str, event: str) -> None:
    recipe = made(3, ("linear", "dropout"), [(2, event, 1)], strategy=strategy, mirrors="1")
    assert judge(recipe).kind == "agrees"


def test_a_difference_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.jobs.oracle.CLIP_NORM", 0.2)
    verdict = judge(made(clip="yes"))
    assert (verdict.kind, verdict.why[:11]) == ("fails", "the weights")
