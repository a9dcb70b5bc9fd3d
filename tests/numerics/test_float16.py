"""Gradients that travel as float16: against torch's own hook, and beyond the range."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor

from dtd.exchange.in_process import InProcessRing
from dtd.strategy.codec.api import World
from dtd.strategy.codec.narrow import float16
from dtd.strategy.coded_buckets import make_buckets
from tests.unit.strategy.codec.narrowed import flat_of

pytestmark = pytest.mark.numerics

CPU = torch.device("cpu")
GLOO_WORLD = Path(__file__).with_name("gloo_world.py")
WORLD = 3
UNIT = 2.0**-11
SMALLEST = 2.0**-24
"""The least float16 above 0; half of it may be lost in each rounding among subnormals."""


def gradients(rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(rank)
    powers = torch.randint(-6, 3, (4097,), generator=generator)
    found = torch.randn(4097, generator=generator) * 10.0**powers
    found[0], found[1], found[2] = 1e6 * WORLD, float("nan"), 3e-9
    return found


def ring_means(chunk_bytes: int) -> list[Tensor]:
    ring = InProcessRing(WORLD, chunk_bytes=chunk_bytes)

    def work(rank: int) -> Tensor:
        collective = ring.collective(rank)
        staging = make_buckets([flat_of(4097)], CPU, float16())
        staging.regroup(World(rank=rank, size=WORLD))
        collective.open_step(0, staging.exchanges(0))
        staging.begin(1.0)
        staging.flats[0].copy_(gradients(rank) / WORLD)  # as a rank's share of the batch does
        staging.send(0, collective.start)
        staging.receive(0, collective.wait)
        collective.gather(b"")
        collective.close_step()
        staging.close()
        return staging.flats[0].clone()

    with ThreadPoolExecutor(WORLD) as pool:
        return list(pool.map(work, range(WORLD)))


@pytest.fixture(scope="module")
def hook_means(tmp_path_factory) -> Tensor:
    """The result of DDP's fp16_compress_hook for the same gradients, over Gloo."""
    directory = tmp_path_factory.mktemp("hook")
    for rank in range(WORLD):
        save_file({"gradients": gradients(rank)}, directory / f"{rank}.safetensors")
    subprocess.run(
        [sys.executable, GLOO_WORLD, str(WORLD), directory, "fp16_compress_hook"],
        env={"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=90,
    )
    return load_file(directory / "0.sums.safetensors")["gradients"]


@pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch was built without Gloo")
@pytest.mark.parametrize("chunk_bytes", [128, 1 << 20])
def test_means_are_those_of_torchs_hook_to_rounding(hook_means, chunk_bytes) -> None:
    means = ring_means(chunk_bytes)
    for mean in means[1:]:
        assert torch.equal(mean.view(torch.int32), means[0].view(torch.int32))
    magnitude = torch.stack([gradients(rank) / WORLD for rank in range(WORLD)]).abs().sum(0)
    error = (means[0].double() - hook_means.double()).abs()
    finite = slice(2, None)
    bound = 2 * WORLD * (1.05 * UNIT * magnitude.double() + SMALLEST / 2)
    assert (error[finite] <= bound[finite]).all()
    assert not torch.equal(means[0][finite], sum(gradients(r) / WORLD for r in range(WORLD)))
    assert means[0][:2].isfinite().tolist() == hook_means[:2].isfinite().tolist() == [False, False]


SGD = {"name": "sgd", "lr": 0.05, "momentum": 0.9}


@pytest.fixture
def task(regression):
    """In float32; the gradients of one row are beyond the range of float16."""

    class Task(regression):
        def build_model(self):
            return super().build_model().float()

        def loss(self, model, batch):
            x, y = batch
            return ((model(x.float()) - y.float()) ** 2).mean()

    made = Task(50)
    made.rows.y[17] = 1e7
    return made


def test_a_step_beyond_the_range_is_skipped_by_all_ranks(arena, task) -> None:
    job = {"steps": 7}  # one epoch: every row once
    strategy = {"codec": "float16"}
    ranks = arena.train(task, arena.spec(job=job, optimizer=SGD, strategy=strategy), 3)
    assert len({rank.outcome.digest for rank in ranks}) == 1
    assert {rank.outcome.skipped for rank in ranks} == {1}
    plain = arena.train(task, arena.spec(job=job, optimizer=SGD), 3, job_id="plain")
    assert {rank.outcome.skipped for rank in plain} == {0}
