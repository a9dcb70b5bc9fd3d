"""What a job takes over finds its parameter by name, or is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

from tests.integration.conftest import Command, Daemons

pytestmark = pytest.mark.integration

JOB = """
[job]
name = "layered"
task = "layered_task:Layered"
steps = 6
global_batch_size = 16
seed = 5
[train]
digest_every = 1
[elastic]
settle_s = 0.0
min_workers = 2
"""


@pytest.fixture(scope="module")
def daemons(start_daemons: Callable[[int], Daemons]) -> Daemons:
    """A coordinator and two workers."""
    return start_daemons(2)


@pytest.fixture(scope="module")
def parent(daemons: Daemons) -> str:
    """A job of six steps that is done."""
    job = daemons.submit(text=JOB)
    assert daemons.wait(job)["state"] == "done"
    return job


def fetched(dtdctl: Command, job: str, directory: Path) -> dict[str, Tensor]:
    exit_code, _out, err = dtdctl("fetch", job, str(directory))
    assert exit_code == 0, err
    return safetensors.torch.load_file(directory / "model.safetensors")


def test_a_job_goes_on_with_its_parameters_in_another_order(daemons, dtdctl, parent, tmp_path):
    words = ("job.steps=12", "task.order='cab'")
    child = daemons.submit(*words, text=JOB, from_job=parent, from_mode="resume")
    answer = daemons.wait(child)
    assert answer["state"] == "done", answer
    whole = daemons.submit(words[0], text=JOB)
    assert daemons.wait(whole)["state"] == "done"
    expected = fetched(dtdctl, whole, tmp_path / "whole")
    for name, value in fetched(dtdctl, child, tmp_path / "child").items():
        assert torch.equal(value, expected[name]), name


def test_a_state_of_other_parameters_is_refused_by_name(daemons, parent):
    words = ("job.steps=12", "task.frozen='b'")
    answer = daemons.wait(daemons.submit(*words, text=JOB, from_job=parent, from_mode="resume"))
    assert answer["state"] == "failed"
    assert "b.weight is only in the state's; b.bias is only in the state's" in answer["reason"]


def test_a_worker_with_another_order_is_refused_in_the_warm_up(daemons, tmp_path):
    words = (f"task.mark='{tmp_path / 'mark'}'", "elastic.min_workers=1")
    job = daemons.submit(*words, text=JOB)
    assert daemons.wait(job)["state"] == "done"
    (event,) = daemons.events("worker_refused", job)
    assert "its optimizer has them in another order" in event["message"]
