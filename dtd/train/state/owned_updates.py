"""Gives all ranks the update that the owner of each part of the state has computed.

Replicas stay equal because every rank computes the same update with the same kernels.  Where that
cannot be, as on a CPU beside a GPU, each rank still computes the whole update, from the same
averages; then it replaces its results by those of their owners (`strategy.update = "owner"`).
Results differ by rounding only, so each of them is one of the committed step.

Hence nothing is lost with an owner.  If the generation ends before all copies have arrived, every
survivor has a whole state of the step, made of its own results and of others'; the copies are made
again when the next generation begins, from whatever its ranks have then.

The state travels as all-gathers of batches of tensors.  The ring's segments of a batch say which
rank owns what, so all ranks own equally much.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import torch
from torch import Tensor

from dtd.exchange.api import Collective, CommTiming
from dtd.exchange.schedule.chunks import Operation
from dtd.strategy.wire_memory import BATCH_BYTES, batches, bucket_memory, laid_out, line_bytes
from dtd.train.state.replica import Replica
from dtd.train.state.tensors import named_tensors

_ITEM = torch.int64
"""Segments end between items, so no number is put together from the bytes of two ranks."""


class OwnedUpdates:
    """The copies of one generation."""

    def __init__(self, replica: Replica, progress: Callable[[], None]) -> None:
        self._replica = replica
        self._progress = progress
        self._buffer = torch.empty(0, dtype=_ITEM)

    @torch.no_grad()
    def copy(self, ring: Collective, step: int) -> list[CommTiming]:
        """Make this rank's state the owners'.

        Args:
            ring: connects the ranks; no step is open.
            step: number of the ring's next step.

        Returns:
            the timing of each step that the ring has made for it.

        Raises:
            RingBroken: the generation is over; a part of the state is copied.
        """
        if ring.world_size == 1:
            return []
        timings: list[CommTiming] = []
        pieces = chain.from_iterable(map(_pieces, named_tensors(self._replica).values()))
        for batch in batches(pieces, _size_bytes):
            timings.append(self._copy(ring, step + len(timings), batch))
            self._progress()
        return timings

    def _copy(self, ring: Collective, step: int, batch: Sequence[Tensor]) -> CommTiming:
        items = sum(map(_size_bytes, batch)) // _ITEM.itemsize
        if items > self._buffer.numel():
            self._buffer = torch.zeros(items, dtype=_ITEM)
        flat = self._buffer[:items]
        places = _places(flat, batch)
        for tensor, place in zip(batch, places, strict=True):
            place.copy_(tensor)
        memory = bucket_memory(flat).shaped(operation=Operation.ALL_GATHER)
        ring.open_step(step, [memory])
        ring.start(0)
        ring.wait(0)
        for tensor, place in zip(batch, places, strict=True):
            tensor.copy_(place)
        return ring.close_step()


def _size_bytes(tensor: Tensor) -> int:
    return line_bytes(tensor.numel() * tensor.element_size())


def _places(flat: Tensor, batch: Sequence[Tensor]) -> list[Tensor]:
    """Where each tensor lies in the buffer, in its type and shape."""
    places, at, content = [], 0, flat.view(torch.uint8)
    for tensor in batch:
        place = laid_out(content[at:], tensor.numel(), tensor.dtype)
        places.append(place.view(tensor.shape))
        at += _size_bytes(tensor)
    return places


def _pieces(tensor: Tensor) -> Sequence[Tensor]:
    """Views of at most a batch each; the tensor itself, and a larger buffer, if not contiguous."""
    if not tensor.is_contiguous():
        return [tensor]
    return torch.split(tensor.view(-1), BATCH_BYTES // tensor.element_size())
