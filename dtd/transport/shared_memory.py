"""What one ring lends to its next rank and borrows from its previous one (protocol.md, "Loans").

Between two processes of one host a bucket need not pass through the sockets.  The side that has it
names its memory once (LEND), the other side asks for it (BORROW), is handed the open file
(`dtd.net.descriptors`) and says so (BORROWED).  From the next step on chunks come without payload
and are read where they lie.  Nothing else changes: the same chunks in the same order on the same
connection.  Where the file does not arrive, because one address has two hosts or containers behind
it or the two processes belong to different users, everything is sent, and the log says why.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import structlog

from dtd.core.ring.lending import Lending
from dtd.errors import ErrorCode, ProtocolError
from dtd.lent_memory import BorrowedMemory, borrow
from dtd.net.descriptors import FdMailbox, aside, post
from dtd.transport.api import BucketMemory, BufferLocation, Lendable
from dtd.wire.messages import MAX_LENT, Borrow, Borrowed, Lend, Lot, Taken

log = structlog.get_logger()

NOTHING_LENT: tuple[int, frozenset[int]] = (0, frozenset())


class LoanNeighbours(Protocol):
    """The neighbours of a ring endpoint, as far as loans are concerned."""

    def is_next_on_this_host(self) -> bool:
        """Whether the next rank is on this host, as far as addresses tell."""
        ...

    def tell_next(self, message: Lend) -> None:
        """Send a LEND to the next rank."""
        ...

    def tell_previous(self, message: Borrow | Borrowed | Taken) -> None:
        """Send BORROW, BORROWED or TAKEN to the previous rank."""
        ...

    def unreadable(self, error: ProtocolError) -> None:
        """What the previous rank has lent cannot be read.

        The machine has counted it all the same, so the ring must end before it hears of anything
        else.
        """
        ...


class Loans:
    """The loans of one ring endpoint.  Event loop only.

    Args:
        generation: of the ring.
        neighbours: to whom it is said.
        letters: directory of this user alone, where an open file can be handed over; None: there
            is none, and nothing is borrowed.
    """

    def __init__(
        self, generation: int, *, neighbours: LoanNeighbours, letters: Path | None
    ) -> None:
        self._neighbours = neighbours
        self._letters = letters
        self._generation = generation
        self._homes: list[BufferLocation | None] = []
        self._lending = Lending()
        self._offered: Lendable | None = None
        self._named: Lend | None = None
        self._letterbox: FdMailbox[BorrowedMemory] | None = None
        self._memory: BorrowedMemory | None = None

    # --- lending ---------------------------------------------------------------------------

    def lendable(self, buckets: Sequence[BucketMemory]) -> tuple[int, frozenset[int]]:
        """The loan and the buckets of a step that the next rank can read; what is new is offered.

        Returns:
            (number of the loan, indices of buckets).
        """
        homes = [bucket.home for bucket in buckets]
        if homes != self._homes:
            memory = next((home.memory for home in homes if home is not None), None)
            if (
                memory is None
                or len(homes) > MAX_LENT
                or not self._neighbours.is_next_on_this_host()
            ):
                return NOTHING_LENT
            self._offer(memory, homes)
        if self._offered is None or not self._lending.agreed:
            return NOTHING_LENT
        return self._offered.loan, self._lending.lent()

    def _offer(self, memory: Lendable, homes: list[BufferLocation | None]) -> None:
        offsets = [
            home.offset_bytes if home is not None and home.memory is memory else 0 for home in homes
        ]
        self._homes, self._offered = homes, memory
        self._neighbours.tell_next(
            Lend(
                generation=self._generation,
                number=self._lending.offer(offsets),
                nonce=memory.nonce,
                size_bytes=memory.size_bytes,
                lots=tuple(Lot(offset=offset) for offset in offsets),
            )
        )

    def received(self, message: Lend | Borrow | Borrowed) -> None:
        """What a neighbour says of loans.

        Raises:
            ProtocolError: it is of another generation, about nothing that was offered, or asks for
                the same file again.
        """
        if message.generation != self._generation:
            raise ProtocolError(
                ErrorCode.STALE_GENERATION, f"a loan of generation {message.generation}"
            )
        if isinstance(message, Lend):
            self._on_lend(message)
        elif isinstance(message, Borrow):
            self._on_borrow(message)
        else:
            self._lending.borrows(message.number)

    def _on_borrow(self, message: Borrow) -> None:
        """The next rank asks for the file of a LEND."""
        if not self._lending.asks(message.number):
            return
        assert self._offered is not None, "an offer of nothing"
        try:
            descriptor = os.dup(self._offered.descriptor)
        except OSError:  # it is closed, and will be followed by another
            return
        aside(_hand_over, message.socket, descriptor)

    # --- borrowing -------------------------------------------------------------------------

    def _on_lend(self, message: Lend) -> None:
        """The previous rank offers its memory: ask for it."""
        self.close()
        self._named = message
        if self._letters is None:
            return

        def look(descriptor: int) -> BorrowedMemory | None:
            return borrow(descriptor, nonce=message.nonce, size_bytes=message.size_bytes)

        try:
            self._letterbox = FdMailbox(self._letters, look, self._on_memory)
        except OSError as error:  # a host that does not let us: everything is sent
            log.info("memory_not_borrowed", reason=str(error))
            return
        path, number = self._letterbox.path, message.number
        self._neighbours.tell_previous(
            Borrow(generation=self._generation, number=number, socket=path)
        )

    def _on_memory(self, memory: BorrowedMemory) -> None:
        """What the LEND at hand has named is here."""
        assert self._named is not None, "a letterbox without a LEND"
        self._memory, self._letterbox = memory, None
        self._neighbours.tell_previous(
            Borrowed(generation=self._generation, number=self._named.number)
        )

    def read(self, bucket: int, start_byte: int, stop_byte: int) -> memoryview:
        """Bytes of the previous rank's bucket where they lie; `still_lent` once they were read.

        Raises:
            ProtocolError: they were not lent, or lie outside of what was.
        """
        named = self._named
        offset = named.lots[bucket].offset if named is not None and bucket < len(named.lots) else 0
        if named is None or self._memory is None or not offset:
            raise ProtocolError(ErrorCode.UNEXPECTED_CHUNK, f"bucket {bucket} is not lent")
        if offset + stop_byte > named.size_bytes:
            raise ProtocolError(
                ErrorCode.BAD_PAYLOAD, f"bucket {bucket} ends beyond the memory that is lent"
            )
        return self._memory.view(offset + start_byte, stop_byte - start_byte)

    def still_lent(self, loan: int) -> None:
        """See that what was read was still lent when it was.

        Raises:
            ProtocolError: the previous rank has recalled the loan: it has left the step.
        """
        if self._memory is None or self._memory.loan != loan:
            raise ProtocolError(ErrorCode.RECALLED, f"the previous rank has recalled loan {loan}")

    def give_back(self, taken: Taken) -> None:
        """All that was lent of a bucket has been read."""
        self._neighbours.tell_previous(taken)

    def lost(self, error: ProtocolError) -> None:
        """What the previous rank has lent cannot be read."""
        self._neighbours.unreadable(error)

    def close(self) -> None:
        """Read nothing more; idempotent."""
        if self._letterbox is not None:
            self._letterbox.close()
            self._letterbox = None
        memory, self._named, self._memory = self._memory, None, None
        if memory is not None:
            aside(memory.close)


def _hand_over(path: str, descriptor: int) -> None:
    """In a thread: where a neighbour's path leads to may take its time."""
    try:
        post(path, descriptor)
    except (OSError, ValueError) as error:  # ValueError: no path has such characters
        log.info("memory_not_lent", reason=str(error))
    finally:
        os.close(descriptor)
