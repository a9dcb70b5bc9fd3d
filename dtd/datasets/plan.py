"""Decides which chunk of a fetch is asked of which source.

A *complete* source has all chunks.  A *partial* one fetches the same data at the same time and
passes on what it has.  The link out of a single complete source is the narrowest place, so no chunk
should leave it twice: those that fetch share the chunks out by their number in the list of
fetchers, ask the complete source for their own share first, and take the others from one another.
One that has its share takes from the end of the shares that are not fetched yet.

Pure: no time and no sockets; told what has happened, asked what to request.  Sets of chunks are
integers with a bit for each: a fetch of 1 TiB has 262,144 chunks, and chooses for each.
"""

from __future__ import annotations


class Plan:
    """The chunks of one fetch.

    Attributes:
        have: bits of those that are here.
    """

    def __init__(self, chunks: int, have: int) -> None:
        self.have = have
        self._chunks = chunks
        self._all = (1 << chunks) - 1
        self._wanted = self._all & ~have
        self._asked: dict[int, str] = {}
        self._held: dict[str, int | None] = {}
        self._share = self._all

    @property
    def complete(self) -> bool:
        return self.have == self._all

    def share_out(self, share: int, shares: int) -> None:
        """Take share number `share` of `shares`: one for each worker that fetches these data."""
        highest_first = "0" * (shares - 1 - share) + "1" + "0" * share
        self._share = int(highest_first * -(-self._chunks // shares) or "0", 2)

    def holds(self, source: str, chunks: int | None) -> None:
        """A source has the chunks of these bits; None: all."""
        self._held[source] = chunks

    def lost(self, source: str) -> None:
        """A source is gone, and with it what was asked of it."""
        self._held.pop(source, None)
        for chunk in [chunk for chunk, of in self._asked.items() if of == source]:
            del self._asked[chunk]
            self._wanted |= 1 << chunk

    def received(self, chunk: int) -> None:
        self._asked.pop(chunk, None)
        self.have |= 1 << chunk
        self._wanted &= ~self.have

    def next(self, source: str) -> int | None:
        """The chunk to ask of this source now; None: none.  It counts as asked."""
        held = self._held.get(source, 0)
        chunk = self._of_complete() if held is None else _lowest(self._wanted & held)
        if chunk < 0:
            return None
        self._asked[chunk] = source
        self._wanted ^= 1 << chunk
        return chunk

    @property
    def stalled(self) -> bool:
        """Whether no source has anything of what is missing."""
        missing = self._all & ~self.have
        return missing != 0 and not any(
            held is None or held & missing for held in self._held.values()
        )

    def _of_complete(self) -> int:
        """The own share, then others' from the end; what partial sources have comes last."""
        rare = self._wanted
        for held in self._held.values():
            rare &= ~(held or 0)
        own = rare & self._share
        return _lowest(own) if own else _highest(rare or self._wanted)


def _lowest(bits: int) -> int:
    """The number of the lowest bit that is set; -1: none."""
    return (bits & -bits).bit_length() - 1


def _highest(bits: int) -> int:
    """The number of the highest bit that is set; -1: none."""
    return bits.bit_length() - 1
