"""A hash by which workers find out, before they train, that they do not compute alike.

Replicas stay equal only if clipping and the optimizer give the same bytes everywhere, so the result
of both on fixed numbers is hashed, with torch's version and the type of device.  Forward and
backward may differ between workers: their gradients are averaged.  A task's own optimizer, and the
kernels for models in channels_last, are not tried out here; digests still compare what they make.
Builds of one torch version for CPUs and for CUDA (2.15.0+cpu, 2.15.0+cu130) train together on CPUs
as long as they compute alike.
"""

from __future__ import annotations

import torch
import xxhash
from torch import nn

from dtd.job import OptimizerTable
from dtd.strategy.wire_memory import tensor_bytes
from dtd.train.optimizers import build_optimizer

_ELEMENTS = 100_031
"""Leaves as much as can be left by vectors of 8, 16 and 32: a rest is computed one by one."""
_UPDATES = 3
_CLIP_NORM = 0.5


def numerics_fingerprint(table: OptimizerTable, device: torch.device) -> str:
    """Hex hash of what this worker makes of a fixed clip and optimizer step."""
    numbers = torch.arange(_ELEMENTS, dtype=torch.float32, device=device)
    parameter = nn.Parameter((numbers % 1013) / 512 - 1)
    optimizer = build_optimizer(table, [parameter])
    release = torch.__version__.partition("+")[0]
    content = xxhash.xxh3_128(f"{release} {device.type}".encode())
    for update in range(_UPDATES):
        gradient = ((numbers + update) % 509) / 256 - 1
        norm = float(torch.linalg.vector_norm(gradient))
        parameter.grad = gradient.mul_(_CLIP_NORM / (norm + 1e-6))
        optimizer.step()
        content.update(repr(norm).encode())
    content.update(tensor_bytes(parameter.detach().cpu()))
    return content.hexdigest()
