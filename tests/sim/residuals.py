"""The residuals of simulated ranks, and the oracle's rules for them.

Every exchange adds a number derived from the rank's rows to its residual.  The residual is kept in
the product's own `dtd.strategy.codec.api` and handed on by `ResidualHandoff`.  The
rules:

* a step, or a round of steps, is computed with the residual of the last commit, also when it is
  repeated;
* after every commit, a residual follows from this rank's own commits since it took over a state,
  and from the residuals that leaving ranks have handed on;
* a rank that starts, joins, loads a checkpoint or has discarded its state starts with zero;
* the residuals of leaving ranks reach those that stay, in equal parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from dtd.strategy.codec.api import LocalState, ResidualHandoff
from dtd.wire import messages as m
from tests.sim import rows
from tests.sim.lineage import require
from tests.sim.replica import Key, State

FRACTION: Final = 1 << 20
"""Resolution of sums in the ring, in parts of one; equal parts need not be whole numbers."""
ROUNDING: Final = 0.25
"""Tolerance: smaller than any share's contribution, larger than float32 rounding errors."""
_CPU: Final = torch.device("cpu")


def zero() -> LocalState:
    """The residual of a rank that has committed nothing."""
    return LocalState(1, _CPU, in_gradient_units=False)


def value(residual: LocalState) -> float:
    """The residual's value after the last commit."""
    return float(residual.current.item())


def add(residual: LocalState, share: int) -> None:
    """Compute a step with the residual: its next value is prepared beside the current one."""
    residual.new().fill_(value(residual) + part_of(share))


def part_of(share: int) -> int:
    """The part of its share that a rank cannot send; never 0."""
    return 1 + share % 997


def given(handoff: ResidualHandoff) -> list[int]:
    """A rank's contribution to each bucket of the exchange that hands residuals on."""
    (memory,) = handoff.memories
    return [round(one * FRACTION) for one in memory.view.cast("f")]


def taken(handoff: ResidualHandoff, sums: list[int]) -> None:
    """Take over all sums of that exchange."""
    (memory,) = handoff.memories
    view = memory.view.cast("f")
    for index, one in enumerate(sums):
        view[index] = one / FRACTION
    handoff.finish()


@dataclass(slots=True)
class Account:
    """Account of one rank: its state, and the value that its residual must have."""

    key: Key | None = None
    value: float = 0.0


class Residuals:
    """The rules for all residuals.

    Attributes:
        handed: how often a rank has completed an exchange in which a rank left.
    """

    def __init__(self) -> None:
        self.handed = 0
        self._accounts: dict[tuple[str, str], Account] = {}
        self._rosters: dict[tuple[str, int], list[str]] = {}
        self._leavers: dict[tuple[str, int], dict[str, float]] = {}

    def begins(self, name: str, job: str) -> None:
        """A process begins with a job."""
        self._accounts[name, job] = Account()

    def forgets(self, name: str, job: str) -> None:
        """A process discards its state of the job."""
        self._accounts[name, job] = Account()

    def adopted(self, assign: m.Assign, state: State, held: float) -> None:
        """A rank has a generation's starting state; if that is new to it, its residual is zero."""
        name = assign.roster[assign.rank].name
        self._rosters[assign.job, assign.generation] = [
            one.name for one in assign.roster if not one.serves
        ]
        account = self._accounts[name, assign.job]
        if account.key != state.key:
            self._accounts[name, assign.job] = account = Account(key=state.key)
        self._same(name, account, held, "a state is taken over with another residual than is right")

    def computed(self, name: str, job: str, held: float) -> None:
        """A rank has begun to compute a step."""
        account = self._accounts[name, job]
        self._same(name, account, held, "a step is computed with another residual than of before")

    def committed(self, name: str, state: State, held: float, costs: tuple[int, ...] = ()) -> None:
        """A rank has committed the step, or the round, that ends with this state.

        `costs` are those by which its rows were divided.
        """
        account = self._accounts[name, state.job]
        roster = self._rosters[state.job, state.generation]
        own = 0  # of a parameter server
        if name in roster:
            rank, world_size = roster.index(name), len(roster)
            own = rows.expected_share(
                state.data, state.step, rank=rank, world_size=world_size, costs=costs
            )
        account.key = state.key
        account.value += part_of(own)
        self._same(name, account, held, "a residual does not follow from what was committed")

    def gives(self, assign: m.Assign, *, leaves: bool) -> None:
        """A rank is about to take part in the exchange that hands residuals on."""
        name = assign.roster[assign.rank].name
        given = self._leavers.setdefault((assign.job, assign.generation), {})
        if leaves:
            given[name] = self._accounts[name, assign.job].value

    def handed_on(self, assign: m.Assign, held: float) -> None:
        """That exchange is complete on a rank."""
        name = assign.roster[assign.rank].name
        account = self._accounts[name, assign.job]
        given = self._leavers[assign.job, assign.generation]
        self.handed += bool(given)
        if name in given:
            account.value = 0.0
        else:
            account.value += sum(given.values()) / (len(assign.roster) - len(given))
        self._same(name, account, held, "what a leaver had not sent is lost")

    def _same(self, name: str, account: Account, held: float, rule: str) -> None:
        right = abs(account.value - held) < ROUNDING
        require(right, rule, name, account.key, f"it has {held}, not {account.value}")
