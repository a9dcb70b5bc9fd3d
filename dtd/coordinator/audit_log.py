"""The audit log: each request that changes something is recorded in the store and in the journal.

Requests that run code or destroy data are recorded before they are carried out, and requests that
give access before they are answered, both durably; if that is impossible they are refused.
Requests that take access away are carried out even if the disk fails, and the journal then notes
the missing entry.  Refusals are entered within a budget.  Which calls these are is declared in
`dtd.coordinator.audited`; how entries are chained in `dtd.security.audit`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import structlog

from dtd.coordinator.audited import Audited, Must, about, audited, outcome
from dtd.coordinator.store.audit_table import AuditTable, append
from dtd.coordinator.store.database import FILE_NAME
from dtd.coordinator.store.thread import StoreThread, Turn
from dtd.errors import DtdError, RequestRefused
from dtd.limits.refusal_budget import RefusalBudget
from dtd.security.audit import BEGUN, CUT, DONE, FAILED, REFUSED, Entry
from dtd.security.identity import LOCAL, STRANGER, Identity
from dtd.shown import one_line
from dtd.wire import messages as m

log = structlog.get_logger()

T = TypeVar("T")

MOST_OF_A_REASON: Final = 500


class Caller(Protocol):
    """The sender of a request: a `dtd.net.link.Link`."""

    @property
    def identity(self) -> Identity | None:
        """The caller's identity; None: not known yet."""
        ...

    def peer_host(self) -> str:
        """Address of the other side, without the port."""
        ...


class AuditLog:
    """Enters calls in the store's table and in the journal.

    Args:
        table: the entries.
        thread: the thread that the store's methods run in.
    """

    def __init__(self, table: AuditTable, thread: StoreThread) -> None:
        self._table = table
        self._thread = thread
        self._budget = RefusalBudget()

    async def around(
        self,
        caller: Caller,
        message: m.Message,
        work: Callable[[], Awaitable[T]],
        *,
        payload_bytes: int = 0,
        told: Callable[[T], Mapping[str, Any]] = lambda _answer: {},
    ) -> T:
        """Perform a request, and enter it if it changes something.

        Args:
            caller: its sender.
            message: its request.
            work: does it.
            payload_bytes: size of the message's payload.
            told: the answer, as a map.

        Raises:
            RequestRefused: it must be entered, and cannot be.
        """
        declared = audited(message, payload_bytes)
        if declared is None:
            return await work()
        entry = _entry(caller, message, declared)
        if declared.must_be_entered is Must.BEFORE_IT_IS_DONE:
            await self._must_enter(entry)
        try:
            answer = await work()
        except DtdError as error:
            await self._enter_refusal(entry, error.message)
            raise
        except asyncio.CancelledError:
            self._later(
                dataclasses.replace(entry, outcome=CUT, reason="the caller had disconnected")
            )
            raise
        except Exception as error:
            why = one_line(str(error) or type(error).__name__, MOST_OF_A_REASON)
            self._later(dataclasses.replace(entry, outcome=FAILED, reason=why))
            raise
        done = dataclasses.replace(entry, outcome=DONE, result=outcome(told(answer), declared))
        if declared.must_be_entered is Must.BEFORE_IT_IS_ANSWERED:
            await self._must_enter(done)
        else:
            await self._enter(done)
        return answer

    def refused(self, caller: Caller, message: m.Message, why: str) -> None:
        """A request without permission; recorded if it would have changed something."""
        declared = audited(message, 1)
        if declared is not None:
            refusal = self._refusal(_entry(caller, message, declared), why)
            if refusal is not None:
                self._later(refusal)

    def _refusal(self, entry: Entry, why: str) -> Entry | None:
        """None when this caller was refused too often of late."""
        key = STRANGER if entry.role == STRANGER else f"{entry.role}/{entry.who}"
        skipped = self._budget.spend(key, time.monotonic())
        if skipped is None:
            return None
        reason = one_line(why, MOST_OF_A_REASON)
        return dataclasses.replace(entry, outcome=REFUSED, reason=reason, skipped=skipped)

    async def _enter_refusal(self, entry: Entry, why: str) -> None:
        refusal = self._refusal(entry, why)
        if refusal is not None:
            await self._enter(refusal)

    async def _must_enter(self, entry: Entry) -> None:
        try:
            await self._thread.run(
                functools.partial(self._add, entry, synced=True), turn=Turn.URGENT
            )
        except sqlite3.Error as error:
            raise RequestRefused(
                f"this request must be recorded in the audit log, which cannot be written: {error}",
                remedy="free space on the coordinator's disk; cancel, drain and revoke still work",
            ) from None

    async def _enter(self, entry: Entry) -> None:
        """Record a completed request, without failing if that is impossible."""
        with contextlib.suppress(sqlite3.Error):  # the journal has it: `_add` has said so
            await self._thread.run(functools.partial(self._add, entry), turn=Turn.URGENT)

    def _later(self, entry: Entry) -> None:
        with contextlib.suppress(RuntimeError):  # the daemon ends, and its store is closed
            self._thread.later(self._add, entry)

    def _add(self, entry: Entry, *, synced: bool = False) -> None:
        """Add an entry; in the store's thread."""
        now = dataclasses.replace(entry, time_s=time.time())
        fields = {name: one for name, one in dataclasses.asdict(now).items() if name != "time_s"}
        try:
            seq, made = self._table.add(now, synced=synced)
        except sqlite3.Error as error:
            log.error("audit_not_written", error=str(error), **fields)
            raise
        log.info("audit", seq=seq, hash=made, **fields)


def _entry(caller: Caller, message: m.Message, declared: Audited) -> Entry:
    who = caller.identity
    return Entry(
        time_s=0.0,
        role=who.role if who is not None else STRANGER,
        who=who.name if who is not None else "",
        serial=who.serial if who is not None else "",
        address=caller.peer_host(),
        what=m.message_name(type(message)),
        about=about(message, declared),
        outcome=BEGUN,
    )


# ---
# Commands that act on a coordinator's state directory are entered in its audit log.
#
# A backup may be taken while the daemon runs, so it enters itself through a connection of its own
# to the store's file, as the user whom the file belongs to: what is beside it stays the daemon's,
# and a link that this user has put there does not lead root to another file.


def command_entry(what: str, about: Mapping[str, Any]) -> Entry:
    """The entry of a command that this process's user runs."""
    return Entry(
        time_s=time.time(),
        role=LOCAL,
        who=f"uid {os.getuid()}",
        what=what,
        about=about,
        outcome=DONE,
    )


def enter_command(state_dir: Path, entry: Entry) -> str:
    """Enter it in the store of a state directory, whether a daemon uses it or not.

    Returns:
        Why that was not possible; empty when it was.
    """
    path = state_dir / FILE_NAME
    try:
        with _as_owner_of(path), contextlib.closing(_connected(path)) as connection:
            cursor = connection.cursor()
            cursor.execute("BEGIN IMMEDIATE")
            append(cursor, entry)
            cursor.execute("COMMIT")
    except (OSError, sqlite3.Error) as error:
        return str(error)
    return ""


def _connected(path: Path) -> sqlite3.Connection:
    """Connect to a store that is there; a missing one is not made."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None)


@contextlib.contextmanager
def _as_owner_of(path: Path) -> Iterator[None]:
    """Root writes as the file's owner."""
    owner = path.lstat()
    if os.geteuid() != 0 or owner.st_uid == 0:
        yield
        return
    group = os.getegid()
    os.setegid(owner.st_gid)
    try:
        os.seteuid(owner.st_uid)
        try:
            yield
        finally:
            os.seteuid(0)
    finally:
        os.setegid(group)
