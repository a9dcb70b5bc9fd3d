"""Buckets that fill during backward."""

from __future__ import annotations

import math
import struct

import pytest
import torch
from torch import nn

from dtd.errors import TaskError
from dtd.exchange.schedule.buckets import plan_buckets
from dtd.strategy.buckets import Gradients, HostBuckets, layouts_of, parameter_shapes


def gradients_of(model: nn.Module, bucket_bytes: int = 1) -> tuple[Gradients, HostBuckets]:
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    plan = plan_buckets(
        parameter_shapes(named), bucket_bytes=bucket_bytes, first_bucket_bytes=bucket_bytes
    )
    parameters = [p for _, p in named]
    buckets = HostBuckets(layouts_of(parameters, plan))
    return Gradients(parameters, plan, buckets), buckets


def chain(depth: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(depth)))


def test_buckets_leave_while_backward_runs_last_layer_first() -> None:
    model, events = chain(), []
    gradients, _buckets = gradients_of(model)
    gradients.begin(lambda: None)
    gradients.submit_when_full(events.append)
    out = model[1](model[0](torch.ones(2, 4)))
    out.register_hook(lambda _: events.append("reached layer 1"))
    model[2](out).sum().backward()
    events.append("backward is over")
    gradients.finish(events.append)
    assert [event for event in events if isinstance(event, int)] == [0, 1, 2]
    assert events.index("reached layer 1") < events.index(1)
    assert events[-1] == "backward is over"


def test_what_is_missing_is_zero_and_leaves_at_the_end() -> None:
    model, started = chain(), []
    gradients, buckets = gradients_of(model)
    gradients.begin(lambda: None)
    model(torch.ones(1, 4)).sum().backward()
    gradients.begin(lambda: None)  # the step was discarded; its values are still in the buckets
    gradients.submit_when_full(started.append)
    model[0](torch.ones(1, 4)).sum().backward()
    assert started == [2]
    gradients.finish(started.append)
    assert started == [2, 0, 1]
    assert gradients.present == [True, False, False]
    assert [any(memory.view) for memory in buckets.exchanges(0)] == [False, False, True]


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_the_norm_is_of_what_came_back(value) -> None:
    """Also where one of two buckets has become something that is not finite."""
    model = chain(2)
    gradients, buckets = gradients_of(model)
    gradients.begin(lambda: None)
    model(torch.ones(1, 4)).sum().backward()
    gradients.finish(lambda bucket: None)
    buckets.wait(lambda bucket: None)
    assert math.isfinite(buckets.norm())

    def damage(bucket: int) -> None:
        if bucket == 0:
            buckets.exchanges(0)[0].view[:4] = struct.pack("=f", value)

    buckets.wait(damage)
    assert not math.isfinite(buckets.norm())


def test_what_is_lent_is_recalled_before_sums_change_and_never_in_an_open_step() -> None:
    model = chain(1)
    gradients, buckets = gradients_of(model)
    lent = buckets.exchanges(0)[0].home.memory
    loans = []

    def note(*_arguments: object) -> None:
        loans.append(lent.version)

    for _ in range(2):  # a step's loan has its number when the step is opened, before `begin`
        note()
        gradients.begin(note)
        gradients.submit_when_full(note)
        model(torch.ones(1, 4)).sum().backward()
        gradients.finish(note)
        buckets.wait(note)
        gradients.expose([True])
    assert loans == [1] * 4 + [2] * 4
    buckets.revoke()
    assert lent.version == 4
    gradients.close()


def arrive(parameter: nn.Parameter) -> None:
    """As autograd does it where a block that is recomputed runs for the second time."""
    (parameter.sum() * 2).backward()


def test_a_gradient_that_comes_twice_counts_once_and_only_before_its_bucket_has_left() -> None:
    model, started = chain(2), []
    first, last = model[0].weight, model[1].weight
    gradients, _buckets = gradients_of(model, bucket_bytes=1 << 20)
    gradients.begin(lambda: None)
    gradients.submit_when_full(started.append)
    arrive(last)
    arrive(last)
    assert started == [], "the other gradient of the bucket is missing"
    arrive(first)
    assert started == [0]
    assert last.grad is not None
    assert last.grad.unique().tolist() == [4.0]
    with pytest.raises(TaskError, match=r"1\.weight has received a gradient twice") as caught:
        arrive(last)
    assert "use_reentrant=False" in caught.value.remedy
