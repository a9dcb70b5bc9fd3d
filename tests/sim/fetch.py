"""A simulated joiner fetches the state in pieces, striped over all of its holders.

The counterpart of `dtd.worker.job.fetch`: if a donor dies or sends nothing for too long, its pieces
are requested from the others; if none is left, the generation cannot begin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from tests.sim.data_port import STILL_WAITING, FetchHello, Piece, pieces_of
from tests.sim.network import Port
from tests.sim.replica import State
from tests.sim.surroundings import Surroundings


class Process(Protocol):
    """A fetch's interface to its process."""

    name: str
    surroundings: Surroundings

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run an action after a delay, unless the process has died by then."""
        ...


class Fetch:
    """The transfer of one state to one joiner.

    Args:
        process: the joiner's process.
        generation: the generation that starts from the state.
        donors: names of the holders of the state.
        receiving: called before the first piece is accepted; returns False if the process has
            ended.
        changed: called when the fetch has completed or failed.
    """

    def __init__(
        self,
        process: Process,
        generation: int,
        donors: Sequence[str],
        *,
        receiving: Callable[[], bool],
        changed: Callable[[], None],
    ) -> None:
        self.why_failed = ""
        self.donors_lost: list[str] = []
        self._process = process
        self._receiving = receiving
        self._changed = changed
        self._pieces: dict[int, State] = {}
        self._count = pieces_of(process.surroundings.pace)
        self._wanted = list(range(self._count))
        self._asked: dict[str, int] = {}
        self._signs: Counter[str] = Counter()
        self._ports: dict[str, Port] = {}
        for donor in donors:
            self._ports[donor] = process.surroundings.network.connect(
                process.name,
                donor,
                FetchHello(generation=generation),
                receive=partial(self._on_piece, donor),
                closed=partial(self._give_up, donor),
            )
        for donor in donors:
            self._ask(donor)

    def over(self) -> bool:
        """Whether the fetch has completed or failed."""
        return len(self._pieces) == self._count or bool(self.why_failed)

    def states(self) -> list[State]:
        """For each piece, the state to which it belongs."""
        return [self._pieces[index] for index in range(self._count)]

    def close(self) -> None:
        """Request nothing more."""
        for port in self._ports.values():
            port.close("done")
        self._ports.clear()

    def _ask(self, donor: str) -> None:
        if not self._wanted or donor in self._asked or donor not in self._ports:
            return
        index = self._asked[donor] = self._wanted.pop(0)
        self._ports[donor].send(index)
        self._expect(donor)

    def _expect(self, donor: str) -> None:
        """Give up the donor unless anything comes from it in time."""
        self._signs[donor] += 1
        seen, patience_s = self._signs[donor], self._process.surroundings.heartbeat_timeout_s
        self._process.after(patience_s, lambda: self._check(donor, seen))

    def _check(self, donor: str, seen: int) -> None:
        """Give up the donor if nothing has come by now."""
        if self._signs[donor] == seen and not self.over() and donor in self._ports:
            self._ports[donor].close("silent")
            self._give_up(donor, "sent nothing for too long")

    def _on_piece(self, donor: str, piece: object) -> bool:
        if piece == STILL_WAITING:
            self._expect(donor)
            return True
        assert isinstance(piece, Piece)
        if not self._receiving():
            return True
        self._pieces[piece.index] = piece.state
        self._asked.pop(donor, None)
        self._signs[donor] += 1
        self._ask(donor)
        self._look()
        return True

    def _give_up(self, donor: str, reason: str) -> None:
        if self._ports.pop(donor, None) is None or self.over():
            return
        self.donors_lost.append(donor)
        index = self._asked.pop(donor, None)
        if index is not None:
            self._wanted.insert(0, index)
        for other in list(self._ports):
            self._ask(other)
        if not self._ports:
            self.why_failed = f"state from {donor} could not be had: {reason}"
        self._look()

    def _look(self) -> None:
        if self.over():
            self._process.after(0.0, self._changed)
