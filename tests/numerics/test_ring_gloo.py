"""The ring against torch.distributed: equal sums but for the order of the additions."""

from __future__ import annotations

import os
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
from dtd.strategy.wire_memory import bucket_memory

pytestmark = [
    pytest.mark.numerics,
    pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch was built without Gloo"),
]

GLOO_WORLD = Path(__file__).with_name("gloo_world.py")
DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}


def contributions(rank: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return {
        name: torch.randn(10_007, generator=generator, dtype=torch.float64).to(dtype)
        for name, dtype in DTYPES.items()
    }


def gloo_sums(given: list[dict[str, Tensor]], directory: Path) -> list[dict[str, Tensor]]:
    """The sums of torch.distributed, a process a rank."""
    for rank, tensors in enumerate(given):
        save_file(tensors, directory / f"{rank}.safetensors")
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, GLOO_WORLD, str(len(given)), directory],
        env=environment,
        check=True,
        timeout=90,
    )
    return [load_file(directory / f"{rank}.sums.safetensors") for rank in range(len(given))]


def ring_sums(given: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    ring = InProcessRing(len(given), chunk_bytes=4096)

    def work(rank: int) -> dict[str, Tensor]:
        collective = ring.collective(rank)
        own = {name: tensor.clone() for name, tensor in given[rank].items()}
        collective.open_step(0, [bucket_memory(tensor) for tensor in own.values()])
        for bucket in range(len(own)):
            collective.start(bucket)
        for bucket in range(len(own)):
            collective.wait(bucket)
        return own

    with ThreadPoolExecutor(len(given)) as pool:
        return list(pool.map(work, range(len(given))))


def test_the_ring_and_gloo_differ_by_the_order_of_additions_only(tmp_path: Path) -> None:
    world_size = 3
    given = [contributions(rank) for rank in range(world_size)]
    theirs = gloo_sums(given, tmp_path)
    ours = ring_sums(given)
    for name, dtype in DTYPES.items():
        magnitude = torch.stack([tensors[name].double() for tensors in given]).abs().sum(0)
        # Either is within (N - 1) eps sum|x| of the exact sum.
        noise = 2 * (world_size - 1) * torch.finfo(dtype).eps * magnitude
        for rank in range(world_size):
            difference = (ours[rank][name].double() - theirs[rank][name].double()).abs()
            assert (difference <= noise).all(), name
