"""Logging of the daemons: one JSON object per line, or a coloured console on a terminal.

Every line has `ts` (UTC with milliseconds), `level` and `event`, a constant name in snake_case;
what varies stands in fields of its own, and `job`, `generation`, `rank` and `step` are bound once
where they are known: `log.bind(rank=...)`.  Lines are rendered by the
caller's thread and written whole under a lock, so any thread may log.

Where the stream is the journal, a line begins with its priority (`<6>`, sd-daemon(3)), which the
journal takes off again.  Fields that are named like secrets are blanked, and so are join tokens and
private keys wherever they stand.

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
import operator
import os
import re
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO, cast

import structlog
from structlog.typing import Processor

from dtd.text.shown import indented, quoted

LogFormat = Literal["auto", "json", "console"]
LogLevel = Literal["debug", "info", "warning", "error"]

_Line = MutableMapping[str, Any]
_LIBRARY_EVENT: Final = "library_log"
_PRIORITIES: Final = {"critical": 2, "error": 3, "warning": 4, "info": 6, "debug": 7}
_LEVELS: Final[dict[LogLevel, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
REDACTED: Final = "[redacted]"
_SECRET_WORDS: Final = frozenset({"secret", "token", "key", "ticket", "password"})
_PUBLIC_ENDS: Final = ("_id", "_name", "_expires", "_bytes", "_s")
_SECRET_TEXT: Final = re.compile(
    # A word that begins like a token is consumed whether it is one or not: each is read once.
    # Nothing after the repetitions can fail, so it never goes back.
    r"dtd1/[^\s.-]*(?:(?:-(?!----BEGIN )|\.(?=[\s\"']|\Z))[^\s.-]*)*(?P<secret>\.[^\s\"']+)?"
    r"|(?P<key>-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z))",
    re.DOTALL,
)
_MAX_DEPTH: Final = 8
_OURS: Final = frozenset({"ts", "level"})
_OF_SEVERAL_LINES: Final = frozenset({"exception", "stack"})


class _AsItStands:
    """A value for the console that is quoted already: the renderer shows what `repr` gives."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


class _Stream:
    """A text stream whose failures are not the caller's."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        # OSError: the disk is full or the reader is gone; ValueError: the stream was closed.
        with contextlib.suppress(OSError, ValueError):
            return self._stream.write(text)
        return 0

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def configure_logging(
    format: LogFormat,  # noqa: A002 - reads best so
    stream: TextIO,
    level: LogLevel = "info",
    *,
    libraries: str = "",
) -> None:
    """Set up logging for this process; daemons call it once, before they log anything.

    Args:
        format: "json", "console", or "auto": console if the stream is a terminal.
        stream: where lines go; it stays open, and takes any text (`dtd.host.streams`).
        level: the least that is written.  Each step of training is a line at "debug"; libraries
            are heard from "warning" on, whatever the level.
        libraries: the logger of the standard library whose records are written, the root by
            default.  In a worker the root belongs to the job, as in any script.
    """
    is_terminal = stream.isatty()
    console = format == "console" or (format == "auto" and is_terminal)
    render: list[Processor] = [
        _console(colours=is_terminal and not os.environ.get("NO_COLOR"))
        if console
        else structlog.processors.JSONRenderer(serializer=_as_json)
    ]
    if console:
        render = [_for_a_console, *render]
    if not console and is_journal(stream, os.environ):
        render = [_with_priority(render[0])]
    render = [structlog.processors.format_exc_info, redact, *render]
    shared: list[Processor] = [structlog.processors.add_log_level, _add_time]
    target = cast("TextIO", _Stream(stream))
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, *shared, *render],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=target),
        cache_logger_on_first_use=True,
    )
    heard = logging.getLogger(libraries or None)
    heard.handlers = [_handler(target, shared, render)]
    heard.setLevel(max(_LEVELS[level], logging.WARNING))
    heard.propagate = False


def is_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether a stream is the one that systemd has connected to the journal (systemd.exec(5))."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):  # closed, or no file at all
        return False
    return environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def redact(_logger: object, _method: str, line: _Line) -> _Line:
    """Replace secrets, which must not be readable in the log."""
    for name, value in line.items():
        line[name] = REDACTED if is_secret(name) else _without_secrets(value)
    return line


def is_secret(name: object) -> bool:
    """Whether a field of this name holds a secret; `token_id` and the like only name one."""
    words = str(name).lower().split("_")
    return not _SECRET_WORDS.isdisjoint(words) and not str(name).lower().endswith(_PUBLIC_ENDS)


def _without_secrets(value: Any, depth: int = 0) -> Any:
    """The value itself when there is nothing to blank, so that a cycle stays one."""
    if isinstance(value, str):
        return _SECRET_TEXT.sub(_blanked, value)
    if isinstance(value, dict) and depth < _MAX_DEPTH:
        clean = {
            key: REDACTED if is_secret(key) else _without_secrets(one, depth + 1)
            for key, one in value.items()
        }
        return value if all(clean[key] is one for key, one in value.items()) else clean
    if isinstance(value, list | tuple) and depth < _MAX_DEPTH:
        parts = [_without_secrets(one, depth + 1) for one in value]
        return value if all(map(operator.is_, parts, value)) else parts
    return value


def _blanked(found: re.Match[str]) -> str:
    return REDACTED if found["secret"] or found["key"] else found[0]


def _for_a_console(_logger: object, _method: str, line: _Line) -> _Line:
    """Foreign text must not control a terminal or look like a line or a field of dtd's own."""
    return {name: _console_value(name, value) for name, value in line.items()}


def _console_value(name: str, value: Any) -> Any:
    if name in _OURS or value is None or isinstance(value, bool | int | float):
        return value
    if name in _OF_SEVERAL_LINES:
        return "  " + indented(str(value))
    if name == "event":
        return quoted(str(value))
    if isinstance(value, dict | list | tuple):
        with contextlib.suppress(ValueError, TypeError):
            return _AsItStands(json.dumps(value, default=repr))
    return _AsItStands(quoted(value if isinstance(value, str) else repr(value)))


def _with_priority(render: Processor) -> Processor:
    def prefixed(logger: Any, method: str, line: _Line) -> str:
        priority = _PRIORITIES[line["level"]]
        return f"<{priority}>{render(logger, method, line)!s}"

    return prefixed


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


def _handler(target: TextIO, shared: list[Processor], render: list[Processor]) -> logging.Handler:
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_name_library_event, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    return handler


def _name_library_event(_logger: object, _method: str, line: _Line) -> _Line:
    line["message"] = line["event"]
    line["event"] = _LIBRARY_EVENT
    line["logger"] = line["_record"].name
    return line
