"""Buffers that a training forward changes (BatchNorm's statistics): snapshot, average, restore.

All persistent buffers but boolean ones count: what `state_dict` holds is state, the rest is
derived from it.  In a step every rank changes them by its own rows.  What travels is the change:
of float buffers weighted by the rank's share of the rows, of integer buffers (BatchNorm's count of
batches) the change of one rank alone, whose slice is not empty.  So buffers that stay constant stay
exactly constant, one rank alone gets exactly what plain torch gives, and all ranks end with the
same bytes.  A rank without rows contributes nothing.

The changes ride in the step's tail bucket (`dtd.train.tail`), in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def smallest_rows(model: nn.Module) -> int:
    """Fewest rows that the model can train on at once: BatchNorm1d has no variance of one."""
    return 2 if any(isinstance(module, nn.BatchNorm1d) for module in model.modules()) else 1


class RunningBuffers:
    """The buffers of one model.

    Args:
        model: its persistent buffers must exist now and keep their shapes.
    """

    def __init__(self, model: nn.Module) -> None:
        persistent = model.state_dict().keys()
        names = [name for name, buffer in model.named_buffers() if buffer.dtype != torch.bool]
        self.names = [name for name in names if name in persistent]
        self._owners: list[tuple[nn.Module, str]] = []
        for name in self.names:
            path, _, attribute = name.rpartition(".")
            self._owners.append((model.get_submodule(path), attribute))
        live = self._live()
        self._sizes = [buffer.numel() for buffer in live]
        self._averaged = torch.cat(
            [
                torch.full((buffer.numel(),), buffer.is_floating_point(), dtype=torch.bool)
                for buffer in live
            ]
            or [torch.empty(0, dtype=torch.bool)]
        )
        self._saved = torch.empty(self.elements, dtype=torch.float64)

    @property
    def elements(self) -> int:
        """Number of elements in all of them."""
        return sum(self._sizes)

    def take_snapshot(self) -> None:
        """Remember the values before a forward."""
        self._saved = self._flat()

    def restore(self) -> None:
        """Put the snapshot back: nothing of the step happened."""
        self._write(self._saved)

    def write_change(self, into: Tensor, *, share: float, counts: bool) -> None:
        """This rank's weighted change since the snapshot.

        Args:
            into: float64 elements to write.
            share: this rank's part of the global batch's rows.
            counts: this rank's integer buffers are the ones to follow.
        """
        now = self._flat()
        change = torch.where(now == self._saved, 0.0, now - self._saved)  # inf - inf is NaN
        into.copy_(torch.where(self._averaged, change * share, change if counts else 0.0))

    def apply_change(self, change: Tensor) -> None:
        """Set every buffer to the snapshot plus the sum of all ranks' changes."""
        self._write(self._saved + change)

    def _live(self) -> list[Tensor]:
        return [getattr(module, attribute) for module, attribute in self._owners]

    def _flat(self) -> Tensor:
        """All values in one float64 vector on the CPU: exact, but for integers beyond 2**53."""
        if not self._owners:
            return torch.empty(0, dtype=torch.float64)
        parts = [buffer.detach().reshape(-1).to(torch.float64) for buffer in self._live()]
        return torch.cat(parts).cpu()

    def _write(self, values: Tensor) -> None:
        with torch.no_grad():
            for buffer, part in zip(self._live(), torch.split(values, self._sizes), strict=True):
                buffer.copy_(part.view(buffer.shape))
