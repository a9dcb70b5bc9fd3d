"""How much memory a job takes in one worker, part by part, and how much there is.

Everything is counted where it lies: parameters, buckets (the gradients' home, and narrow twins that
travel in their place), the optimizer's state, the copy that a checkpoint makes, and what forward
saves for backward at its peak.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from dtd.train.session import Session
from dtd.train.state.tensors import named_tensors

# What an interpreter holds that has loaded torch and no model yet.
RUNTIME_BYTES: Final = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf(
    "SC_PAGE_SIZE"
)


def memory_parts(session: Session) -> dict[str, int]:
    """Bytes of each part after a step; of gradients outside buckets only the largest counts."""
    replica = session.replica
    model = [*replica.model.parameters(), *replica.model.buffers()]
    state = sum(_bytes(tensor) for tensor in named_tensors(replica).values())
    parameters = sum(_bytes(tensor) for tensor in model)
    return {
        "parameters": parameters,
        "gradients": max((_bytes(parameter) for _, parameter in replica.trained), default=0),
        "buckets": session.strategy.size_bytes,
        "optimizer": max(0, state - parameters),
        "snapshot": state,
        "runtime": RUNTIME_BYTES if session.device.type == "cpu" else 0,
    }


def available_bytes(device: torch.device) -> int:
    """Free memory of the GPU, or of the host with what the kernel can give back."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


class SavedBytes:
    """What autograd holds for backward; a storage that several tensors share counts once."""

    def __init__(self, model: nn.Module) -> None:
        self.peak_bytes = 0
        self._live_bytes = 0
        self._holders: Counter[int] = Counter()
        self._own = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def save(self, tensor: Tensor) -> _Saved:
        """A tensor is saved."""
        return _Saved(self, tensor)

    def hold(self, tensor: Tensor) -> None:
        """Count a tensor's storage in."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() in self._own:
            return
        self._holders[storage.data_ptr()] += 1
        if self._holders[storage.data_ptr()] == 1:
            self._live_bytes += storage.nbytes()
            self.peak_bytes = max(self.peak_bytes, self._live_bytes)

    def release(self, tensor: Tensor) -> None:
        """Count it out again."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() in self._own:
            return
        self._holders[storage.data_ptr()] -= 1
        if self._holders[storage.data_ptr()] == 0:
            self._live_bytes -= storage.nbytes()


class _Saved:
    """Lives as long as autograd needs the tensor."""

    __slots__ = ("meter", "tensor")

    def __init__(self, meter: SavedBytes, tensor: Tensor) -> None:
        self.meter, self.tensor = meter, tensor
        meter.hold(tensor)

    def __del__(self) -> None:
        self.meter.release(self.tensor)


@contextlib.contextmanager
def saved_for_backward(model: nn.Module) -> Iterator[SavedBytes]:
    """Measure what the forwards inside keep for their backwards."""
    meter = SavedBytes(model)
    with torch.autograd.graph.saved_tensors_hooks(meter.save, lambda saved: saved.tensor):
        yield meter


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
