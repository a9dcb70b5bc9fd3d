"""Decides which chunk of a fetch is asked of which source.

A *complete* source has all chunks.  A *partial* one fetches the same data at the same time and
passes on what it has.  The link out of a single complete source is the narrowest place, so no chunk
should leave it twice: those that fetch share the chunks out by their number in the list of
fetchers, ask the complete source for their own share first, and take the others from one another.
One that has its share takes from the end of the shares that are not fetched yet.

Pure: no time and no sockets; told what has happened, asked what to request.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_SCANNED_IN_VAIN: Final = 256
"""Chunks that are here and still in the list of missing ones, at most."""


class Plan:
    """The chunks of one fetch."""

    def __init__(self, chunks: int, have: set[int]) -> None:
        self.have = set(have)
        self._chunks = chunks
        self._asked: dict[int, str] = {}
        self._held: dict[str, set[int] | None] = {}
        self._share, self._shares = 0, 1
        self._missing = [chunk for chunk in range(chunks) if chunk not in self.have]

    @property
    def complete(self) -> bool:
        """Whether all chunks are here."""
        return len(self.have) == self._chunks

    def share_out(self, share: int, shares: int) -> None:
        """Take share number `share` of `shares`: one for each worker that fetches these data."""
        self._share, self._shares = share, shares

    def holds(self, source: str, chunks: set[int] | None) -> None:
        """A source has these chunks; None: all."""
        self._held[source] = chunks

    def lost(self, source: str) -> None:
        """A source is gone, and with it what was asked of it."""
        self._held.pop(source, None)
        for chunk in [chunk for chunk, of in self._asked.items() if of == source]:
            del self._asked[chunk]

    def received(self, chunk: int) -> None:
        """A chunk is here, and verified."""
        self._asked.pop(chunk, None)
        self.have.add(chunk)
        if len(self._missing) > self._chunks - len(self.have) + _SCANNED_IN_VAIN:
            self._missing = [one for one in self._missing if one not in self.have]

    def next(self, source: str) -> int | None:
        """The chunk to ask of this source now; None: none.  It counts as asked."""
        held = self._held.get(source, set())
        chunk = next(self._of_partial(held) if held is not None else self._of_complete(), None)
        if chunk is not None:
            self._asked[chunk] = source
        return chunk

    @property
    def stalled(self) -> bool:
        """Whether no source has anything of what is missing."""
        return not self.complete and not any(
            held is None or any(chunk in held for chunk in self._missing if chunk not in self.have)
            for held in self._held.values()
        )

    def _of_partial(self, held: set[int]) -> Iterator[int]:
        return (chunk for chunk in self._missing if chunk in held and self._is_wanted(chunk))

    def _of_complete(self) -> Iterator[int]:
        """The own share, then others' from the end; what partial sources have comes last."""
        partial = [held for held in self._held.values() if held is not None]
        for chunks, own in ((self._missing, True), (reversed(self._missing), False)):
            yield from (
                chunk
                for chunk in chunks
                if (chunk % self._shares == self._share) == own
                and self._is_wanted(chunk)
                and not any(chunk in held for held in partial)
            )
        yield from filter(self._is_wanted, reversed(self._missing))

    def _is_wanted(self, chunk: int) -> bool:
        return chunk not in self.have and chunk not in self._asked
