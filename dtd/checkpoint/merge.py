"""Merges the files of a checkpoint's parts into the files of a whole one.

Byte for byte what one process that holds the whole state would have written.  Elements are copied
block by block, so memory does not depend on the size of the model.  What several parts have, a
shard and its mirrors or the common part, is read from each of them and compared.  If two parts
differ, `settled` leaves one of them out, since others have what it has.  Blocking.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import xxhash

from dtd.checkpoint.tensor_file import (
    ITEM_BYTES,
    Part,
    Range,
    TensorFile,
    TensorInfo,
    encode_header,
    placed,
)
from dtd.errors import CheckpointError, PartsDiffer

BLOCK_BYTES: Final = 1 << 20

OnBlock = Callable[[bytes], None]
"""Called with each block of elements, in the order of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFiles:
    """A part on this disk.

    Attributes:
        holder: the worker that wrote it, for messages.
        directory: where its files are.
        tensors: names of all tensors of the state, in the manifest's order.
        part: its ranges of the tensors.
    """

    holder: str
    directory: Path
    tensors: tuple[str, ...]
    part: Part


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedFile:
    """Size and xxh3-128 of a file that was written."""

    size_bytes: int
    hash: str


class FileMerge:
    """One file of all parts, open for reading; use it as a context manager.

    Args:
        file: its name in the directories of the parts.
        parts: at least one.

    Attributes:
        tensors: what belongs in the file of the whole checkpoint, by the names that tensors
            have in it.

    Raises:
        CheckpointError: a part's file is damaged or does not hold what its manifest lists.
        PartsDiffer: parts do not agree on what there is.
    """

    def __init__(self, file: str, parts: Sequence[PartFiles]) -> None:
        self._name = file
        self._parts = parts
        self._listed = {placed(name)[1]: name for name in parts[0].tensors}
        with contextlib.ExitStack() as opened:
            self._files = [opened.enter_context(TensorFile(p.directory / file)) for p in parts]
            self.tensors = self._agreed()
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._opened.close()

    def write(self, target: Path, on_block: OnBlock | None = None) -> MergedFile:
        """Write the file of the whole checkpoint; it is durable when this returns.

        Args:
            target: must not exist; removed again if this fails.
            on_block: called after each block.

        Raises:
            CheckpointError: no part has some of the elements.
            PartsDiffer: parts have different elements.
            OSError: the target cannot be written.
        """
        content, size_bytes = xxhash.xxh3_128(), 0
        stream = target.open("xb")
        try:
            with stream:
                for is_header, piece in self._pieces():
                    stream.write(piece)
                    content.update(piece)
                    size_bytes += len(piece)
                    if on_block is not None and not is_header:
                        on_block(piece)
                stream.flush()
                os.fsync(stream.fileno())
        except BaseException:
            target.unlink(missing_ok=True)
            raise
        return MergedFile(size_bytes=size_bytes, hash=content.hexdigest())

    def _pieces(self) -> Iterator[tuple[bool, bytes]]:
        yield True, encode_header(self.tensors)
        for tensor in self.tensors:
            for block in self._blocks(tensor):
                yield False, block

    def _blocks(self, tensor: TensorInfo) -> Iterator[bytes]:
        """A tensor's elements, each block from one part and compared with all others."""
        held = [self._ranges(number, tensor.name) for number in range(len(self._parts))]
        within = {bound for ranges in held for one in ranges for bound in one}
        bounds = sorted({tensor.elements, *within})
        most = BLOCK_BYTES // ITEM_BYTES[tensor.dtype]
        at = 0
        while at < tensor.elements:
            stop = min(at + most, bounds[bisect_right(bounds, at)])
            yield self._block(tensor.name, held, at, stop)
            at = stop

    def _block(self, name: str, held: Sequence[tuple[Range, ...]], start: int, stop: int) -> bytes:
        first: tuple[str, bytes] | None = None
        for part, file, ranges in zip(self._parts, self._files, held, strict=True):
            offset = _offset(ranges, start)
            if offset is None:
                continue
            block = file.read(name, offset, offset + stop - start)
            if first is not None and block != first[1]:
                raise PartsDiffer(
                    f"{first[0]} and {part.holder} have different values for elements {start} to"
                    f" {stop} of {name} in {self._name}",
                    holders=(first[0], part.holder),
                    remedy="leave one of the two out, or take an earlier checkpoint",
                )
            first = first or (part.holder, block)
        if first is None:
            raise CheckpointError(
                f"no part has elements {start} to {stop} of {name} in {self._name}"
            )
        return first[1]

    # --- content of the parts ------------------------------------------------------------------

    def _ranges(self, number: int, name: str) -> tuple[Range, ...]:
        """Return the ranges of a tensor that a part has, by its name in the file."""
        part, file = self._parts[number], self._files[number]
        held = part.part.tensors.get(self._listed[name])
        return held.ranges if held is not None else ((0, file.tensors[name].elements),)

    def _agreed(self) -> list[TensorInfo]:
        first, *others = [
            self._described(part, file) for part, file in zip(self._parts, self._files, strict=True)
        ]
        for part, one in zip(self._parts[1:], others, strict=True):
            if one != first:
                raise PartsDiffer(
                    f"the parts of {self._parts[0].holder} and {part.holder} list different"
                    f" tensors for {self._name}",
                    holders=(self._parts[0].holder, part.holder),
                    remedy="take parts of one checkpoint of one job",
                )
        return first

    def _described(self, part: PartFiles, file: TensorFile) -> list[TensorInfo]:
        """The whole tensors of which a part's file has its share."""
        whole, expected = [], {}
        for listed in part.tensors:
            where, name = placed(listed)
            if where != self._name:
                continue
            held = part.part.tensors.get(listed)
            stored = file.tensors.get(name) if held is None else held.stored_as(name)
            if stored is None:
                raise CheckpointError(f"{self._name} of {part.holder} lacks {name}: damaged")
            expected[name] = stored
            shape = stored.shape if held is None else held.shape
            whole.append(TensorInfo(name=name, dtype=stored.dtype, shape=shape))
        if expected != file.tensors:
            raise CheckpointError(
                f"{self._name} of {part.holder} does not hold what its manifest lists"
            )
        return whole


def _offset(ranges: Sequence[Range], element: int) -> int | None:
    """Return a part's offset of an element of the flattened tensor; None if it does not have it."""
    before = 0
    for start, stop in ranges:
        if start <= element < stop:
            return before + element - start
        before += stop - start
    return None


Result = TypeVar("Result")

MOST_TRIES: Final = 8
"""Most merges that are tried: each reads all parts."""


def settled(
    merge: Callable[[frozenset[str]], Result], distrust: Callable[[str], Any]
) -> tuple[Result, frozenset[str]]:
    """Merge parts, without some of them if need be.

    Args:
        merge: merges parts, none of them of the workers that it is given.
        distrust: how little a worker's part is trusted, as a key to sort by.

    Returns:
        the merged result, and the workers whose parts were left out.

    Raises:
        PartsDiffer: nothing can be merged however they are chosen; tells of the first two.
        CheckpointError: it cannot be merged for another reason.
    """
    left = deque([frozenset[str]()])
    known = {frozenset[str]()}
    first: PartsDiffer | None = None
    while left:
        without = left.popleft()
        try:
            return merge(without), without
        except PartsDiffer as error:
            first = first or error
            for name in sorted(error.holders, key=distrust, reverse=True):
                more = without | {name}
                if more not in known and len(known) < MOST_TRIES:
                    known.add(more)
                    left.append(more)
        except CheckpointError:
            if first is None:
                raise
    assert first is not None, "nothing was tried"
    raise first
