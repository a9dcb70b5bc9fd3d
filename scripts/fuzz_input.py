"""Turns a fuzzer's bytes into hostile frames; nothing is random, so every find can be replayed.

The bytes choose, step by step, between raw bytes, a sealed frame with any header, and a message
whose fields fit or nearly fit.  A frame that is sealed properly gets past the checks that noise
fails, to the code behind them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgpack

from dtd.wire import fields
from dtd.wire import messages as m
from dtd.wire.frames import frame_bytes
from dtd.wire.tags import Tag

MAX_PIECE_BYTES: Final = 512
MAX_FRAMES: Final = 16
_TYPES: Final = sorted(m.message_types().items())
_EDGES: Final = (0, 1, 255, 256, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1)
_ODD: Final[tuple[Any, ...]] = (
    *(None, True, -1, 2**63, 2**64 - 1, 1.5, float("nan"), float("inf"), "", "x" * 300, b""),
    *(b"y" * 65, [], [[]], {}, {"a": {"b": {"c": {}}}}, ["x"] * 70),
)


class Reader:
    """Takes a fuzzer's bytes from front to back; when they are used up, all is zero.

    Args:
        data: the input.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """Bytes that have not been taken."""
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        """At most so many bytes."""
        piece = self._data[self._at : self._at + count]
        self._at += len(piece)
        return piece

    def number(self, below: int) -> int:
        """From 0 to below - 1."""
        return int.from_bytes(self.take(2)) % below

    def choice(self, options: tuple[Any, ...] | list[Any]) -> Any:
        """One of them."""
        return options[self.number(len(options))]


def frames(data: bytes, tag: Tag) -> list[bytes]:
    """The frames that these bytes stand for.

    Args:
        data: a fuzzer's input.
        tag: seals the frames; counts them.
    """
    reader = Reader(data)
    made: list[bytes] = []
    while reader.left and len(made) < MAX_FRAMES:
        made.append(_frame(reader, tag))
    return made


def _frame(reader: Reader, tag: Tag) -> bytes:
    kind = reader.number(8)
    if kind == 0:
        return reader.take(reader.number(MAX_PIECE_BYTES))
    if kind == 1:
        return frame_bytes(reader.take(reader.number(MAX_PIECE_BYTES)), b"", tag)
    number, message_type = reader.choice(_TYPES)
    header = {m.TYPE_KEY: number, **values_of(message_type, reader)}
    payload = bytes(reader.number(64)) if kind == 2 else b""
    sealed = frame_bytes(packed(header), payload, tag)
    return _damaged(sealed, reader) if kind == 3 else sealed


def _damaged(frame: bytes, reader: Reader) -> bytes:
    """One byte of it differs."""
    at = reader.number(len(frame))
    return frame[:at] + bytes([frame[at] ^ (1 + reader.number(255))]) + frame[at + 1 :]


def packed(header: dict[str, Any]) -> bytes:
    """A header's bytes, whatever it holds."""
    made: bytes = msgpack.packb(header, unicode_errors="replace")
    return made


def values_of(record: type[Any], reader: Reader, *, odd: bool = True) -> dict[str, Any]:
    """Values for the fields of a record.

    Args:
        record: a message or a part of one.
        reader: decides.
        odd: one in so many does not fit, or is left out.
    """
    values: dict[str, Any] = {}
    for name, kind, _check, required in fields.layout(record):
        turn = reader.number(64)
        if odd and turn == 0:
            values[name] = reader.choice(_ODD)
        elif required or turn > 16:
            values[name] = _value(kind, reader, odd=odd)
    return values


def _value(kind: str, reader: Reader, *, odd: bool) -> Any:
    if kind.startswith("list<="):
        record = getattr(m, kind.partition(" of ")[2])
        return [values_of(record, reader, odd=odd) for _ in range(reader.number(4))]
    return _PLAIN[kind](reader)


def _integer(limit: int) -> Callable[[Reader], int]:
    def make(reader: Reader) -> int:
        chosen = int(reader.choice(_EDGES)) if reader.number(2) else reader.number(8)
        return min(chosen, limit)

    return make


def _text(reader: Reader) -> str:
    if reader.number(2):
        return reader.take(reader.number(24)).decode("utf-8", "replace")
    return str(reader.choice(("", "w-0", "w-1", "j-1", "running", "none", "memory", "0" * 64)))


_PLAIN: Final[dict[str, Callable[[Reader], Any]]] = {
    "u8": _integer(2**8 - 1),
    "u16": _integer(2**16 - 1),
    "u32": _integer(2**32 - 1),
    "u64": _integer(2**63 - 1),
    "generation": _integer(2**63 - 1),
    "f64": lambda reader: reader.choice((0.0, 1.0, -1.0, 1e308)),
    "figure": lambda reader: reader.choice((0.0, 1.0, -1.0, 1e308, float("nan"), float("-inf"))),
    "seconds": lambda reader: reader.choice((0.0, 1e-9, 0.25, 1e9)),
    "bool": lambda reader: bool(reader.number(2)),
    "line<=255": _text,
    "name": _text,
    "notice": lambda reader: reader.choice(("row_retried", "job_done", "")),
    "text<=16384": _text,
    "text<=4096": _text,
    "words<=4096": _text,
    "host": lambda reader: reader.choice(("", "h", "127.0.0.1", "::1", "h" * 253)),
    "names<=2048": lambda reader: [_text(reader) for _ in range(reader.number(4))],
    "octets<=64": lambda reader: reader.take(reader.choice((0, 16, 32, 64))),
    "map of figure": lambda reader: reader.choice(({}, {"a": 1}, {"loss": float("nan")})),
    "map": lambda reader: reader.choice(({}, {"a": 1}, {"loss": 0.5}, {"a": {"b": [1]}})),
}
