"""A job file's settings of local steps and of sharded state."""

from __future__ import annotations

import pytest

from tests.unit.job_file import MINIMAL, problems_of


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ("inner_steps=4", 'has no effect with name = "replicated", only with "local_sgd" or'),
        ("name='local_sgd' outer_lr=1.0", 'has no effect with name = "local_sgd", only with'),
        (
            "name='diloco' inner_steps=0",
            "inner_steps: must be an integer, at least 1 and at most 65536, not 0",
        ),
        ("name='diloco' fragments=2", 'has no effect with name = "diloco", only with "streaming_'),
        (
            "name='streaming_diloco' inner_steps=10",
            "inner_steps: must be a multiple of fragments = 4, not 10",
        ),
        (
            "name='streaming_diloco' inner_steps_double_every=9 inner_steps_max=64",
            'inner_steps_double_every: has no effect with name = "streaming_diloco"',
        ),
        ("name='diloco' inner_steps_max=64", "has no effect without inner_steps_double_every"),
        (
            "name='diloco' inner_steps_double_every=100",
            "inner_steps_max: must be above inner_steps = 16 where rounds grow",
        ),
    ],
)
def test_rounds_that_cannot_be(changes: str, problem: str) -> None:
    overrides = [f"strategy.{change}" for change in changes.split()]
    assert any(problem in one for one in problems_of(MINIMAL, *overrides))


def test_a_round_fits_the_job_and_its_precision() -> None:
    diloco = "strategy.name='diloco'"
    (problem,) = problems_of(MINIMAL, diloco, "job.steps=15")
    assert "[strategy] inner_steps: must be at most the job's 15 steps, not 16" in problem
    (problem,) = problems_of(MINIMAL, diloco, "train.precision='float16'")
    assert "[train] precision: cannot be float16" in problem
    assert 'use "bfloat16"' in problem


SHARDED = "strategy.name='sharded'"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ("strategy.stage=4", "[strategy] stage: must be an integer, at least 1 and at most 3"),
        ("strategy.mirrors=8", "[strategy] mirrors: must be an integer, at least 0 and at most 7"),
        (
            "strategy.codec='int8'",
            'codec: cannot be "int8" with [strategy] name = "sharded"; use "none", "bfloat16" or',
        ),
        ("sync.transport='gloo'", '[sync] transport: must be "ring" with [strategy] name = '),
        (
            "train.ema_decay=0.9",
            '[train] ema_decay: cannot be used with [strategy] name = "sharded"; remove it, or',
        ),
        (
            "checkpoint.directory='/mnt/shared'",
            '[checkpoint] directory: cannot be used with [strategy] name = "sharded": each worker',
        ),
        (
            "checkpoint.copies=2",
            "each part is written by its owner and its mirrors, 2 in all; raise [strategy] mirrors",
        ),
        (
            "strategy.mirrors=3 elastic.max_workers=3",
            "[strategy] mirrors: must be below [elastic] max_workers = 3, not 3",
        ),
    ],
)
def test_what_does_not_go_with_sharded_state(changes: str, problem: str) -> None:
    (found,) = problems_of(MINIMAL, SHARDED, *changes.split())
    assert problem in found


@pytest.mark.parametrize("key", ["stage", "mirrors"])
def test_keys_of_sharded_state_have_no_effect_without_it(key: str) -> None:
    (problem,) = problems_of(MINIMAL, f"strategy.{key}=2")
    assert f'{key}: has no effect with name = "replicated", only with "sharded"' in problem
