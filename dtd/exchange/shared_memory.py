"""Memory shared with the next rank and mapped from the previous one (protocol.md, "Loans").

Between two processes of one host, a bucket need not pass through the sockets.  The owner offers its
memory once (SHM_OFFER), the other side requests it (SHM_REQUEST), receives the open file
(`dtd.net.descriptors`) and confirms (SHM_MAPPED).  From the next step on, chunks have no payload
and are read in place.  Nothing else changes: the same chunks in the same order on the same
connection.  If the file does not arrive, because one address belongs to two hosts or containers or
the two processes belong to different users, everything is sent, and the log says why.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import structlog

from dtd.errors import ErrorCode, ProtocolError
from dtd.exchange.api import BucketMemory, BufferLocation, Lendable
from dtd.exchange.ring.lending import Lending
from dtd.lent_memory import BorrowedMemory, borrow
from dtd.net.descriptors import FdMailbox, aside, post
from dtd.wire.messages import MAX_LENT, ShmMapped, ShmOffer, ShmRegion, ShmReleased, ShmRequest

log = structlog.get_logger()

NOTHING_LENT: tuple[int, frozenset[int]] = (0, frozenset())


class LoanNeighbours(Protocol):
    """The part of a ring endpoint that loans need."""

    def is_next_on_this_host(self) -> bool:
        """Whether the next rank is on this host, judging by addresses."""
        ...

    def tell_next(self, message: ShmOffer) -> None:
        """Send a SHM_OFFER to the next rank."""
        ...

    def tell_previous(self, message: ShmRequest | ShmMapped | ShmReleased) -> None:
        """Send SHM_REQUEST, SHM_MAPPED or SHM_RELEASED to the previous rank."""
        ...

    def unreadable(self, error: ProtocolError) -> None:
        """The memory that the previous rank has lent cannot be read.

        The machine has already counted the chunk, so the ring must end before the next event.
        """
        ...


class SharedMemory:
    """The loans of one ring endpoint.  Event loop only.

    Args:
        generation: the ring's generation.
        neighbours: send the messages.
        letters: directory private to this user, through which an open file can be passed; if it is
            None, nothing is borrowed.
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
        self._named: ShmOffer | None = None
        self._letterbox: FdMailbox[BorrowedMemory] | None = None
        self._memory: BorrowedMemory | None = None

    # --- lending ---------------------------------------------------------------------------

    def lendable(self, buckets: Sequence[BucketMemory]) -> tuple[int, frozenset[int]]:
        """Return the loan and the buckets that the next rank can read; offers new memory.

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
            ShmOffer(
                generation=self._generation,
                number=self._lending.offer(offsets),
                nonce=memory.nonce,
                size_bytes=memory.size_bytes,
                lots=tuple(ShmRegion(offset=offset) for offset in offsets),
            )
        )

    def received(self, message: ShmOffer | ShmRequest | ShmMapped) -> None:
        """Handle a neighbour's message about loans.

        Raises:
            ProtocolError: it belongs to another generation, refers to no offer, or requests the
                same file again.
        """
        if message.generation != self._generation:
            raise ProtocolError(
                ErrorCode.STALE_GENERATION, f"a loan of generation {message.generation}"
            )
        if isinstance(message, ShmOffer):
            self._on_lend(message)
        elif isinstance(message, ShmRequest):
            self._on_borrow(message)
        else:
            self._lending.borrows(message.number)

    def _on_borrow(self, message: ShmRequest) -> None:
        """The next rank requests the file of a SHM_OFFER."""
        if not self._lending.asks(message.number):
            return
        assert self._offered is not None, "an offer of nothing"
        try:
            descriptor = os.dup(self._offered.descriptor)
        except OSError:  # it is closed; another offer will follow
            return
        aside(_hand_over, message.socket, descriptor)

    # --- borrowing -------------------------------------------------------------------------

    def _on_lend(self, message: ShmOffer) -> None:
        """The previous rank offers its memory: request it."""
        self.close()
        self._named = message
        if self._letters is None:
            return

        def look(descriptor: int) -> BorrowedMemory | None:
            return borrow(descriptor, nonce=message.nonce, size_bytes=message.size_bytes)

        try:
            self._letterbox = FdMailbox(self._letters, look, self._on_memory)
        except OSError as error:  # the host does not permit it: everything is sent
            log.info("memory_not_borrowed", reason=str(error))
            return
        path, number = self._letterbox.path, message.number
        self._neighbours.tell_previous(
            ShmRequest(generation=self._generation, number=number, socket=path)
        )

    def _on_memory(self, memory: BorrowedMemory) -> None:
        """The memory named in the current SHM_OFFER has arrived."""
        assert self._named is not None, "a mailbox without a SHM_OFFER"
        self._memory, self._letterbox = memory, None
        self._neighbours.tell_previous(
            ShmMapped(generation=self._generation, number=self._named.number)
        )

    def read(self, bucket: int, start_byte: int, stop_byte: int) -> memoryview:
        """Return bytes of the previous rank's bucket in place; call `still_lent` after reading.

        Raises:
            ProtocolError: they were not lent, or are outside of the lent memory.
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
        """Check that the loan was still valid while it was read.

        Raises:
            ProtocolError: the previous rank has recalled the loan, since it has left the step.
        """
        if self._memory is None or self._memory.loan != loan:
            raise ProtocolError(ErrorCode.RECALLED, f"the previous rank has recalled loan {loan}")

    def give_back(self, taken: ShmReleased) -> None:
        """The lent part of a bucket has been read completely."""
        self._neighbours.tell_previous(taken)

    def lost(self, error: ProtocolError) -> None:
        """Report that the previous rank's shared memory cannot be read."""
        self._neighbours.unreadable(error)

    def close(self) -> None:
        """Release the borrowed memory; idempotent."""
        if self._letterbox is not None:
            self._letterbox.close()
            self._letterbox = None
        memory, self._named, self._memory = self._memory, None, None
        if memory is not None:
            aside(memory.close)


def _hand_over(path: str, descriptor: int) -> None:
    """Pass the file to a neighbour; runs in a thread, since access to the path may be slow."""
    try:
        post(path, descriptor)
    except (OSError, ValueError) as error:  # ValueError: no path has such characters
        log.info("memory_not_lent", reason=str(error))
    finally:
        os.close(descriptor)
