"""Terms of a job that the coordinator reads, and the identity of a job."""

from __future__ import annotations

from typing import Any

import pytest

from dtd import job
from dtd.job import parse_job, to_mapping
from dtd.job.terms import folder_of, identity_of, spec_hash, terms_of

FULL: dict[str, dict[str, Any]] = {
    "job": {"name": "j", "task": "digits", "epochs": 3, "global_batch_size": 64},
    "elastic": {
        "min_workers": 2,
        "max_workers": 4,
        "settle_s": 0.5,
        "warmup_timeout_s": 7.0,
        "stall_timeout_s": 8.0,
        "busy_timeout_s": 9.0,
    },
    "checkpoint": {"copies": 2},
}


def test_what_is_missing_has_the_default_of_the_job_file() -> None:
    """A specification of an earlier release, whose tables had fewer settings."""
    least = {"job": {"name": "j", "task": "digits", "steps": 5, "global_batch_size": 64}}
    whole = job.to_mapping(job.from_mapping(least, source="test"))
    assert terms_of(least) == terms_of(whole)
    assert terms_of(least).epochs is None


# --- identity ------------------------------------------------------------------------------------


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
