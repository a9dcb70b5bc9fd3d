"""DistributedDataParallel with a checkpoint of its own: a script that does not know dtd.

    torchrun --nproc-per-node 2 docs/examples/loops/ddp.py           # on this host
    dtdctl run -- python docs/examples/loops/ddp.py CHECKPOINT       # on the workers of a cluster

CHECKPOINT is a file on a disk that all hosts share; without one, a restart begins anew.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, BATCH = 8, 32


def main() -> None:
    """Learn on which side of a plane a point lies."""
    on_gpu = torch.cuda.is_available()  # dtd shows each process the device of its worker alone
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    dist.init_process_group("nccl" if on_gpu else "gloo")
    torch.manual_seed(0)
    points = torch.randn(2048, 16)
    rows = TensorDataset(points, (points.sum(1) > 0).long())
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(rows)
    batches = DataLoader(rows, batch_size=BATCH // dist.get_world_size(), sampler=sampler)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    checkpoint = Path(sys.argv[1]) if sys.argv[1:] else None
    begin = 0
    if checkpoint is not None and checkpoint.exists():
        saved = torch.load(checkpoint, map_location=device)
        begin = saved["epoch"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    parallel = nn.parallel.DistributedDataParallel(model)
    for epoch in range(begin, EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(parallel(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {(epoch + 1) * len(batches)}: loss {loss.item():.3f}")
            if checkpoint is not None:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                draft = checkpoint.with_suffix(".part")
                torch.save(state | {"epoch": epoch + 1}, draft)
                draft.replace(checkpoint)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
