"""Log lines: their form, what they carry, and that logging never fails its caller."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import structlog

from dtd.logs import REDACTED, LogLevel, configure_logging


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Broken(io.StringIO):
    def write(self, _text: str) -> int:
        raise BrokenPipeError

    def flush(self) -> None:
        raise BrokenPipeError


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    loggers = [logging.getLogger(), logging.getLogger("asyncio")]
    saved = [(one.handlers, one.level, one.propagate) for one in loggers]
    yield
    for one, (handlers, level, propagate) in zip(loggers, saved, strict=True):
        one.handlers, one.propagate = handlers, propagate
        one.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture
def stream() -> io.StringIO:
    stream = io.StringIO()
    configure_logging("auto", stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_one_json_object_with_what_was_bound(stream: io.StringIO) -> None:
    log = structlog.get_logger(job="j-1", generation=3).bind(rank=2)
    log.info("step_committed", step=7)
    (line,) = lines(stream)
    moment = line.pop("ts")
    assert line == {
        "level": "info",
        "event": "step_committed",
        "job": "j-1",
        "generation": 3,
        "rank": 2,
        "step": 7,
    }
    assert moment.endswith("Z")
    assert len(moment) == len("2026-01-01T00:00:00.000Z")
    assert abs((datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()) < 60
    assert stream.getvalue().startswith('{"ts": ')


def test_an_exception_is_one_line_with_its_traceback(stream: io.StringIO) -> None:
    try:
        raise RuntimeError("boom\nover two lines")
    except RuntimeError:
        structlog.get_logger().exception("task_failed")
    (line,) = lines(stream)
    assert line["level"] == "error"
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert line["exception"].endswith("RuntimeError: boom\nover two lines")


HOSTILE = "gone\x1b[2J\x9b2J\u202e\u2028\r\n2026-01-01 [error] forged level=error worker=w-9"


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
def test_others_texts_are_values_on_a_console(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    configure_logging("console", stream)
    structlog.get_logger().info(
        "job_output", line=HOSTILE, more=[HOSTILE], n=1, host="w-1", none=None
    )
    structlog.get_logger().info("job_output", line="two words")
    first, second = stream.getvalue().splitlines()
    assert first.isprintable()
    assert "\\u001b[2J\\u009b2J\\u202e\\u2028\\r\\n" in first
    unquoted = re.sub(r'"(?:[^"\\]|\\.)*"', "", first)
    assert "forged" not in unquoted
    assert {"n=1", "host=w-1", "none=None", "line=", "more=[]"} <= set(unquoted.split())
    assert 'line="two words"' in second


def test_a_traceback_on_a_console_cannot_pass_for_lines_of_ours() -> None:
    file = io.StringIO()
    configure_logging("console", file)
    try:
        raise RuntimeError(HOSTILE)
    except RuntimeError:
        structlog.get_logger().exception("task_failed")
    first, *rest = file.getvalue().splitlines()
    assert "task_failed" in first
    assert rest
    assert all(line.startswith("  ") for line in rest if line)
    assert "\x1b" not in file.getvalue()
    assert "\x9b" not in file.getvalue()


@pytest.mark.parametrize(
    ("level", "written"),
    [
        ("debug", ["debug", "info", "warning", "error"]),
        ("info", ["info", "warning", "error"]),
        ("warning", ["warning", "error"]),
        ("error", ["error"]),
    ],
)
def test_nothing_below_the_level_is_written(level: LogLevel, written: list[str]) -> None:
    stream = io.StringIO()
    configure_logging("json", stream, level)
    log = structlog.get_logger()
    for name in ("debug", "info", "warning", "error"):
        getattr(log, name)(f"at_{name}")
    logging.getLogger("asyncio").warning("a library")
    logging.getLogger("asyncio").info("a library's chatter")
    events = [line["event"] for line in lines(stream)]
    libraries = ["library_log"] if level != "error" else []
    assert events == [f"at_{name}" for name in written] + libraries


def test_a_stream_that_fails_does_not_fail_its_caller() -> None:
    broken, closed = Broken(), io.StringIO()
    configure_logging("json", broken)
    structlog.get_logger().error("unheard")
    assert broken.getvalue() == ""
    configure_logging("json", closed)
    structlog.get_logger().info("heard")
    closed.close()
    structlog.get_logger().info("unheard")
    logging.getLogger("library").error("unheard")


# --- secrets ---------------------------------------------------------------------------------

TOKEN = "dtd1/worker/10.0.0.1:7117,10.0.0.2:7117/ab12/17.c2VjcmV0"
PEM = "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMG\n-----END PRIVATE KEY-----"


@pytest.mark.parametrize(
    "name",
    ["secret", "token", "key", "ticket", "password", "data_key", "token_secret", "TICKET_KEY"],
)
def test_a_field_named_like_a_secret_is_blanked(stream: io.StringIO, name: str) -> None:
    structlog.get_logger().info(
        "hello", **{name: "hunter2"}, around={"deep": [{name: b"hunter2"}], "n": 1}
    )
    (line,) = lines(stream)
    assert line[name] == REDACTED
    assert line["around"] == {"deep": [{name: REDACTED}], "n": 1}
    assert "hunter2" not in stream.getvalue()


@pytest.mark.parametrize("text", [TOKEN, PEM, PEM.removesuffix("-----END PRIVATE KEY-----")])
def test_secrets_are_blanked_within_texts(stream: io.StringIO, text: str) -> None:
    try:
        raise RuntimeError(f"no good: {text}")
    except RuntimeError:
        structlog.get_logger().exception("failed", error=f"no good: {text}", parts=(text, 1))
    logging.getLogger("library").error("said %s", text)
    first, second = lines(stream)
    assert first["error"] == f"no good: {REDACTED}"
    assert first["parts"] == [REDACTED, 1]
    assert second["message"] == f"said {REDACTED}"
    assert text.split("/")[-1][-8:] not in stream.getvalue()
