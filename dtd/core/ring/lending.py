"""Whether buckets are lent to the next rank, and how much of the previous rank's is read at once.

Pure: numbers and sets.  Memory, files and sockets are the shell's (`dtd.transport.shared_memory`,
`dtd.transport.ring_node`); protocol.md, "Loans", says what the messages mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dtd.errors import ErrorCode, ProtocolError

READ_AT_ONCE_BYTES: Final = 8 * 1024 * 1024
"""After so much of lent memory the event loop does other things first: frames without payload come
many at a time, and what they name takes 0.14 ms for each MiB to add, at first sight 0.33 ms."""


class Lending:
    """What one rank has offered to the next.

    Attributes:
        offers: number of the last offer; 0 before the first.
        agreed: the next rank can read what the last offer named.
    """

    def __init__(self) -> None:
        self.offers = 0
        self.agreed = False
        self._asked = False
        self._lent: frozenset[int] = frozenset()

    def offer(self, offsets: Sequence[int]) -> int:
        """Offer memory in which buckets lie at these offsets; returns the offer's number.

        Args:
            offsets: in bytes, by bucket; 0 for one that lies elsewhere.
        """
        self.offers += 1
        self.agreed = self._asked = False
        self._lent = frozenset(index for index, offset in enumerate(offsets) if offset)
        return self.offers

    def lent(self) -> frozenset[int]:
        """Indices of the buckets that the next rank can read where they lie."""
        return self._lent if self.agreed else frozenset()

    def asks(self, number: int) -> bool:
        """The next rank asks for the file of an offer; returns whether it is still the last one.

        Raises:
            ProtocolError: there was no such offer, or it asks for the last one again.
        """
        self._check(number)
        if number != self.offers:
            return False
        if self._asked:
            raise ProtocolError(ErrorCode.WRONG_STATE, f"borrows offer {number} twice")
        self._asked = True
        return True

    def borrows(self, number: int) -> None:
        """The next rank can read what an offer named; earlier offers do not matter any more.

        Raises:
            ProtocolError: there was no such offer.
        """
        self._check(number)
        self.agreed = self.agreed or number == self.offers

    def _check(self, number: int) -> None:
        if not 0 < number <= self.offers:
            raise ProtocolError(ErrorCode.WRONG_STATE, f"borrows offer {number} of {self.offers}")


class ReadPace:
    """How much of lent memory has been read since other things had their turn.

    Args:
        limit_bytes: most that is read at once.
    """

    def __init__(self, limit_bytes: int = READ_AT_ONCE_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._read_bytes = 0

    def read(self, size_bytes: int) -> None:
        """So much more has been read."""
        self._read_bytes += size_bytes

    def must_pause(self) -> bool:
        """Whether other things come first now; then the count begins anew."""
        if self._read_bytes < self._limit_bytes:
            return False
        self._read_bytes = 0
        return True
