"""Rows of unusual kinds train on workers, or are refused there in a sentence, before training."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.integration.conftest import Daemons

pytestmark = pytest.mark.integration

JOB = """
[job]
name = "rows"
task = "rows_task:Task"
epochs = 2
global_batch_size = 8
[task]
kind = "records"
[elastic]
settle_s = 0.0
min_workers = 2
"""


@pytest.fixture(scope="module")
def daemons(start_daemons: Callable[[int], Daemons]) -> Daemons:
    """A coordinator and two workers."""
    return start_daemons(2)


def test_a_connection_is_made_and_used_in_one_thread_and_rows_are_dataclasses(
    daemons: Daemons,
) -> None:
    answer = daemons.wait(daemons.submit(text=JOB))
    assert answer["state"] == "done", answer


@pytest.mark.parametrize(
    ("kind", "sentence", "remedy"),
    [
        ("fetched", "SQLite objects created in a thread", "connect in the first fetch()"),
        ("loader", "train_dataset() returned a DataLoader", "return its dataset"),
    ],
)
def test_what_cannot_be_read_is_refused_before_training(
    daemons: Daemons, kind: str, sentence: str, remedy: str
) -> None:
    answer = daemons.wait(daemons.submit(f"task.kind={kind}", text=JOB))
    assert answer["state"] == "failed", answer
    assert sentence in answer["reason"]
    assert remedy in answer["reason"]


POOLED = JOB.replace("rows_task:Task", "pooled_task:Pooled").replace('kind = "records"', "")


def test_slices_of_one_row_are_avoided_where_batch_norm_cannot_use_them(daemons: Daemons) -> None:
    """The last batch of an epoch has two rows: one worker takes both."""
    settings = ("job.global_batch_size=4", "train.digest_every=1")
    answer = daemons.wait(daemons.submit(*settings, text=POOLED))
    assert answer["state"] == "done", answer


def test_a_batch_of_one_row_is_refused_before_training(daemons: Daemons) -> None:
    answer = daemons.wait(daemons.submit("job.global_batch_size=3", text=POOLED))
    assert answer["state"] == "failed", answer
    assert "a micro-batch of step 7 has 1 row" in answer["reason"]
    assert "job.global_batch_size" in answer["reason"]
