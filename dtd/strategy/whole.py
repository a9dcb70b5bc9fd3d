"""A strategy's methods for parts of a state, where every rank has all of it: they do nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dtd.engine.shard_digests import Shared
from dtd.exchange.api import BucketMemory, Collective
from dtd.strategy.api import BucketExchange


class WholeState:
    """A strategy whose ranks all hold the whole state; see `dtd.strategy.api.Strategy`."""

    waited_s = 0.0

    def redistribute(
        self, ring: Collective, step: int, compare: Callable[[Sequence[Shared]], None]
    ) -> int:
        """Move nothing."""
        del ring, compare
        return step

    def keep_redistributed(self) -> None:
        """Nothing was moved."""

    def undo_redistribution(self) -> None:
        """Nothing was moved."""

    def wants_whole(self, wanted: bool) -> None:
        """The model is whole."""

    def refreshes(self) -> list[BucketMemory]:
        """Return none: the model is whole."""
        return []

    def refresh(self, ring: BucketExchange) -> None:
        """The model is whole."""

    def refreshed(self) -> None:
        """The model is whole."""
