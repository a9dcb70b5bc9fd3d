"""A codec's local state: exact through redone steps, zero in a replica that was copied."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from dtd.checkpoint.format import list_checkpoints, read_manifest
from dtd.strategy.choice import CODECS
from tests.numerics.cuts import Cut, ranks_of
from tests.numerics.example_codecs import Rounding

pytestmark = pytest.mark.numerics

SGD = {"name": "sgd", "lr": 0.1, "momentum": 0.9}
STEP = 5


STRATEGIES = {
    "rounding": {"codec": "bfloat16"},
    "int8": {"codec": "int8"},
    "sign": {"codec": "sign"},
    "top_k": {"codec": "top_k", "momentum": 0.9, "density_warmup_steps": 7},
    "random_k": {"codec": "random_k", "momentum": 0.9, "density_warmup_steps": 7},
}


@pytest.fixture(params=STRATEGIES)
def spec(request, arena, monkeypatch):
    arena.chunk_bytes = 4096
    monkeypatch.setitem(CODECS, "bfloat16", Rounding)
    strategy = STRATEGIES[request.param]
    return arena.spec(
        job={"steps": 9},
        optimizer=SGD if "momentum" not in strategy else {**SGD, "momentum": 0.0},
        strategy=strategy,
        sync={"bucket_mib": 0.01},
    )


@pytest.fixture
def task(regression):
    class Task(regression):
        def build_model(self):
            return nn.Sequential(nn.Linear(6, 384), nn.Tanh(), nn.Linear(384, 3))

        def loss(self, model, batch):
            x = batch[0].float()
            return ((model(x) - torch.sin(x[:, :3] + x[:, 3:])) ** 2).mean()

    return Task(48)


def digests(ranks) -> set[str]:
    for rank in ranks:
        if rank.error is not None:
            raise rank.error
    return {rank.outcome.digest for rank in ranks}


@pytest.mark.parametrize("methods", [("wait", "wait"), ("wait", "gather")])
def test_a_redone_step_finds_local_state_as_it_was(arena, task, spec, methods) -> None:
    """Also on a rank that had prepared the step."""
    undisturbed = digests(arena.train(task, spec, 2, job_id="whole"))
    ranks = ranks_of(arena, task, spec, 2)
    meeting = threading.Barrier(2)
    arena.generation(
        ranks, wrap=lambda i, inner: Cut(inner, STEP, method=methods[i], meet=meeting.wait)
    )
    assert [rank.run.committed_step for rank in ranks] == [STEP, STEP]
    for rank in ranks:
        rank.run.adopt_local(1, STEP)
    arena.generation(ranks, generation=2)
    assert digests(ranks) == undisturbed


def test_a_prepared_step_that_is_committed_later_takes_its_local_state_along(
    arena, task, spec
) -> None:
    undisturbed = digests(arena.train(task, spec, 2, job_id="whole"))
    ranks = ranks_of(arena, task, spec, 2)
    meeting = threading.Barrier(2)
    arena.generation(
        ranks, wrap=lambda _, inner: Cut(inner, STEP, method="gather", meet=meeting.wait)
    )
    for rank in ranks:
        assert rank.run.prepared_key == (1, STEP + 1)
        rank.run.adopt_local(1, STEP + 1)
    arena.generation(ranks, generation=2)
    assert digests(ranks) == undisturbed


def test_a_copied_replica_begins_with_none(arena, task, spec) -> None:
    """So it goes on otherwise than one that has gone through the steps, and replicas stay equal."""
    undisturbed = digests(arena.train(task, spec, 2, job_id="whole"))
    ranks = ranks_of(arena, task, spec, 2)
    meeting = threading.Barrier(2)
    arena.generation(ranks, wrap=lambda _, inner: Cut(inner, STEP, meet=meeting.wait))
    ranks[0].run.adopt_local(1, STEP)
    arena.copy_state(ranks[0], ranks[1])
    arena.generation(ranks, generation=2)
    (digest,) = digests(ranks)
    assert digest not in undisturbed


@pytest.mark.parametrize(
    ("strategy", "kept"),
    [
        ({}, set()),
        ({"codec": "bfloat16"}, set()),
        ({"codec": "int8"}, {"residual of int8"}),
        ({"codec": "top_k", "momentum": 0.0}, {"residual of top_k"}),
        ({"codec": "top_k", "momentum": 0.9}, {"residual of top_k", "velocity of top_k"}),
        ({"codec": "powersgd", "rank": 1, "start_step": 2}, set()),
        ({"codec": "powersgd", "rank": 1}, {"residual of powersgd"}),
        ({"codec": "powersgd", "rank": 1, "error_feedback": False}, set()),
        ({"name": "diloco", "inner_steps": 2}, {"inner optimizer"}),
        (
            {"name": "local_sgd", "inner_steps": 2, "codec": "int8"},
            {"inner optimizer", "residual of int8"},
        ),
        ({"name": "local_sgd", "inner_steps": 2, "local_start_step": 4}, set()),
        (
            {"name": "streaming_diloco", "inner_steps": 2, "fragments": 2},
            {"inner optimizer", "drift"},
        ),
    ],
)
def test_a_checkpoint_says_which_local_state_it_lacks(arena, task, strategy, kept) -> None:
    optimizer = {**SGD, "momentum": 0.0} if "momentum" in strategy else SGD
    spec = arena.spec(job={"steps": 2}, optimizer=optimizer, strategy=strategy)
    arena.train(task, spec, 1)
    (saved,) = list_checkpoints(arena.directory / "w0/checkpoints", "job")
    assert read_manifest(saved).local_state == dict.fromkeys(kept, "zero")
