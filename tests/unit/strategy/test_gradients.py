"""Buckets that fill during backward."""

from __future__ import annotations

import math
import struct

import pytest
import torch
from torch import nn

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
