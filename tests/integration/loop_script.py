"""A script with its own loop.

Arguments: a fault; a gate, and the step before which to wait for it; a file for the weights.
"""

from __future__ import annotations

import contextlib
import fcntl
import sys
import time
from pathlib import Path

import torch
from torch import nn

import dtd

FAULT, GATE, HOLD, WEIGHTS = [*sys.argv[1:], *4 * [""]][:4]


def wait() -> None:
    """Until the gate is open; a signal that comes just before flock() blocks would be missed."""
    with Path(GATE).open() as gate:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(gate, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return
            time.sleep(0.01)


def main() -> None:
    """Learn on which side of a plane a point lies."""
    torch.manual_seed(3)  # started by hand, nothing else does
    points = torch.randn(
        255 if FAULT == "rows" else 256, 8, generator=torch.Generator().manual_seed(1)
    )
    rows = torch.utils.data.TensorDataset(points, (points.sum(1) > 0).long())
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    if FAULT == "alone":
        return
    with dtd.join(model, optimizer) as run:
        for x, y in run.batches(rows, global_batch_size=32, epochs=4):
            if GATE and run.step_number == int(HOLD):
                print("holds", flush=True)
                wait()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            if FAULT == "no-step" and run.step_number == 3:
                continue
            optimizer.step()
    if WEIGHTS and run.is_main:
        torch.save(model.state_dict(), WEIGHTS)
    if FAULT == "twice":
        dtd.join(model, optimizer).batches(rows, global_batch_size=32, epochs=1)
    print(f"after {run.step_number} steps the loss is {run.loss:.3f}, {run.world_size} ranks")


if __name__ == "__main__":
    main()
