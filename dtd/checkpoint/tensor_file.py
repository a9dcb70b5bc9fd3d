"""Files of tensors in the safetensors format, and the parts of them that a worker holds.

The format: length of the header (8 bytes, little-endian), the header as JSON, the tensors' bytes
one after another (https://github.com/huggingface/safetensors).  Whoever writes
one takes its header from here, so equal tensors give equal files.

Where the state is sharded, a worker writes a *part*: files in which a sharded tensor has one
dimension and only the elements of the worker's shards.  Which ones is the entry `part` of the
manifest.  `FileMerge` makes of the parts' files those of a whole checkpoint, byte for byte what one
process that holds the whole state would have written: block by block, so memory does not depend on
the size of the model.  What several parts have, a shard and its mirrors or the common part, is read
from each of them and compared.  Blocking, without torch.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self

import xxhash

from dtd.engine.shards import ShardSet
from dtd.errors import CheckpointError, PartsDiffer, ProtocolError
from dtd.host.durable import synced
from dtd.text.json_reader import read_json
from dtd.text.shown import shown

MODEL_FILE: Final = "model.safetensors"
AVERAGES_FILE: Final = "ema.safetensors"
OPTIMIZER_FILE: Final = "optimizer.safetensors"
FILES: Final = (MODEL_FILE, AVERAGES_FILE, OPTIMIZER_FILE)
"""Files of a checkpoint, in the order in which a state lists their tensors."""

ITEM_BYTES: Final[Mapping[str, int]] = {
    **dict.fromkeys(("F64", "I64"), 8),
    **dict.fromkeys(("F32", "I32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16"), 2),
    **dict.fromkeys(("I8", "U8", "BOOL"), 1),
}
"""Sizes of the element types by the name that safetensors gives them."""

_ALIGNMENT: Final = 8
_LENGTH_BYTES: Final = 8
BLOCK_BYTES: Final = 1 << 20
_MAX_HEADER_BYTES: Final = 16 << 20
_MAX_DIMENSIONS: Final = 64
"""Most dimensions that torch can use; the product of a shape costs the square of its length."""
_MOST: Final = 2**63 - 1
_PREFIXES: Final = (("model.", MODEL_FILE), ("ema.", AVERAGES_FILE))


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """A tensor's name, element type and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.elements * ITEM_BYTES[self.dtype]


def placed(name: str) -> tuple[str, str]:
    """The file that holds a tensor of the state, such as "model.0.weight", and its name there."""
    for prefix, file in _PREFIXES:
        if name.startswith(prefix):
            return file, name.removeprefix(prefix)  # as the model's own state_dict() calls it
    return OPTIMIZER_FILE, name


def encode_header(tensors: Iterable[TensorInfo]) -> bytes:
    """Everything in a file that comes before the tensors' bytes."""
    header, stop = {}, 0
    for tensor in tensors:
        start, stop = stop, stop + tensor.size_bytes
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": [start, stop],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // _ALIGNMENT) * _ALIGNMENT)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


class TensorFile:
    """A file of tensors that is open for reading; use it as a context manager.

    Raises:
        CheckpointError: it cannot be read, or is no such file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise self._unreadable(error) from error
        try:
            self.tensors, self._starts = self._read_header()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self.close()
            raise CheckpointError(f"{path} is not a file of tensors: {error}") from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Elements [start, stop) of the flattened tensor of this name, as bytes.

        Raises:
            CheckpointError: they cannot be read.
        """
        item_bytes = ITEM_BYTES[self.tensors[name].dtype]
        size_bytes = (stop - start) * item_bytes
        try:
            self._file.seek(self._starts[name] + start * item_bytes)
            content = self._file.read(size_bytes)
        except OSError as error:
            raise self._unreadable(error) from error
        if len(content) != size_bytes:
            raise CheckpointError(f"{self._path} ends within {name}: torn")
        return content

    def read_all(
        self,
        memory: Mapping[str, memoryview] = MappingProxyType({}),
        progress: Callable[[], None] = lambda: None,
    ) -> str:
        """Read the whole file once; returns the hex xxh3-128 of its bytes.

        Args:
            memory: by name, memory that receives a tensor's bytes; others are only hashed.
            progress: called after each piece.

        Raises:
            CheckpointError: it cannot be read.
        """
        content, scratch = xxhash.xxh3_128(), memoryview(bytearray(BLOCK_BYTES))
        at, end = 0, os.fstat(self._file.fileno()).st_size
        wanted = sorted((self._starts[name], view) for name, view in memory.items() if view)
        try:
            self._file.seek(0)
            for start, view in [*wanted, (end, scratch[:0])]:
                spans = [scratch] * ((start - at) // BLOCK_BYTES)
                spans += [scratch[: (start - at) % BLOCK_BYTES]]
                spans += [view[i : i + BLOCK_BYTES] for i in range(0, len(view), BLOCK_BYTES)]
                for span in spans:
                    if self._file.readinto(span) != len(span):
                        raise CheckpointError(f"{self._path} ends too early: torn")
                    content.update(span)
                    progress()
                at = start + len(view)
        except OSError as error:
            raise self._unreadable(error) from error
        return content.hexdigest()

    def _read_header(self) -> tuple[dict[str, TensorInfo], dict[str, int]]:
        try:
            file_bytes = os.fstat(self._file.fileno()).st_size
            header_bytes = int.from_bytes(self._file.read(_LENGTH_BYTES), "little")
            if not 0 < header_bytes <= min(_MAX_HEADER_BYTES, file_bytes - _LENGTH_BYTES):
                raise ValueError(f"its header would have {header_bytes} bytes")
            header = read_json(self._file.read(header_bytes), max_bytes=_MAX_HEADER_BYTES)
        except OSError as error:
            raise self._unreadable(error) from error
        first = _LENGTH_BYTES + header_bytes
        tensors: dict[str, TensorInfo] = {}
        starts: dict[str, int] = {}
        for name, entry in header.items():
            if name != "__metadata__":
                tensors[name], start = _decoded(name, entry, file_bytes - first)
                starts[name] = first + start
        if sum(tensor.size_bytes for tensor in tensors.values()) > file_bytes - first:
            raise ValueError("its tensors overlap")  # merged, they would fill any disk
        return tensors, starts

    def _unreadable(self, error: OSError) -> CheckpointError:
        return CheckpointError(f"{self._path} cannot be read: {error.strerror or error}")


def _decoded(name: str, entry: Mapping[str, Any], content_bytes: int) -> tuple[TensorInfo, int]:
    """A tensor, and where it begins among the file's contents; ValueError: it is no tensor."""
    shape = checked_shape(entry["shape"])
    if entry["dtype"] not in ITEM_BYTES:
        raise ValueError(f"{shown(name)} has the element type {shown(entry['dtype'])}")
    info = TensorInfo(name=name, dtype=entry["dtype"], shape=shape)
    start, stop = (checked_size(offset) for offset in entry["data_offsets"])
    if stop - start != info.size_bytes or stop > content_bytes:
        raise ValueError(f"{shown(name)} lies from byte {start} to {stop}")
    return info, start


def checked_shape(sizes: Any) -> tuple[int, ...]:
    """A shape that JSON describes.

    Raises:
        ValueError: it is not one.
    """
    if not isinstance(sizes, list):
        raise ValueError(f"{shown(sizes)} is no shape")  # noqa: TRY004 - the caller's one error
    if len(sizes) > _MAX_DIMENSIONS:
        raise ValueError(f"a shape has {len(sizes)} dimensions, more than {_MAX_DIMENSIONS}")
    return tuple(checked_size(size) for size in sizes)


def checked_size(size: Any) -> int:
    """A number of elements or bytes that JSON describes.

    Raises:
        ValueError: it is not one.
    """
    if type(size) is not int or not 0 <= size <= _MOST:
        raise ValueError(f"{shown(size)} is no size")
    return size


Range = tuple[int, int]
"""Elements [start, stop) of a flattened tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTensor:
    """A sharded tensor, as far as a part has it.

    Attributes:
        ranges: the part's ranges of the flattened tensor, ascending and disjoint.
    """

    dtype: str
    shape: tuple[int, ...]
    ranges: tuple[Range, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def held_elements(self) -> int:
        return sum(stop - start for start, stop in self.ranges)

    def stored_as(self, name: str) -> TensorInfo:
        """The tensor in the part's file, under the name that it has there."""
        return TensorInfo(name=name, dtype=self.dtype, shape=(self.held_elements,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The entry `part` of a manifest.

    Attributes:
        shards: the part's shards of the sharded tensors.
        mirrors: further holders of each shard in the generation that wrote it.
        tensors: the sharded tensors by their name in the manifest; others are there as a whole.
    """

    shards: ShardSet
    mirrors: int
    tensors: Mapping[str, HeldTensor]

    def to_mapping(self) -> dict[str, Any]:
        return {
            "shards": self.shards.to_wire(),
            "mirrors": self.mirrors,
            "tensors": {
                name: {
                    "dtype": one.dtype,
                    "shape": [*one.shape],
                    "ranges": [*map(list, one.ranges)],
                }
                for name, one in self.tensors.items()
            },
        }

    @classmethod
    def from_mapping(cls, content: Any) -> Part:
        """Return what JSON describes.

        Raises:
            CheckpointError: it describes no part.
        """
        try:
            return cls(
                shards=ShardSet.from_wire([checked_size(one) for one in content["shards"]]),
                mirrors=checked_size(content["mirrors"]),
                tensors={name: _tensor(name, one) for name, one in content["tensors"].items()},
            )
        except ProtocolError as error:
            raise CheckpointError(f"the part of a checkpoint is broken: {error.message}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"the part of a checkpoint is broken: {error}") from error


def _tensor(name: str, content: Mapping[str, Any]) -> HeldTensor:
    if content.keys() != {"dtype", "shape", "ranges"} or content["dtype"] not in ITEM_BYTES:
        raise ValueError(f"{shown(name)} is no description of a tensor")
    ranges = tuple((checked_size(start), checked_size(stop)) for start, stop in content["ranges"])
    tensor = HeldTensor(
        dtype=content["dtype"], shape=checked_shape(content["shape"]), ranges=ranges
    )
    bounds = [bound for one in ranges for bound in one]
    # Two that touch may belong to two buckets' segments; nothing may be there twice.
    if (
        any(start >= stop for start, stop in ranges)
        or any(before > after for before, after in pairwise(bounds))
        or bounds[-1:] > [tensor.elements]
    ):
        raise ValueError(f"{shown(name)}: its ranges do not ascend within its elements")
    return tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """Size and xxh3-128 of one file."""

    size_bytes: int
    hash: str


OnBlock = Callable[[bytes], None]
"""Called with each block of elements, in the order of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFiles:
    """A part on this disk.

    Attributes:
        holder: the worker that wrote it, for messages.
        tensors: names of all tensors of the state, in the manifest's order.
    """

    holder: str
    directory: Path
    tensors: tuple[str, ...]
    part: Part


class FileMerge:
    """One file of all parts, open for reading; use it as a context manager.

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

    def write(self, target: Path, on_block: OnBlock | None = None) -> FileInfo:
        """Write the file of the whole checkpoint; it is durable when this returns.

        Raises:
            CheckpointError: no part has some of the elements.
            PartsDiffer: parts have different elements.
            OSError: the target cannot be written.
        """
        content, size_bytes = xxhash.xxh3_128(), 0
        stream = target.open("xb")
        try:
            with synced(stream):
                for is_header, piece in self._pieces():
                    stream.write(piece)
                    content.update(piece)
                    size_bytes += len(piece)
                    if on_block is not None and not is_header:
                        on_block(piece)
        except BaseException:
            target.unlink(missing_ok=True)
            raise
        return FileInfo(size_bytes=size_bytes, hash=content.hexdigest())

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
