"""The interface of a codec: encodes flat buckets for sending and decodes the results.

A codec is a class in this folder, and a line in `dtd.strategy.choice`.  A `Codec` creates a
`Coder` for each bucket to which it applies.  A coder chooses the sizes and types of its wire
buffers, has one or several dependent stages, and may keep local state from step to step.
`dtd.strategy.coded_buckets` provides the rest: memory, threads, the order of exchanges, commit and
rollback.  It is independent of gradients, so any flat float32 tensor can be coded.

In every step and for each bucket, in the thread of `CodedBuckets` while backward is running:

    encode(0, flat, wires)    the bucket is full: write wires[0], which will receive the result
    encode(1, flat, wires)    wires[0] holds its result: write wires[1]; and so on
    decode(flat, wires)       the last result has arrived: write the flat

`decode` must write the same bytes on every rank.  So it may use the results only, and operations
that round identically on all ranks.  Elementwise operations in a fixed order do, with any number of
threads: the optimizers rely on that, too, and workers whose processors round them differently are
not admitted (`dtd.train.warm_up.fingerprints`).  A matrix product or a sum over many elements
depends on its library's choice of a kernel, and may only produce values that are exchanged
afterwards.

If a flat contains a value that is not finite, no rank's result may be finite: this is how all ranks
skip the same steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dtd.exchange.api import BucketMemory
from dtd.exchange.schedule.chunks import Operation, Segments
from dtd.strategy.wire_memory import bucket_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The generation in which buckets travel.

    Attributes:
        rank: this rank.
        size: number of ranks.
        servers: how many of the last ranks are parameter servers, which train no rows.
        first_step: committed steps of its initial state; equal on all ranks.
    """

    rank: int = 0
    size: int = 1
    servers: int = 0
    first_step: int = 0

    @property
    def trainers(self) -> int:
        """Number of ranks that train rows."""
        return self.size - self.servers

    def own_segment(self, elements: int) -> tuple[int, int]:
        """Return this rank's segment [start, stop) in an all-gather of so many elements."""
        return Segments(elements, self.size, 1).own(self.rank)

    def segments(self, elements: int) -> list[tuple[int, int]]:
        """Return each rank's segment in an all-gather of so many elements, in rank order.

        All have the same length if `elements` is a multiple of the world's size.
        """
        return [Segments(elements, self.size, 1).own(rank) for rank in range(self.size)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPlace:
    """One tensor in a flat bucket: elements [start, stop), of this shape."""

    start: int
    stop: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatLayout:
    """One flat bucket: its element type, and the tensors that fill it, in memory order."""

    dtype: torch.dtype
    tensors: tuple[TensorPlace, ...]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return self.tensors[-1].stop if self.tensors else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """The exchange of one stage in one step; equal on all ranks.

    Attributes:
        elements: length of the wire buffer, in elements of `dtype`.
        dtype: its element type.
        operation: the ring's operation.  An all-gather keeps the segments of `World.segments`.
        item_elements: elements that the ring never separates: its chunks and segments consist of
            whole items, and `BucketMemory.add` counts items.
        arithmetic: called with the wire buffer and its memory, returns the memory with the codec's
            own `add` and `total`; None for the addition of `dtype`.  `add` and `total` are called
            on the event loop's thread, for one chunk at a time.  The memory keeps its `dtype` only
            if a transport's own addition of that type will do as well.
    """

    elements: int
    dtype: torch.dtype
    operation: Operation = Operation.SUM
    item_elements: int = 1
    arithmetic: Callable[[Tensor, BucketMemory], BucketMemory] | None = None


class LocalState:
    """State of one rank alone, such as an error-feedback residual: a flat tensor, in two buffers.

    A step writes the new value beside the old one, so a rollback needs no copy: a commit swaps the
    two, a rollback drops the new one.  The value is zero at first, and again in a replica that has
    taken over another state.  Memory is allocated at first use.

    If a rank dies, its residual is lost; if it leaves after a committed step, it hands the residual
    over (`ResidualHandoff`).

    Args:
        elements: its length.
        device: its device.
        in_gradient_units: it is proportional to the loss scale, and rescaled when that changes.

    Attributes:
        elements: its length.
    """

    def __init__(
        self, elements: int, device: torch.device, *, in_gradient_units: bool = True
    ) -> None:
        self.elements = elements
        self._device = device
        self._in_gradient_units = in_gradient_units
        self._scale = 1.0
        self._current: Tensor | None = None
        self._spare: Tensor | None = None
        self._written = False

    @property
    def size_bytes(self) -> int:
        """Memory that is allocated."""
        return sum(t.nbytes for t in (self._current, self._spare) if t is not None)

    @property
    def current(self) -> Tensor:
        """The value after the last committed step, float32; must not be modified in a step."""
        if self._current is None:
            self._current = torch.zeros(self.elements, device=self._device)
        return self._current

    def new(self) -> Tensor:
        """Return the buffer for the next value, which the step writes entirely; uninitialised."""
        if self._spare is None:
            self._spare = torch.empty(self.elements, device=self._device)
        self._written = True
        return self._spare

    def begin(self, scale: float) -> None:
        """A step begins; its gradients are multiplied by `scale`."""
        if self._in_gradient_units and scale != self._scale and self._current is not None:
            self._current.mul_(scale / self._scale)
        self._scale = scale

    def unscaled(self) -> Tensor:
        """Return the value divided by the loss scale."""
        return self.current / self._scale

    def add(self, unscaled: Tensor) -> None:
        """Add to the value, between two steps."""
        self.current.add_(unscaled.to(self._device), alpha=self._scale)

    def commit(self) -> None:
        """Make the new value current, if one was written."""
        if self._written:
            self._current, self._spare = self._spare, self._current
        self._written = False

    def rollback(self) -> None:
        """Drop the new value."""
        self._written = False

    def reset(self) -> None:
        """Set the value to zero, as at first."""
        self._written = False
        if self._current is not None:
            self._current.zero_()


class ResidualHandoff:
    """The transfer of the unsent residuals of leaving ranks to the ranks that stay.

    After the last common step all ranks sum the residuals of the leaving ranks, without a codec,
    and the remaining ranks divide the sum equally.  Each adds its part to its own residual, from
    which later steps apply it to the model.

        handoff = ResidualHandoff(residuals, leaves=...)
        ring.open_step(step, handoff.memories); start and wait for all
        handoff.finish()

    If the generation breaks in between, the residual is lost: it is not part of the state.

    Args:
        residuals: this rank's residuals; equally many on all ranks, and of the same sizes.
        leaves: whether this rank leaves.

    Attributes:
        memories: the buckets to exchange, float32: a residual, followed by the number of ranks that
            stay.
    """

    def __init__(self, residuals: Sequence[LocalState], *, leaves: bool) -> None:
        self._residuals = residuals
        self._leaves = leaves
        self._flats = [torch.zeros(one.elements + 1) for one in residuals]
        for one, flat in zip(residuals, self._flats, strict=True):
            if leaves:
                flat[:-1].copy_(one.unscaled())
            flat[-1] = float(not leaves)
        self.memories = [bucket_memory(flat) for flat in self._flats]

    def finish(self) -> None:
        """After every sum has arrived: add this rank's part; a leaving rank is reset to zero."""
        for one, flat in zip(self._residuals, self._flats, strict=True):
            if self._leaves:
                one.reset()
            else:
                one.add(flat[:-1].div_(flat[-1].item()))


class Coder(Protocol):
    """Encodes and decodes one flat bucket of one rank; the module docstring has the order of calls.

    Attributes:
        local: the local state kept from step to step.  The owner of the coder commits, rolls back
            and resets it.
        residual: the element of `local` that holds the unsent gradients, in the flat's layout
            and units, so that a leaving rank can transfer it; None without error feedback.
    """

    local: Sequence[LocalState] = ()
    residual: LocalState | None = None

    def restart(self, world: World) -> None:
        """A generation begins: recompute what must be equal on all ranks from common values."""
        del world

    def wires(self, world: World, step: int) -> Sequence[Wire]:
        """Return the exchanges of this step, stage by stage; cheap, and equal on all ranks."""
        ...

    def encode(self, stage: int, flat: Tensor, wires: Sequence[Tensor]) -> None:
        """Write wires[stage]; the wires of earlier stages hold their results.

        Args:
            stage: number of the stage, from 0.
            flat: the bucket, one-dimensional, on the model's device.
            wires: one-dimensional, on the host; with a GPU, copies to them may still be queued.
        """
        ...

    def decode(self, flat: Tensor, wires: Sequence[Tensor]) -> None:
        """Write the flat from the results; work on a GPU may still be queued."""
        ...


class Codec(Protocol):
    """Creates coders; there is one codec for each update."""

    @property
    def start_step(self) -> int:
        """Number of committed steps before which buckets are sent unchanged."""
        ...

    @property
    def risk(self) -> str:
        """Return the codec's risk for a job, as a phrase for its user; empty if none."""
        ...

    @property
    def passes(self) -> float:
        """Time to encode and decode a bucket, in times that one pass over its elements takes.

        Measured with one thread on a CPU; for forecasts of `dtdctl doctor`.
        """
        ...

    def coder(self, layout: FlatLayout, index: int, device: torch.device) -> Coder | None:
        """Create the coder of a bucket; None sends the bucket unchanged."""
        ...
