"""Sharing of bucket memory with the next rank, and pacing of reads from the previous rank's.

Pure: numbers and sets.  Memory, files and sockets belong to the shell
(`dtd.exchange.shared_memory`, `dtd.exchange.ring_node`); protocol.md, "Loans", defines the
messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dtd.errors import ErrorCode, ProtocolError

READ_AT_ONCE_BYTES: Final = 8 * 1024 * 1024
"""After reading this much shared memory other work comes first: frames without payload
arrive many at a time, and the memory that they name takes 0.14 ms for each MiB to add, at first
sight 0.33 ms.
"""


class Lending:
    """The shared memory that one rank has offered to the next.

    Attributes:
        offers: number of the last offer; 0 before the first.
        agreed: the next rank can read the memory of the last offer.
    """

    def __init__(self) -> None:
        self.offers = 0
        self.agreed = False
        self._asked = False
        self._lent: frozenset[int] = frozenset()

    def offer(self, offsets: Sequence[int]) -> int:
        """Offer memory that holds buckets at these offsets; returns the offer's number.

        Args:
            offsets: in bytes, by bucket; 0 for a bucket that is not in it.
        """
        self.offers += 1
        self.agreed = self._asked = False
        self._lent = frozenset(index for index, offset in enumerate(offsets) if offset)
        return self.offers

    def lent(self) -> frozenset[int]:
        """Indices of the buckets that the next rank can read in shared memory."""
        return self._lent if self.agreed else frozenset()

    def asks(self, number: int) -> bool:
        """The next rank requests the file of an offer; returns whether it is still the last offer.

        Raises:
            ProtocolError: there was no such offer, or the last one is requested again.
        """
        self._check(number)
        if number != self.offers:
            return False
        if self._asked:
            raise ProtocolError(ErrorCode.WRONG_STATE, f"borrows offer {number} twice")
        self._asked = True
        return True

    def borrows(self, number: int) -> None:
        """The next rank can read the memory of an offer; earlier offers are obsolete.

        Raises:
            ProtocolError: there was no such offer.
        """
        self._check(number)
        self.agreed = self.agreed or number == self.offers

    def _check(self, number: int) -> None:
        if not 0 < number <= self.offers:
            raise ProtocolError(ErrorCode.WRONG_STATE, f"borrows offer {number} of {self.offers}")


class ReadPace:
    """The amount of shared memory read since other work had its turn.

    Args:
        limit_bytes: most bytes read at once.
    """

    def __init__(self, limit_bytes: int = READ_AT_ONCE_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._read_bytes = 0

    def read(self, size_bytes: int) -> None:
        """Count bytes read."""
        self._read_bytes += size_bytes

    def must_pause(self) -> bool:
        """Whether other work comes first now; if so, restart the count."""
        if self._read_bytes < self._limit_bytes:
            return False
        self._read_bytes = 0
        return True
