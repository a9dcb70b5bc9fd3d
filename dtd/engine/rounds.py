"""Rounds: the number of steps between two exchanges, as a function of the step alone.

A round is the unit that the engine opens, votes on, commits and redoes.  For replicated training it
is one step.  For strategies with local steps (`dtd.strategy.local_sgd`) it is H steps, each on its
own replica.  Rounds form a fixed grid over the steps of a job, equal on all ranks and known to the
coordinator, independent of what happened before:

    0 .. start_step             rounds of one step: post-local SGD (arXiv:1808.07217)
    start_step ..               rounds of `inner_steps`
    after every `double_every`  of twice as many, up to `longest`: H that grows (arXiv:1910.13598);
                                a round ends where the length changes

The last round of a job ends with the job.  The end of an epoch does not end a round.  A job that
continues from another job's state may begin between two points of the grid; its first round ends at
the next one. Work due at multiples of a number of steps is done when a round has reached or passed
one. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from dtd.job import StrategyTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """The grid of one job.

    Attributes:
        inner_steps: steps of a round, at first.
        start_step: before this step each round has one step.
        double_every: steps after which the length of rounds doubles; 0: it stays the same.
        longest: most steps of a round.
    """

    inner_steps: int = 1
    start_step: int = 0
    double_every: int = 0
    longest: int = 1

    @classmethod
    def of(cls, strategy: StrategyTable) -> Self:
        if strategy.local_from is None:
            return cls()
        return cls(
            inner_steps=strategy.round_steps,
            start_step=strategy.local_from,
            double_every=strategy.inner_steps_double_every,
            longest=max(strategy.round_steps, strategy.inner_steps_max),
        )

    def end(self, step: int, steps_total: int = 0) -> int:
        """The step after the round that begins at `step`; `steps_total` is 0 if it is not known."""
        end = self._bounds(step)[1]
        return min(end, steps_total) if steps_total > step else end

    def begin(self, step: int) -> int:
        """The step at which the round that ends at `step` begins; below 0 if there is none."""
        return self._bounds(step - 1)[0]

    def crossed(self, step: int, every: int) -> bool:
        """Whether the round that ends at `step` has reached or passed a multiple of `every`."""
        return step > 0 and step // every > max(0, self.begin(step)) // every

    def _bounds(self, step: int) -> tuple[int, int]:
        """First and last boundary of the round that contains a step."""
        if step < self.start_step:
            return step, step + 1
        phase = self._phase(step)
        first = self.start_step + phase * self.double_every
        length = min(self.inner_steps << phase, self.longest)
        begin = first + (step - first) // length * length
        end = begin + length
        if self.double_every and phase < self._last_phase:
            end = min(end, first + self.double_every)
        return begin, end

    def _phase(self, step: int) -> int:
        """Return the number of times that the length has doubled."""
        if not self.double_every:
            return 0
        return min((step - self.start_step) // self.double_every, self._last_phase)

    @property
    def _last_phase(self) -> int:
        return (-(-self.longest // self.inner_steps) - 1).bit_length()
