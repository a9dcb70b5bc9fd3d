"""In which settings jobs differ, and which of them a whole state does not survive."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.job import parse_job, to_mapping
from dtd.job.differences import (
    Difference,
    changed_settings,
    differences,
    differing,
    obstacles,
)
from dtd.text.names import MOST_STEPS

JOB = """
[job]
name = "a"
task = "digits"
epochs = 2
global_batch_size = 64
"""


def spec(*overrides: str) -> dict[str, Any]:
    return to_mapping(parse_job(JOB, source="test", overrides=overrides))


def test_a_setting_that_an_older_dtd_did_not_know_has_its_default() -> None:
    older = spec()
    del older["train"]["digest_every"]
    assert differences(older, spec()) == []
    assert differences(older, spec("train.digest_every=1")) == [
        Difference("train.digest_every", 25, 1)
    ]


def test_what_a_script_sets_itself_is_not_shown_as_a_number() -> None:
    shown = dict(changed_settings(spec(f"job.steps={MOST_STEPS}", 'task.args=["--lr", "0.1"]')))
    assert shown["job.steps"] == shown["job.global_batch_size"] == "set by the script"
    assert shown["task.args"] == '["--lr", "0.1"]'


@pytest.mark.parametrize(
    ("override", "hinders"),
    [
        ("job.seed=1", True),
        ("job.global_batch_size=32", True),
        ("optimizer.momentum=0.9", True),
        ('optimizer.name="adamw"', True),
        ("optimizer.lr=0.5", False),
        ("job.epochs=9", False),
        ('schedule.name="cosine"', False),
        ("checkpoint.keep=9", False),
        ("task.width=8", False),
        ("strategy.name='diloco'", True),
        ("strategy.name='sharded'", False),  # its parts make the same state
        ("strategy.codec='bfloat16'", False),
    ],
)
def test_what_a_whole_state_does_not_survive(override: str, hinders: bool) -> None:
    assert bool(obstacles(differences(spec(), spec(override)))) is hinders


def test_the_settings_that_differ_among_jobs_of_one_task() -> None:
    specs = [
        spec(),
        spec("optimizer.lr=0.5", "job.name=b"),
        spec("task.width=8"),
        spec("job.task=mnist", "optimizer.lr=0.7"),
    ]
    assert differing(specs) == [
        {"optimizer.lr": 0.1},
        {"optimizer.lr": 0.5},
        {"optimizer.lr": 0.1, "task.width": 8},
        {},
    ]
    assert differing([]) == []
