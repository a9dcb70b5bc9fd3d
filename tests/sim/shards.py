"""The shards of a simulated state: equal atoms, of which a worker holds some.

An atom of a state has its content, as the whole state has; a worker holds a set of atoms.  Each
commit changes the atoms that it holds, so that an atom of another step, or a missing one, is seen.
Worlds of 1 to 6 ranks divide the atoms without a rest.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from dtd.engine.digests import ShardDigests, Tally
from dtd.engine.shards import WHOLE, ShardSet

ATOMS: Final = 60
BYTES: Final = 16
"""Size of an atom's content on its way to another rank."""
LARGEST_WORLD: Final = 6

Atoms = tuple[str, ...]
"""The content of each atom, empty for one that is not held; () for a state that is not sharded."""


def whole(content: str) -> Atoms:
    """All atoms of a state."""
    return (content,) * ATOMS


def none() -> Atoms:
    """The atoms of a worker that has only the common part."""
    return ("",) * ATOMS


def part_of(atoms: Atoms) -> ShardSet:
    """Which shards are held; all of a state that is not sharded."""
    if not atoms:
        return WHOLE
    return _part_with(tuple(map(bool, atoms)))


@functools.cache
def _part_with(held: tuple[bool, ...]) -> ShardSet:
    """The shards of these atoms: there are few such sets, and each is asked for again and again."""
    return ShardSet.segments((index for index, is_held in enumerate(held) if is_held), ATOMS)


def cut(atoms: Atoms, part: ShardSet) -> Atoms:
    """The atoms without those that are not in the part."""
    kept = {index for start, stop in part.ranges(ATOMS) for index in range(start, stop)}
    return tuple(content if index in kept else "" for index, content in enumerate(atoms))


def joined(one: Atoms, other: Atoms) -> Atoms:
    """The atoms of both."""
    return tuple(a or b for a, b in zip(one, other, strict=True))


def changed(atoms: Atoms, change: Callable[[str], str]) -> Atoms:
    """The atoms after each that is held has changed."""
    made = {content: change(content) for content in set(atoms) if content}
    return tuple(made.get(content, "") for content in atoms)


def digest(atoms: Atoms, part: ShardSet) -> bytes:
    """Hash of a part."""
    content = hashlib.blake2b(digest_size=BYTES)
    for start, stop in part.ranges(ATOMS):
        content.update(sent(atoms[start:stop]))
    return content.digest()


def digests(atoms: Atoms, content: str, cut_into: int) -> ShardDigests:
    """Return a rank's digests of a state: the common part's, and those of its segments."""
    held, segments = part_of(atoms), {}
    for index in range(cut_into):
        one = ShardSet.segments([index], cut_into)
        if held.covers(one):
            segments[index] = digest(atoms, one)
    return ShardDigests(cut=cut_into, common=bytes.fromhex(content), segments=segments)


def said(tally: Tally, contents: Sequence[str]) -> list[bytes]:
    """The digest that each rank reports of a state: its content, unless its shards are disputed.

    Args:
        tally: of the shards.
        contents: each rank's digest of the common part.
    """
    times = Counter(tally.digests)
    return [
        bytes.fromhex(content) if tally.disputed is None or times[one] > 1 else one
        for one, content in zip(tally.digests, contents, strict=True)
    ]


def sent(atoms: Sequence[str]) -> bytes:
    """Atoms as bytes; none of them is empty."""
    return b"".join(map(bytes.fromhex, atoms))


def received(data: bytes) -> list[str]:
    """The atoms of these bytes."""
    return [data[at : at + BYTES].hex() for at in range(0, len(data), BYTES)]
