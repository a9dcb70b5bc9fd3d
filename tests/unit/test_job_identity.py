"""Identities tell a job from another one of the same id; some fields may change in one."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.job import parse_job, to_mapping
from dtd.job.identity import folder_of, identity_of, spec_hash

TEXT = """
[job]
name = "digits"
task = "digits"
epochs = 3
global_batch_size = 64
[task]
width = 3
"""


def settings(*overrides: str) -> dict[str, Any]:
    return to_mapping(parse_job(TEXT, source="test", overrides=overrides))


def test_identity_names_store_epoch_job_and_settings() -> None:
    known = settings()
    identity = identity_of("5a", 2, "digits-3", known)
    assert identity == f"5a.2.digits-3.{spec_hash(known)}"
    others = {
        identity_of("5b", 2, "digits-3", known),
        identity_of("5a", 3, "digits-3", known),
        identity_of("5a", 2, "digits-4", known),
        identity_of("5a", 2, "digits-3", settings("job.seed=1")),
    }
    assert len({folder_of("digits-3", one) for one in others | {identity}}) == 5


@pytest.mark.parametrize(
    "override",
    [
        "job.seed=1",
        "job.global_batch_size=32",
        "job.task=mnist",
        "task.width=4",
        "optimizer.name=adam",
    ],
)
def test_settings_that_make_another_state(override: str) -> None:
    assert spec_hash(settings(override)) != spec_hash(settings())


@pytest.mark.parametrize(
    "override",
    [
        "job.epochs=9",
        "job.name=else",
        "optimizer.lr=0.5",
        "elastic.min_workers=3",
        "checkpoint.keep=9",
        "strategy.codec=bfloat16",
        "strategy.codec=float16",
    ],
)
def test_settings_that_may_change(override: str) -> None:
    assert spec_hash(settings(override)) == spec_hash(settings())


def test_folder_is_short_and_of_a_job_of_the_first_release_its_id() -> None:
    assert folder_of("digits-3", "") == "digits-3"
    folder = folder_of("digits-3", identity_of("5a", 1, "digits-3", settings()))
    assert folder.startswith("digits-3.")
    assert len(folder) == len("digits-3.") + 10
