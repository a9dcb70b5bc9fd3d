"""DDP's PowerSGD hook over Gloo, a process a rank: a program of its own.

    python gloo_powersgd.py WORLD_SIZE DIRECTORY RANK

Every rank reads WORKER.safetensors: "first", the second factors to begin with, and for each step
"STEP.TENSOR" gradients of one bucket.  It writes WORKER.means.safetensors: what the hook makes of
each step's bucket, flat.
"""

from __future__ import annotations

import multiprocessing
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as hook


class Bucket:
    """A bucket of DDP's, as far as the hook looks at it."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        self._shapes = [tensor.shape for tensor in tensors]

    def buffer(self) -> torch.Tensor:
        return self._flat

    def gradients(self) -> list[torch.Tensor]:
        sizes = [shape.numel() for shape in self._shapes]
        parts = self._flat.split(sizes)
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True


def run_rank(worker: int, world_size: int, directory: Path, rank: int) -> None:
    dist.init_process_group(
        "gloo",
        init_method=f"file://{directory / 'store'}",
        rank=worker,
        world_size=world_size,
        timeout=timedelta(seconds=60),
    )
    given = load_file(directory / f"{worker}.safetensors")
    state = hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)
    state.iter = state.start_powerSGD_iter
    state.q_memory_dict[0] = given.pop("first")
    state.p_memory_dict[0] = torch.empty(int(given.pop("p_elements")))
    steps = 1 + max(int(name.partition(".")[0]) for name in given)
    means = {}
    for step in range(steps):
        names = sorted(name for name in given if name.startswith(f"{step}."))
        means[str(step)] = hook.powerSGD_hook(state, Bucket([given[n] for n in names])).wait()
    save_file({name: mean.clone() for name, mean in means.items()}, _means(directory, worker))
    dist.destroy_process_group()


def _means(directory: Path, worker: int) -> Path:
    return directory / f"{worker}.means.safetensors"


def main(world_size: int, directory: Path, rank: int) -> int:
    context = multiprocessing.get_context("fork")
    workers = [
        context.Process(target=run_rank, args=(worker, world_size, directory, rank))
        for worker in range(world_size)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return max(worker.exitcode or 0 for worker in workers)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
