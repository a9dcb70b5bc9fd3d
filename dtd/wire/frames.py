"""Frames: the fixed prefix, the msgpack header, the raw payload and the integrity tag.

Pure: bytes in, frames out (protocol.md, "Frames").  Nothing is allocated before its size has been
checked; a payload is received directly into memory that the owner of the connection provides once
it has accepted the header.  The header is one
msgpack map with text keys, decoded in bounded memory; `dtd.wire.messages` reads it field by field.

    +-------+---------+-------+----------+------------+-------------+ - - - - + - - - - - + - - -+
    | magic | version | flags | reserved | header len | payload len | header  | payload   | tag  |
    | 4     | 1       | 1     | 2        | 4          | 4           | msgpack | raw bytes | 16   |
    +-------+---------+-------+----------+------------+-------------+ - - - - + - - - - - + - - -+
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgpack

from dtd.errors import ErrorCode, LocalProtocolError, ProtocolError
from dtd.wire.tags import CHECKSUM, TAG_BYTES, Tag

MAX_HEADER_BYTES: Final = 64 * 1024
MAX_NESTING: Final = 8

Header = dict[str, Any]
MAGIC: Final = b"DTDF"
PROTOCOL_VERSION: Final = 1
PREFIX: Final = struct.Struct("!4sBBHII")
PREFIX_BYTES: Final = PREFIX.size
_TAG: Final = struct.Struct(f"{TAG_BYTES}s")
DEFAULT_MAX_PAYLOAD_BYTES: Final = 1024 * 1024
LARGEST_MAX_PAYLOAD_BYTES: Final = 16 * 1024 * 1024


@dataclass(slots=True)
class Frame:
    """One received frame whose tag was correct.

    Attributes:
        header: the decoded msgpack map.
        payload: the payload's bytes, in the memory that the sink provided, or the decoder's own.
    """

    header: Header
    payload: memoryview


class Hold:
    """A sink's answer when it accepts a header but has no memory for the payload yet."""


HOLD: Final = Hold()

# Called with a frame's header and payload length; returns where the payload goes (writable bytes,
# exactly that many), HOLD, or None for memory of the decoder's own.  It may raise ProtocolError.
Sink = Callable[[Header, int], "memoryview | Hold | None"]

NO_FRAMES: Final[Iterator[Frame]] = iter(())


def encode_frame(
    header: bytes, payload: bytes | memoryview = b"", tag: Tag = CHECKSUM
) -> tuple[bytes, bytes]:
    """The bytes that go before and after a payload; the payload itself is not copied.

    Args:
        header: a message's msgpack map (`dtd.wire.messages.encode_header`).
        payload: raw bytes; read for the tag, never copied.
        tag: the tag of this direction of the connection; it counts the frames.

    Returns:
        (prefix + header, tag)

    Raises:
        LocalProtocolError: header or payload exceeds what any peer may accept.
    """
    head = _head(header, payload, tag)
    return head, tag.digest(head, payload)


def frame_bytes(header: bytes, payload: bytes | memoryview = b"", tag: Tag = CHECKSUM) -> bytes:
    """A complete small frame as one byte string; arguments and errors as for `encode_frame`."""
    head = _head(header, payload, tag)
    return b"".join((head, payload, tag.digest(head, payload)))


def _head(header: bytes, payload: bytes | memoryview, tag: Tag) -> bytes:
    payload_bytes = payload.nbytes if isinstance(payload, memoryview) else len(payload)
    if len(header) > MAX_HEADER_BYTES:
        raise LocalProtocolError(f"header of {len(header)} bytes > {MAX_HEADER_BYTES}")
    if payload_bytes > LARGEST_MAX_PAYLOAD_BYTES:
        raise LocalProtocolError(f"payload of {payload_bytes} bytes > {LARGEST_MAX_PAYLOAD_BYTES}")
    return PREFIX.pack(MAGIC, PROTOCOL_VERSION, tag.flag, 0, len(header), payload_bytes) + header


class FrameDecoder:
    """Incremental decoder: provides the memory to receive into, and yields complete frames.

    Usage: receive bytes into `next_buffer()`, then iterate over `received(count)`.  Small things
    (prefix, header, tag, small payloads) pass through a staging buffer; the rest of a large
    payload is received in place.  `feed(data)` does both for bytes already in memory.

    When the sink answers HOLD, `held` is true and `received` stops; call `resume()` once there is
    memory.  After a ProtocolError the decoder is unusable and raises the same error again.

    Args:
        sink: provides the memory for each payload.
        max_payload_bytes: the limit in this side's HELLO or WELCOME.
        staging_bytes: how much is read ahead; what a read brings of a payload beyond its header
            is copied, so links that carry large payloads keep this small.

    Attributes:
        tag: of the other side's direction; a sink that learns a key replaces it for the frame at
            hand and all that follow.
    """

    def __init__(
        self,
        sink: Sink = lambda _header, _payload_bytes: None,
        *,
        max_payload_bytes: int = DEFAULT_MAX_PAYLOAD_BYTES,
        staging_bytes: int = 4096,
        tag: Tag = CHECKSUM,
    ) -> None:
        self.tag = tag
        self.max_payload_bytes = max_payload_bytes
        self._sink = sink
        self._staging_bytes = max(staging_bytes, PREFIX_BYTES + TAG_BYTES)
        self._staging = memoryview(b"")
        self._begin = self._end = 0
        self._head_bytes = self._payload_bytes = self._filled = 0
        self._head = b""
        self._header: Header | None = None
        self._payload: memoryview | None = None
        self._error: ProtocolError | None = None
        self.held = False

    @property
    def header_bytes(self) -> bytes:
        """The header bytes of the current frame, or of the last one, as received."""
        return self._head[PREFIX_BYTES:]

    def next_buffer(self) -> memoryview:
        """Writable memory for the next bytes of the stream; never empty unless a frame is held."""
        if self._error is not None:
            raise self._error
        if self._payload is not None and self._filled < self._payload_bytes:
            return self._payload[self._filled :]
        if self._begin == self._end:
            if not self._staging:  # an idle connection needs no memory
                self._staging = memoryview(bytearray(self._staging_bytes))
            self._begin = self._end = 0
            return self._staging
        if self._begin:
            rest = self._staging[self._begin : self._end].tobytes()
            self._staging[: len(rest)] = rest
            self._begin, self._end = 0, len(rest)
        return self._staging[self._end :]

    def received(self, count: int) -> Iterator[Frame]:
        """Account for `count` bytes written into `next_buffer()`; yield what they complete."""
        if self._payload is not None and self._filled < self._payload_bytes:
            self._filled += count
            return NO_FRAMES  # its tag has not arrived yet
        self._end += count
        return NO_FRAMES if self.held else self._parse()

    def resume(self) -> Iterator[Frame]:
        """Ask the sink again for the memory of the held frame, and continue."""
        self.held = False
        return self._parse()

    def feed(self, data: bytes | memoryview) -> Iterator[Frame]:
        """Decode bytes that are already in memory.

        Raises:
            LocalProtocolError: bytes were fed while the sink holds a frame.
        """
        view = memoryview(data)
        while view:
            if self.held:
                raise LocalProtocolError("bytes were fed to a decoder that holds a frame")
            buffer = self.next_buffer()
            count = min(len(view), len(buffer))
            buffer[:count] = view[:count]
            view = view[count:]
            yield from self.received(count)

    def end(self) -> None:
        """The stream ended.

        Raises:
            ProtocolError: TRUNCATED when it ended inside a frame.
        """
        if self._error is None and (self._begin != self._end or self._head_bytes):
            self._error = ProtocolError(ErrorCode.TRUNCATED, "the stream ended inside a frame")
            raise self._error

    def _parse(self) -> Iterator[Frame]:
        if self._error is not None:
            raise self._error
        try:
            while (frame := self._step()) is not None:
                yield frame
                if self._begin == self._end:
                    return
        except ProtocolError as error:
            self._error = error
            raise

    def _step(self) -> Frame | None:
        """Parse the staged bytes; return the next complete frame, if any."""
        if self._header is None and not self._read_head():
            return None
        if self._payload is None and not self._place_payload():
            return None
        if self._filled < self._payload_bytes and not self._fill_payload():
            return None
        if self._end - self._begin < TAG_BYTES:
            return None
        return self._finish()

    def _read_head(self) -> bool:
        if not self._head_bytes and not self._read_prefix():
            return False
        begin = self._begin
        self._begin = min(begin + self._head_bytes - len(self._head), self._end)
        self._head += self._staging[begin : self._begin].tobytes()
        if len(self._head) < self._head_bytes:
            return False
        self._header = decode_header(self._head[PREFIX_BYTES:])
        return True

    def _read_prefix(self) -> bool:
        """Check the prefix; it stays in the staging buffer, before its header."""
        begin = self._begin
        if self._end - begin < PREFIX_BYTES:
            _check_magic(self._staging[begin : self._end].tobytes()[: len(MAGIC)])
            return False
        prefix = PREFIX.unpack_from(self._staging, begin)
        magic, version, flags, reserved, header_bytes, payload_bytes = prefix
        if magic != MAGIC:
            _check_magic(magic)
        if version != PROTOCOL_VERSION:
            raise ProtocolError(
                ErrorCode.BAD_VERSION,
                f"frame version {version}, but this side speaks {PROTOCOL_VERSION}",
                remedy="install the same dtd version on both hosts",
            )
        if flags not in self.tag.admits or reserved:
            agreed = " or ".join(f"{flag:#04x}" for flag in self.tag.admits)
            problem = f"flags {flags:#04x} reserved {reserved:#06x}, not {agreed} and 0"
            raise ProtocolError(ErrorCode.BAD_FLAGS, problem)
        if header_bytes > MAX_HEADER_BYTES:
            problem = f"header of {header_bytes} bytes > {MAX_HEADER_BYTES}"
            raise ProtocolError(ErrorCode.HEADER_TOO_LARGE, problem)
        if payload_bytes > self.max_payload_bytes:
            problem = f"payload of {payload_bytes} bytes > {self.max_payload_bytes}"
            raise ProtocolError(ErrorCode.PAYLOAD_TOO_LARGE, problem)
        self._head = b""
        self._head_bytes, self._payload_bytes = PREFIX_BYTES + header_bytes, payload_bytes
        return True

    def _place_payload(self) -> bool:
        assert self._header is not None
        payload_bytes = self._payload_bytes
        place = self._sink(self._header, payload_bytes)
        if isinstance(place, Hold):
            self.held = True
            return False
        if place is None:
            place = memoryview(bytearray(payload_bytes))
        if len(place) != payload_bytes or place.nbytes != payload_bytes or place.readonly:
            raise LocalProtocolError(f"sink offered {place!r} for {payload_bytes} bytes")
        self._payload = place
        return True

    def _fill_payload(self) -> bool:
        """Move the part of the payload that was read ahead; the rest is received in place."""
        assert self._payload is not None
        filled, begin = self._filled, self._begin
        count = min(self._payload_bytes - filled, self._end - begin)
        self._filled, self._begin = filled + count, begin + count
        self._payload[filled : self._filled] = self._staging[begin : self._begin]
        return self._filled == self._payload_bytes

    def _finish(self) -> Frame:
        assert self._header is not None
        assert self._payload is not None
        (seal,) = _TAG.unpack_from(self._staging, self._begin)
        self._begin += TAG_BYTES
        if not self.tag.same(self.tag.digest(self._head, self._payload), seal):
            problem = "tag does not match: damaged in transit, or sealed with a different key"
            raise ProtocolError(ErrorCode.BAD_TAG, problem)
        frame = Frame(self._header, self._payload)
        self._header = self._payload = None
        self._head_bytes = self._filled = 0
        return frame


def _check_magic(seen: bytes) -> None:
    if not MAGIC.startswith(seen):
        problem = f"frame begins with {seen.hex()}, not {MAGIC.hex()}"
        raise ProtocolError(ErrorCode.BAD_MAGIC, problem)


def decode_header(data: bytes) -> Header:
    """Decode a header's msgpack map.

    Raises:
        ProtocolError: BAD_HEADER when it is not one map with text keys, nested at most
            `MAX_NESTING` deep, with nothing after it.
    """
    header = _flat_map(data)
    return _any_map(data) if header is None else header


def _flat_map(data: bytes) -> Header | None:
    """The map, if it holds no maps and no lists with items, as most headers; otherwise None.

    One pass over the bytes is enough: msgpack allocates memory by claimed length only for the
    items of a list, and these lists have none.
    """
    try:
        header = msgpack.unpackb(data, ext_hook=_no_extensions, max_array_len=0, max_ext_len=0)
    except (ValueError, msgpack.UnpackException, TypeError):
        return None
    if type(header) is not dict:
        return None
    for key, value in header.items():
        if type(key) is not str or type(value) is dict:
            return None
    return header


def _any_map(data: bytes) -> Header:
    try:
        # The skip allocates nothing: containers that claim more items than follow fail here, and
        # not after memory for all the claimed items, level by level, has been set aside.
        walker = msgpack.Unpacker(max_buffer_size=max(1, len(data)))
        walker.feed(data)
        walker.skip()
        header = msgpack.unpackb(data, raw=False, ext_hook=_no_extensions, max_ext_len=0)
    except (ValueError, msgpack.UnpackException, TypeError) as error:
        raise ProtocolError(
            ErrorCode.BAD_HEADER,
            f"header is not valid msgpack: {str(error) or type(error).__name__}",
        ) from None
    if not isinstance(header, dict):
        raise ProtocolError(ErrorCode.BAD_HEADER, f"header is a {type(header).__name__}, not a map")
    _check_nesting(header, 1)
    return header


def _no_extensions(code: int, _data: bytes) -> None:
    raise ValueError(f"extension type {code} is not allowed")


def _check_nesting(value: dict[Any, Any] | list[Any], depth: int) -> None:
    if depth > MAX_NESTING:
        raise ProtocolError(
            ErrorCode.BAD_HEADER, f"header is nested more than {MAX_NESTING} levels deep"
        )
    for key in value if isinstance(value, dict) else ():
        if not isinstance(key, str):
            raise ProtocolError(
                ErrorCode.BAD_HEADER, f"a header key is {type(key).__name__}, not text"
            )
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, dict | list):
            _check_nesting(item, depth + 1)
