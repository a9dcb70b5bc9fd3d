"""A torch.distributed all-reduce over Gloo, a process a rank: a program of its own.

    python gloo_world.py WORLD_SIZE DIRECTORY

Every rank reads RANK.safetensors, sums every tensor over all ranks and writes
RANK.sums.safetensors.  The ranks are forked, so that torch is imported once.
"""

from __future__ import annotations

import multiprocessing
import sys
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from safetensors.torch import load_file, save_file


def run_rank(rank: int, world_size: int, directory: Path) -> None:
    dist.init_process_group(
        "gloo",
        init_method=f"file://{directory / 'store'}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=60),
    )
    tensors = load_file(directory / f"{rank}.safetensors")
    for name in sorted(tensors):
        dist.all_reduce(tensors[name])
    save_file(tensors, directory / f"{rank}.sums.safetensors")
    dist.destroy_process_group()


def main(world_size: int, directory: Path) -> int:
    context = multiprocessing.get_context("fork")
    ranks = [
        context.Process(target=run_rank, args=(rank, world_size, directory))
        for rank in range(world_size)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    return max(abs(rank.exitcode or 0) for rank in ranks)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2])))
