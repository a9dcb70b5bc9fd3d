"""Memory of a job: what its state will take, and what a worker without room says."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import dtd.train.memory.calculated as footprint
from dtd.doctor.memory import TRAINING_BYTES, Room
from dtd.errors import TaskError
from dtd.train.memory.calculated import optimizer_bytes
from dtd.train.warm_up.measure import measure
from tests.unit.train.small_job import spec

CPU = torch.device("cpu")


def made(kind, **options) -> torch.optim.Optimizer:
    return kind([nn.Parameter(torch.ones(100))], **options)


@pytest.mark.parametrize(
    "optimizer",
    [
        made(torch.optim.SGD),
        made(torch.optim.SGD, momentum=0.9),
        made(torch.optim.Adam),
        made(torch.optim.Adam, amsgrad=True),
        made(torch.optim.AdamW),
        made(torch.optim.NAdam),
        made(torch.optim.RAdam),
        made(torch.optim.Adamax),
        made(torch.optim.RMSprop),
        made(torch.optim.RMSprop, momentum=0.9, centered=True),
        made(torch.optim.Adagrad),
        made(torch.optim.Adadelta),
        made(torch.optim.ASGD),
        made(torch.optim.Rprop),
    ],
    ids=lambda optimizer: type(optimizer).__name__,
)
def test_what_an_optimizer_will_keep_is_known_before_its_first_step(optimizer) -> None:
    said = optimizer_bytes(optimizer)
    (parameter,) = optimizer.param_groups[0]["params"]
    parameter.grad = torch.ones(100)
    optimizer.step()
    kept = optimizer.state[parameter].values()
    shaped = [value for value in kept if torch.is_tensor(value) and value.shape == (100,)]
    assert said == 400 * len(shaped)


def test_a_job_that_cannot_fit_is_refused_before_its_first_step(monkeypatch) -> None:
    room = Room(bytes=1000, limit="memory limit of the control group /dtd")
    monkeypatch.setattr(footprint, "available_memory", lambda _device: room)
    with pytest.raises(TaskError, match=r"the state needs .* in each worker \(parameters ") as told:
        measure(spec(), device="cpu", threads=1, worlds=[1], limit_s=0.0)
    message = told.value.message
    assert re.search(r"and 0 B are available, beside \d+\.\d [MG]iB of the process", message), (
        message
    )
    assert "of the process (memory limit of the control group /dtd)" in message
    assert told.value.remedy.startswith("use workers with more memory")


# --- a state that is divided, measured without a ring ---------------------------------------------


SHARDED = ("strategy.name='sharded'", "strategy.mirrors=0")


def test_a_divided_state_takes_its_share_and_a_step_has_the_buckets_of_any():
    figures = measure(spec(*SHARDED), device="cpu", threads=1, worlds=[1, 4], limit_s=0.0)
    whole = measure(spec(), device="cpu", threads=1, worlds=[1, 4], limit_s=0.0)
    assert figures["buckets"] == whole["buckets"]
    assert all(len(one["ready_s"]) == len(whole["buckets"]) for one in figures["worlds"].values())
    assert figures["state"] == whole["state"]
    moments = whole["state"]["optimizer_bytes"]
    assert figures["memory"]["optimizer"] == pytest.approx(moments / 4, rel=0.05)
    assert figures["memory"]["parameters"] == whole["memory"]["parameters"]
    said = {(one["strategy"], one["codec"]): one for one in figures["candidates"]}
    assert (said["sharded", "none"]["stage"], said["sharded", "none"]["mirrors"]) == (1, 0)
    assert "stage" not in said["replicated", "none"]


def test_a_divided_state_is_measured_in_worlds_that_the_job_allows(monkeypatch):
    """Three workers: 8 + 8 / 3 bytes a parameter fit, and 16 would not."""
    least = measure(spec(), device="cpu", threads=1, worlds=[1], limit_s=0.0)["state"]
    left = least["parameter_bytes"] + least["optimizer_bytes"] // 3 + 1 + TRAINING_BYTES
    left += least["gradient_bytes"]
    room = Room(bytes=left, limit="here")
    monkeypatch.setattr(footprint, "available_memory", lambda _device: room)
    few = spec(*SHARDED, "elastic.min_workers=3")
    figures = measure(few, device="cpu", threads=1, worlds=[1, 2, 4], limit_s=0.0)
    assert set(figures["worlds"]) == {"4"}
    fewer = spec(*SHARDED, "elastic.min_workers=2")
    with pytest.raises(TaskError, match="in each worker among 2 workers"):
        measure(fewer, device="cpu", threads=1, worlds=[1, 2], limit_s=0.0)
