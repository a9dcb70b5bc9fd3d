"""A torch.distributed all-reduce over Gloo, a process a rank: a program of its own.

    python gloo_world.py WORLD_SIZE DIRECTORY [HOOK]

Every rank reads RANK.safetensors, sums every tensor over all ranks and writes
RANK.sums.safetensors.  With one of DDP's default hooks, that makes the mean of each.  The ranks are
forked, so that torch is imported once.
"""

from __future__ import annotations

import multiprocessing
import sys
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks


class Bucket(NamedTuple):
    """A bucket of DDP's, as far as its hooks look at it."""

    tensor: torch.Tensor

    def buffer(self) -> torch.Tensor:
        """Its gradients."""
        return self.tensor


def run_rank(rank: int, world_size: int, directory: Path, hook: str) -> None:
    dist.init_process_group(
        "gloo",
        init_method=f"file://{directory / 'store'}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=60),
    )
    tensors = load_file(directory / f"{rank}.safetensors")
    for name in sorted(tensors):
        if hook:
            getattr(default_hooks, hook)(None, Bucket(tensors[name])).wait()
        else:
            dist.all_reduce(tensors[name])
    save_file(tensors, directory / f"{rank}.sums.safetensors")
    dist.destroy_process_group()


def main(world_size: int, directory: Path, hook: str = "") -> int:
    context = multiprocessing.get_context("fork")
    ranks = [
        context.Process(target=run_rank, args=(rank, world_size, directory, hook))
        for rank in range(world_size)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    return max(abs(rank.exitcode or 0) for rank in ranks)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]))
