"""A script that knows nothing of dtd: DistributedDataParallel, as it runs under torchrun.

Arguments: a folder that all processes share; what to do; a gate, and the step before which to wait
for it.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

FOLDER, DEED, GATE, HOLD = [*sys.argv[1:5], *["", "", "", "0"][len(sys.argv) - 1 :]]
STEPS, ROWS, SAVE_EVERY = 24, 32, 5


def made() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A model, and rows with their labels."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)).double()
    points = torch.randn(ROWS, 8, dtype=torch.float64)
    return model, points, (points.sum(1) > 0).long()


def train(model: nn.Module, points: torch.Tensor, labels: torch.Tensor, steps: int) -> None:
    """Go on from the newest checkpoint, which rank 0 writes."""
    rank, size, file = dist.get_rank(), dist.get_world_size(), Path(FOLDER, "checkpoint.pt")
    parallel = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1, momentum=0.9)
    begin = 0
    if file.exists():
        saved = torch.load(file)
        begin = saved["step"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    restart = os.environ["TORCHELASTIC_RESTART_COUNT"]
    print(f"rank {rank} of {size} begins at step {begin}, restart {restart}")
    for step in range(begin, steps):
        if GATE and step == int(HOLD):
            print(f"rank {rank} stands at step {step}")
            with Path(GATE).open() as gate:
                fcntl.flock(gate, fcntl.LOCK_SH)
        optimizer.zero_grad()
        mine = slice(rank * ROWS // size, (rank + 1) * ROWS // size)
        nn.functional.cross_entropy(parallel(points[mine]), labels[mine]).backward()
        optimizer.step()
        if rank == 0 and (step + 1) % SAVE_EVERY == 0:
            state = {"step": step + 1, "model": model.state_dict()}
            torch.save(state | {"optimizer": optimizer.state_dict()}, f"{file}.part")
            Path(f"{file}.part").rename(file)
    if rank == 0:
        torch.save(model.state_dict(), Path(FOLDER, "result.pt"))


def main() -> None:
    """Train, or do what the test wants."""
    dist.init_process_group("gloo")
    if DEED == "child":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)", FOLDER])
    train(*made(), STEPS)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
