"""Post-local SGD: replicated training at first, local steps from a given step on.

T. Lin et al., "Don't Use Large Mini-Batches, Use Local SGD" (arXiv:1808.07217).  Which of the two
strategies runs a step depends on the step alone.  The optimizer's state is kept at the transition;
from `start_step` on it is local to each rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from dtd.exchange.api import BucketMemory
from dtd.strategy.api import BucketExchange, Computation, StepStats, Strategy
from dtd.strategy.codec.api import World
from dtd.strategy.codec.local_state import LocalState
from dtd.strategy.whole import WholeState


class PostLocal(WholeState):
    """Implement `dtd.strategy.api.Strategy`.

    Args:
        early: builds the strategy of the first steps.  It is closed after them, since its hooks and
            buckets would interfere with local steps, and built again if the state goes back.
        late: the strategy of the other steps.
        start_step: the first of these.
    """

    def __init__(self, early: Callable[[], Strategy], late: Strategy, *, start_step: int) -> None:
        self._build_early = early
        self._early: Strategy | None = None
        self._late = late
        self._start_step = start_step
        self._active = late
        self._world = World()

    # --- between steps ---------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """Implement `Strategy`."""
        return self._late.names

    @property
    def shared(self) -> Mapping[str, Tensor]:
        """Implement `Strategy`; exists from the first step, and is zero until the local steps."""
        return self._late.shared

    @property
    def size_bytes(self) -> int:
        """Implement `Strategy`."""
        early = self._early.size_bytes if self._early is not None else 0
        return self._late.size_bytes + early

    def plan(self) -> list[tuple[str, str]]:
        """Implement `Strategy`."""
        return self._late.plan()

    def regroup(self, world: World) -> None:
        """Implement `Strategy`."""
        self._world = world
        for strategy in self._built:
            strategy.regroup(world)

    def replaced(self) -> None:
        """Implement `Strategy`."""
        for strategy in self._built:
            strategy.replaced()

    def unsent(self, step: int) -> list[LocalState]:
        """Implement `Strategy`; the residual of the early strategy is dropped with it."""
        return self._active.unsent(step)

    def close(self) -> None:
        """Implement `Strategy`."""
        for strategy in self._built:
            strategy.close()

    @property
    def _built(self) -> list[Strategy]:
        return [self._late] if self._early is None else [self._early, self._late]

    # --- a step ----------------------------------------------------------------------------

    def exchanges(self, step: int, updates: Sequence[str]) -> list[BucketMemory]:
        """Implement `Strategy`; also selects the strategy that runs the step."""
        if step >= self._start_step:
            if self._early is not None:
                self._early.close()
            self._early, self._active = None, self._late
        else:
            if self._early is None:
                self._early = self._build_early()
                self._early.regroup(self._world)
            self._active = self._early
        return self._active.exchanges(step, updates)

    def begin(self, check: Callable[[], None], scale: float) -> None:
        """Implement `Strategy`."""
        self._active.begin(check, scale)

    def compute(self, work: Computation, ring: BucketExchange) -> None:
        """Implement `Strategy`."""
        self._active.compute(work, ring)

    def collect(self, ring: BucketExchange) -> None:
        """Implement `Strategy`."""
        self._active.collect(ring)

    def apply(self, work: Computation) -> StepStats:
        """Implement `Strategy`."""
        return self._active.apply(work)

    def commit(self) -> None:
        """Implement `Strategy`."""
        self._active.commit()

    def rollback(self) -> None:
        """Implement `Strategy`."""
        self._active.rollback()

    def release(self) -> None:
        """Implement `Strategy`."""
        self._active.release()
