"""A worker leaves on a signal, and when a command of the host's asks it to."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
from pathlib import Path

import pytest

from dtd.errors import ConfigError
from dtd.worker import leaving
from dtd.worker.leaving import Departure, Notice, check_command


@pytest.fixture
def command(tmp_path: Path) -> Path:
    """A command that asks to leave while the file `leave` beside it has a reason in it."""
    path = tmp_path / "command"
    path.write_text('#!/bin/sh\nexec cat "$(dirname "$0")/leave"\n')
    path.chmod(0o755)
    return path


def notice(command: Path) -> Notice:
    return Notice(command, poll_s=0.01, quiet_s=0.05)


async def test_exit_code_0_asks_to_leave_and_the_first_line_says_why(command: Path) -> None:
    assert await notice(command).ask() == ""
    reason = command.with_name("leave")
    reason.write_text("the host ends at 12:00\nmore\n")
    assert await notice(command).given() == "the host ends at 12:00"
    reason.write_text("")
    assert await notice(command).ask() == f"{command} asks for it"


async def test_a_worker_is_back_when_the_command_has_not_asked_for_a_while(command: Path) -> None:
    told: list[str] = []
    await notice(command).over(told.append)
    assert told == []
    reason = command.with_name("leave")
    reason.write_text("somebody works here")

    def ends(text: str) -> None:
        told.append(text)
        if len(told) == 2:
            reason.unlink()

    await notice(command).over(ends)
    assert told == ["somebody works here"] * 2


@pytest.mark.parametrize("limit_s", [0.2, 0.0])
def test_a_command_that_hangs_asks_for_nothing_and_is_killed(
    command: Path, monkeypatch: pytest.MonkeyPatch, limit_s: float
) -> None:
    monkeypatch.setattr(leaving, "RUN_S", limit_s)
    pids = command.with_name("pids")
    command.write_text(f"#!/bin/sh\nsleep 1000 & echo $! >{pids}; wait\n")
    assert asyncio.run(notice(command).ask()) == ""
    # It has ended already, or was never started.
    with contextlib.suppress(ProcessLookupError, FileNotFoundError, ValueError):
        child = os.pidfd_open(int(pids.read_text()))
        try:
            select.select([child], [], [])  # until the kernel has ended it
        finally:
            os.close(child)


def test_what_a_command_leaves_running_is_not_waited_for(command: Path) -> None:
    pid = command.with_name("pid")
    command.write_text(
        f"#!/bin/sh\nsetsid sleep 1000 & echo $! >{pid}; echo it; sleep 0.05; echo ends\n"
    )

    async def ask() -> str:
        async with asyncio.timeout(5):
            return await notice(command).ask()

    try:
        assert asyncio.run(ask()) == "it"
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)


def test_a_command_that_cannot_be_run_asks_for_nothing(command: Path) -> None:
    command.write_text("#!/nowhere\n")
    assert asyncio.run(notice(command).ask()) == ""


def test_a_command_that_is_none_is_refused_at_the_start(command: Path) -> None:
    check_command(None)
    check_command(command)
    command.chmod(0o644)
    for path in (command, command.parent, command.with_name("missing")):
        with pytest.raises(ConfigError, match=f"drain_when: {path} is not a file"):
            check_command(path)


async def test_a_signal_asks_and_then_ends(command: Path) -> None:
    said: list[str] = []
    late = asyncio.Event()

    def stop(reason: str) -> None:
        said.append(reason)
        if len(said) == 2:
            late.set()

    departure = Departure(stop, 0.05)
    departure.on_signal("SIGTERM")
    await late.wait()
    assert said == ["SIGTERM", "SIGTERM; not done in 0.05 s (drain_timeout_s)"]
    assert departure.signalled.is_set()


async def test_a_signal_after_a_notice_hurries_nobody_and_the_next_one_does(command: Path) -> None:
    command.with_name("leave").write_text("the host ends")
    said: list[str] = []
    departure = Departure(said.append, 100.0)
    await departure.upon(notice(command))
    departure.on_signal("SIGTERM")
    assert (said, departure.signalled.is_set()) == (["the host ends"], True)
    departure.on_signal("SIGTERM")
    assert said == ["the host ends", "SIGTERM"]
