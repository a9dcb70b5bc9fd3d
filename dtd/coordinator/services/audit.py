"""The audit log: each request that changes something is recorded on disk and in the journal.

Requests that run code or destroy data are recorded before they are carried out, and requests that
give access before they are answered, both durably; if that is impossible they are refused.
Requests that take access away are carried out even if the disk fails, and the journal then notes
the missing entry.  Refusals are entered within a budget.  The table `CHANGING` says which requests
these are, and what is recorded of each.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import functools
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import structlog

from dtd.coordinator.services.audit_file import BEGUN, CUT, DONE, FAILED, REFUSED, AuditFile, Entry
from dtd.coordinator.store.database import StoreThread, Turn
from dtd.errors import DtdError, RequestRefused
from dtd.net.rates import Allowance, Pacing
from dtd.security.identity import STRANGER, Identity
from dtd.text.shown import one_line
from dtd.wire import messages as m

log = structlog.get_logger()

T = TypeVar("T")

MOST_OF_A_REASON: Final = 500
MOST_CHARACTERS: Final = 200
"""Limit for one argument or result."""
MOST_ENTRIES: Final = 16
"""Limit for an argument or result that is a list; the remaining entries are only counted."""
_NOTHING: Final[tuple[Any, ...]] = ("", 0, 0.0, False, None, (), [])


REFUSALS_AT_ONCE: Final = 16.0
REFUSAL_EVERY_S: Final = 60.0
"""Recorded refusals of one caller; all unauthenticated callers count as one."""
ALL_REFUSALS_AT_ONCE: Final = 128.0
ALL_REFUSALS_EVERY_S: Final = 10.0
MAX_CALLERS: Final = 64


def _always(_message: Any, _payload_bytes: int) -> bool:
    return True


def _first_piece(message: m.PutPackage, payload_bytes: int) -> bool:
    """A package is sent in pieces; a message without payload only queries it."""
    return message.offset == 0 and payload_bytes > 0


def _acts(message: m.Examine, _payload_bytes: int) -> bool:
    """Measuring a step runs the job's code, and a forced measurement disturbs a running job."""
    return message.what == "step" or message.force


def _hands_out_tickets(message: m.ListCheckpoints | m.ListModels, _payload_bytes: int) -> bool:
    """Tickets permit reading parameters from the workers."""
    return message.tickets


class Must(enum.Enum):
    """Whether a call requires its log entry, which cannot be written while the disk is full.

    Attributes:
        IF_POSSIBLE: the call is done in any case; for calls that take something away.
        BE_ENTERED_FIRST: for calls that run code or destroy something.
        BE_ENTERED_BEFORE_ANSWER: for calls whose answer grants something.
    """

    IF_POSSIBLE = enum.auto()
    BE_ENTERED_FIRST = enum.auto()
    BE_ENTERED_BEFORE_ANSWER = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """The audit log's record of one kind of call.

    Attributes:
        about: fields of the request that are recorded.
        results: keys of the answer that are recorded.
        must: whether the call is done, and answered, if it cannot be recorded.
        when: tells whether a given request (message, payload bytes) changes something.
    """

    about: tuple[str, ...]
    results: tuple[str, ...] = ()
    must: Must = Must.IF_POSSIBLE
    when: Callable[[Any, int], bool] = _always


CHANGING: Final[Mapping[type[Any], Audited]] = {
    m.SubmitJob: Audited(
        about=("from_job", "from_step", "from_mode", "package", "weights"),
        results=("job",),
        must=Must.BE_ENTERED_FIRST,
    ),
    m.BeginSweep: Audited(
        about=("package",),
        results=("sweep", "trials"),
        must=Must.BE_ENTERED_FIRST,
    ),
    m.CancelSweep: Audited(about=("sweep",), results=("state",)),
    m.CancelJob: Audited(about=("job",), results=("state",)),
    m.ResumeJob: Audited(about=("job",), results=("state",)),
    m.KillWorker: Audited(about=("name", "signal"), results=("pid",)),
    m.DrainWorker: Audited(about=("name",)),
    m.AnnotateJob: Audited(about=("job", "add", "remove", "sets_note")),
    m.Delete: Audited(about=("job", "step"), must=Must.BE_ENTERED_FIRST),
    m.PutPackage: Audited(
        about=("digest", "size", "kind"),
        must=Must.BE_ENTERED_FIRST,
        when=_first_piece,
    ),
    m.Examine: Audited(
        about=("what", "worker", "peer", "package", "force"),
        must=Must.BE_ENTERED_FIRST,
        when=_acts,
    ),
    m.Profile: Audited(
        about=("job", "steps", "file"),
        must=Must.BE_ENTERED_FIRST,
    ),
    m.ListCheckpoints: Audited(
        about=("job", "tickets"),
        must=Must.BE_ENTERED_BEFORE_ANSWER,
        when=_hands_out_tickets,
    ),
    m.RegisterModel: Audited(about=("name", "job", "step", "best", "mode", "copies")),
    m.ListModels: Audited(
        about=("name", "version", "tickets"),
        must=Must.BE_ENTERED_BEFORE_ANSWER,
        when=_hands_out_tickets,
    ),
    m.AliasModel: Audited(about=("name", "alias", "version")),
    m.DescribeModel: Audited(about=("name", "version")),
    m.CopyModel: Audited(about=("name", "version")),
    m.DeleteModel: Audited(about=("name", "version"), must=Must.BE_ENTERED_FIRST),
    m.CreateToken: Audited(
        about=("role", "life_s", "uses", "names", "replaces"),
        results=("id", "role", "expires_s"),
        must=Must.BE_ENTERED_BEFORE_ANSWER,
    ),
    m.OpenWeb: Audited(about=(), must=Must.BE_ENTERED_BEFORE_ANSWER),
    m.RevokeToken: Audited(about=("id",)),
    m.RevokeCredential: Audited(about=("name",), results=("revoked", "evicted")),
    m.Enrol: Audited(
        about=("role", "name", "token_id"),
        results=("replaced",),
        must=Must.BE_ENTERED_BEFORE_ANSWER,
    ),
}
"""Calls that change something, or allow the caller to change or read more than before.

The recorded fields are listed one by one, so that no secret is recorded by accident.
"""


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
    """Enters calls in the audit log and in the journal."""

    def __init__(self, file: AuditFile, thread: StoreThread) -> None:
        self._file = file
        self._thread = thread
        self._budget = RefusalBudget()

    async def read(self, request: m.ReadAudit) -> dict[str, Any]:
        return await self._thread.run(
            self._file.page, request.after, request.since_s, request.who, request.what
        )

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

        Raises:
            RequestRefused: it must be entered, and cannot be.
        """
        declared = audited(message, payload_bytes)
        if declared is None:
            return await work()
        entry = _entry(caller, message, declared)
        if declared.must is Must.BE_ENTERED_FIRST:
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
        if declared.must is Must.BE_ENTERED_BEFORE_ANSWER:
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
        except OSError as error:
            raise RequestRefused(
                f"this request must be recorded in the audit log, which cannot be written: {error}",
                remedy="free space on the coordinator's disk; cancel, drain and revoke still work",
            ) from None

    async def _enter(self, entry: Entry) -> None:
        """Record a completed request, without failing if that is impossible."""
        with contextlib.suppress(OSError):  # the journal has it: `_add` has said so
            await self._thread.run(functools.partial(self._add, entry), turn=Turn.URGENT)

    def _later(self, entry: Entry) -> None:
        with contextlib.suppress(RuntimeError):  # the daemon ends, and its store is closed
            self._thread.later(self._add, entry)

    def _add(self, entry: Entry, *, synced: bool = False) -> None:
        """Add an entry; in the store's thread."""
        now = dataclasses.replace(entry, time_s=time.time())
        fields = {name: one for name, one in dataclasses.asdict(now).items() if name != "time_s"}
        try:
            seq = self._file.add(now, synced=synced)
        except OSError as error:
            log.error("audit_not_written", error=str(error), **fields)
            raise
        log.info("audit", seq=seq, **fields)


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


def audited(message: m.Message, payload_bytes: int = 0) -> Audited | None:
    """Return the declared record of this call; None if it changes nothing."""
    declared = CHANGING.get(type(message))
    changes = declared is not None and declared.when(message, payload_bytes)
    return declared if changes else None


def about(message: m.Message, declared: Audited) -> dict[str, Any]:
    """The declared arguments of the call that are not empty, bounded in length."""
    found = {name: getattr(message, name) for name in declared.about}
    if isinstance(message, m.SubmitJob | m.Examine):
        table = message.spec.get("job")
        given = table if isinstance(table, dict) else {}
        found |= {name: given.get(name) for name in ("name", "task")}
    return {name: _short(value) for name, value in found.items() if value not in _NOTHING}


def outcome(answer: Mapping[str, Any], declared: Audited) -> dict[str, Any]:
    """The declared part of the answer, bounded in length."""
    found = {name: answer.get(name) for name in declared.results}
    return {name: _short(value) for name, value in found.items() if value not in _NOTHING}


def _short(value: Any) -> Any:
    match value:
        case bool() | int() | float():
            return value
        case list() | tuple():
            more = len(value) - MOST_ENTRIES
            rest = [f"and {more} more"] if more > 0 else []
            return [_short(one) for one in value[:MOST_ENTRIES]] + rest
        case dict():
            return {_short(key): _short(one) for key, one in list(value.items())[:MOST_ENTRIES]}
        case _:
            return one_line(str(value), MOST_CHARACTERS)


class RefusalBudget:
    """Bounds the refusals in the log, so that unknown callers cannot fill it.  Pure.

    Each caller has its own budget, and all together have one.
    """

    def __init__(self) -> None:
        self._callers = Pacing(rate_per_s=1 / REFUSAL_EVERY_S, burst=REFUSALS_AT_ONCE - 1)
        self._all = Allowance(1 / ALL_REFUSALS_EVERY_S, ALL_REFUSALS_AT_ONCE)
        self._skipped: dict[str, int] = {}

    def spend(self, caller: str, now: float) -> int | None:
        """Count one more refusal of this caller.

        Returns:
            None when it is not to be entered, else the number of earlier ones that were not.
        """
        skipped = self._skipped.pop(caller, 0)
        if not self._callers.wait_s(caller, now) and self._all.takes(1, now):
            return skipped
        self._skipped[caller] = skipped + 1
        if len(self._skipped) > MAX_CALLERS:
            del self._skipped[next(iter(self._skipped))]
        return None
