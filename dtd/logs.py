"""Logging of the daemons: one JSON object per line, or a coloured console on a terminal.

Every line has `ts` (UTC with milliseconds), `level` and `event`, a constant name in snake_case;
what varies stands in fields of its own, and `job`, `generation`, `rank` and `step` are bound once
where they are known: `log = get_logger(job=...).bind(rank=...)`.  Lines are rendered by the
caller's thread and written whole under a lock, so any thread may log.

A log must not stop training: a stream that can no longer be written to is given up silently, and a
value that JSON cannot hold is written as its `repr`.  Records of the standard library's logging
(asyncio, libraries) become lines of the same form with the event `library_log`.  Nothing here
imports torch.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
from collections.abc import MutableMapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO, cast

import structlog
from structlog.typing import FilteringBoundLogger, Processor

LogFormat = Literal["auto", "json", "console"]

_Line = MutableMapping[str, Any]
_LIBRARY_EVENT: Final = "library_log"


class _Stream:
    """A text stream whose failures are not the caller's."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        # OSError: the disk is full or the reader is gone; ValueError: the stream was closed.
        with contextlib.suppress(OSError, ValueError):
            try:
                return self._stream.write(text)
            except UnicodeEncodeError:
                return self._stream.write(text.encode("ascii", "backslashreplace").decode())
        return 0

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def configure_logging(format: LogFormat, stream: TextIO) -> None:  # noqa: A002 - reads best so
    """Set up logging for this process; daemons call it once, before they log anything.

    Args:
        format: "json", "console", or "auto": console if the stream is a terminal.
        stream: where lines go; it stays open.
    """
    is_terminal = stream.isatty()
    console = format == "console" or (format == "auto" and is_terminal)
    render: list[Processor] = [
        _console(colours=is_terminal and not os.environ.get("NO_COLOR"))
        if console
        else structlog.processors.JSONRenderer(serializer=_as_json)
    ]
    if not console:
        render.insert(0, structlog.processors.format_exc_info)
    shared: list[Processor] = [structlog.processors.add_log_level, _add_time]
    target = cast("TextIO", _Stream(stream))
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, *shared, *render],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=target),
        cache_logger_on_first_use=True,
    )
    _adopt_standard_logging(target, shared, render)


def get_logger(**context: Any) -> FilteringBoundLogger:
    """A logger with the given fields on each of its lines."""
    return cast("FilteringBoundLogger", structlog.get_logger(**context))


def _console(*, colours: bool) -> Processor:
    return structlog.dev.ConsoleRenderer(
        colors=colours,
        timestamp_key="ts",
        exception_formatter=structlog.dev.plain_traceback,
    )


def _add_time(_logger: object, _method: str, line: _Line) -> _Line:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    line["ts"] = now.removesuffix("+00:00") + "Z"
    return line


def _as_json(line: _Line, **_: Any) -> str:
    """The line as one JSON object: time, level and event first, then its fields as bound."""
    ordered = {key: line.pop(key) for key in ("ts", "level", "event")} | dict(line)
    try:
        return json.dumps(ordered, default=repr, allow_nan=False)
    except (ValueError, TypeError):  # a number that JSON lacks, a cycle, a key that is no string
        return json.dumps({key: _plain(value) for key, value in ordered.items()})


def _plain(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | None) else repr(value)


def _adopt_standard_logging(
    target: TextIO, shared: list[Processor], render: list[Processor]
) -> None:
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_name_library_event, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)


def _name_library_event(_logger: object, _method: str, line: _Line) -> _Line:
    line["message"] = line["event"]
    line["event"] = _LIBRARY_EVENT
    line["logger"] = line["_record"].name
    return line
