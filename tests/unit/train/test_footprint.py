"""Sizes of a state before its first step, and jobs that do not fit a worker."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import dtd.train.memory as footprint
from dtd.doctor.state_memory import TRAINING_BYTES, Room
from dtd.errors import TaskError
from dtd.train.measure import measure
from dtd.train.memory import optimizer_bytes
from tests.unit.train.small_job import spec


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


def test_parameters_that_are_there_already_are_not_counted_twice(monkeypatch) -> None:
    """4000 parameters: 16 bytes each with AdamW, four of which the model has taken before."""
    figures = measure(spec(), device="cpu", threads=1, worlds=[1], limit_s=0.0)
    state = figures["state"]
    needed = sum(state[part] for part in ("optimizer_bytes", "common_bytes", "gradient_bytes"))
    needed += 2 * state["parameter_bytes"]
    left = needed - state["parameter_bytes"] - state["common_bytes"] + TRAINING_BYTES
    assert state["optimizer_bytes"] == 2 * state["parameter_bytes"]
    for missing, refused in ((0, False), (1, True)):
        room = Room(bytes=left - missing, limit="here")
        monkeypatch.setattr(footprint, "available_memory", lambda _device, room=room: room)
        try:
            measure(spec(), device="cpu", threads=1, worlds=[1], limit_s=0.0)
        except TaskError:
            assert refused
        else:
            assert not refused


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


def test_pieces_of_a_batch_that_are_exchanged_one_by_one_have_the_last_ones_buckets():
    changes = ("strategy.stage=2", "train.grad_accumulation=2")
    figures = measure(spec(*SHARDED, *changes), device="cpu", threads=1, worlds=[4], limit_s=0.0)
    whole = measure(spec(changes[1]), device="cpu", threads=1, worlds=[4], limit_s=0.0)
    assert figures["buckets"] == whole["buckets"]
    assert len(figures["worlds"]["4"]["ready_s"]) == len(whole["buckets"])


def test_a_divided_state_is_measured_in_worlds_that_the_job_allows(monkeypatch):
    """Three workers: 8 + 8 / 3 bytes a parameter fit, and 16 would not."""
    least = measure(spec(), device="cpu", threads=1, worlds=[1], limit_s=0.0)["state"]
    left = least["parameter_bytes"] + least["optimizer_bytes"] // 3 + 1 + TRAINING_BYTES
    left += least["gradient_bytes"]
    room = Room(bytes=left, limit="here")
    monkeypatch.setattr(footprint, "available_memory", lambda _device: room)
    few = spec(*SHARDED, "elastic.min_workers=3")
    figures = measure(few, device="cpu", threads=1, worlds=[1, 2, 3, 4], limit_s=0.0)
    assert set(figures["worlds"]) == {"3", "4"}
    narrow = measure(
        spec("strategy.codec='bfloat16'", *SHARDED, "elastic.min_workers=3"),
        device="cpu",
        threads=1,
        worlds=[3],
        limit_s=0.0,
    )
    assert narrow["buckets"] == figures["buckets"]
    assert set(measure(few, device="cpu", threads=1, worlds=[1], limit_s=0.0)["worlds"]) == {"3"}
    fewer = spec(*SHARDED, "elastic.min_workers=2")
    with pytest.raises(TaskError, match="in each worker among 2 workers"):
        measure(fewer, device="cpu", threads=1, worlds=[1, 2], limit_s=0.0)
