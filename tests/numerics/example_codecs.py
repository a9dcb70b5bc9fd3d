"""Two small codecs that use what a codec may: a residual, dependent stages, gathers."""

from __future__ import annotations

import torch

from dtd.exchange.schedule.chunks import Operation
from dtd.strategy.codec.api import LocalState, Wire


class Rounding:
    """Rounds to bfloat16, and adds what was lost to the next step's gradients."""

    def __init__(self, spec=None, start_step: int = 0) -> None:
        self.start_step = start_step

    def coder(self, layout, index, device):
        return _Rounds(layout, device) if layout.dtype == torch.float32 else None


class _Rounds:
    def __init__(self, layout, device) -> None:
        self.residual = LocalState(layout.elements, device)
        self.local = [self.residual]
        self._elements = layout.elements

    def restart(self, world) -> None:
        """This rank's own residual."""

    def wires(self, world, step):
        return [Wire(elements=self._elements, dtype=torch.bfloat16)]

    def encode(self, stage, flat, wires) -> None:
        new = torch.add(flat, self.residual.current, out=self.residual.new())
        wires[0].copy_(new)
        new.sub_(wires[0])

    def decode(self, flat, wires) -> None:
        flat.copy_(wires[0])


class Gathering:
    """Sums the buckets' sums, and then gathers each rank's bucket times that."""

    start_step = 0

    def __init__(self, spec=None) -> None:
        self.calls: list[tuple] = []

    def coder(self, layout, index, device):
        return _Gathers(self.calls, layout.elements, index)


class _Gathers:
    local = ()
    residual = None

    def __init__(self, calls, elements, index) -> None:
        self._calls, self._elements, self._index = calls, elements, index

    def restart(self, world) -> None:
        self._world = world

    def wires(self, world, step):
        whole = world.size * self._elements
        return [
            Wire(elements=1, dtype=torch.float64),
            Wire(elements=whole, dtype=torch.float32, operation=Operation.ALL_GATHER),
        ]

    def encode(self, stage, flat, wires) -> None:
        self._calls.append(("encode", self._index, stage))
        if stage == 0:
            wires[0].fill_(flat.sum().item())
        else:
            start, stop = self._world.own_segment(wires[1].numel())
            torch.mul(flat, wires[0].float(), out=wires[1][start:stop])

    def decode(self, flat, wires) -> None:
        self._calls.append(("decode", self._index))
        segments = [wires[1][a:b] for a, b in self._world.segments(wires[1].numel())]
        flat.copy_(torch.stack(segments).sum(0))
