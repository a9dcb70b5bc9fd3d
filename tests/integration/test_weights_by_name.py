"""Weights that a job takes over find their parameters by name, or are refused by name."""

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
    daemons.await_idle()  # or one of them might do the job before the other has come back
    words = (f"task.mark='{tmp_path / 'mark'}'", "elastic.min_workers=1")
    job = daemons.submit(*words, text=JOB)
    assert daemons.wait(job)["state"] == "done"
    (event,) = daemons.events("worker_refused", job)
    assert "its optimizer has them in another order" in event["message"]


@pytest.fixture(scope="module")
def tied(daemons: Daemons, dtdctl: Command, tmp_path_factory) -> dict[str, Tensor]:
    """Weights of a model whose first and last layer have one, under the first of its names."""
    job = daemons.submit("task.tied=true", text=JOB)
    assert daemons.wait(job)["state"] == "done"
    return fetched(dtdctl, job, tmp_path_factory.mktemp("tied"))


def begun(dtdctl: Command, directory: Path, values: dict[str, Tensor], *words: str):
    """Submit a job that begins with a file of weights, and wait for its end: (exit code, id)."""
    file, job = directory / "w.safetensors", directory / "job.toml"
    safetensors.torch.save_file(values, file)
    job.write_text(JOB)
    still = ("--no-ship", "--set", "task.lr=0.0", *words, "--weights-from", str(file), "--wait")
    exit_code, out, err = dtdctl("submit", str(job), *still)
    return exit_code, out.strip(), " ".join(err.split())


@pytest.mark.parametrize("kept", ["a.weight", "c.weight"])
def test_a_file_with_one_name_of_a_tied_weight(daemons, dtdctl, tied, tmp_path, kept):
    values = dict(tied)
    values[kept] = values.pop("a.weight")
    exit_code, job, err = begun(dtdctl, tmp_path, values, "--set", "task.tied=true")
    assert exit_code == 0, err
    for name, value in fetched(dtdctl, job, tmp_path / "kept").items():
        assert torch.equal(value, tied[name]), name


def test_a_file_with_two_values_of_a_tied_weight(daemons, dtdctl, tied, tmp_path):
    values = {**tied, "c.weight": tied["a.weight"] + 1}
    exit_code, _job, err = begun(dtdctl, tmp_path, values, "--set", "task.tied=true")
    assert exit_code == 4
    assert "a.weight and c.weight are one weight of the model and have different values" in err


@pytest.mark.parametrize(("there", "strict"), [("module.", ()), ("model.", ("--no-strict",))])
def test_a_prefix_is_taken_away_and_told(daemons, dtdctl, tied, tmp_path, there, strict):
    values = {there + name: value for name, value in tied.items()}
    exit_code, job, err = begun(dtdctl, tmp_path, values, *strict, "--set", "task.tied=true")
    assert exit_code == 0, err
    for name, value in fetched(dtdctl, job, tmp_path / "plain").items():
        assert torch.equal(value, tied[name]), name
    message = daemons.events("weights_renamed", job)[0]["message"]
    assert f'begin with "{there}", which the model\'s do not' in message


def test_a_prefix_is_added(daemons, dtdctl, tied, tmp_path):
    words = ("--set", "task.tied=true", "--set", "task.inside='net'")
    exit_code, job, err = begun(dtdctl, tmp_path, tied, *words)
    assert exit_code == 0, err
    for name, value in fetched(dtdctl, job, tmp_path / "inside").items():
        assert torch.equal(value, tied[name.removeprefix("net.")]), name
    assert daemons.events("weights_renamed", job)
