"""The requests that change something, and the fields of each that the audit log records.

Every request that operators or joining processes can send is declared here exactly once; a test
fails for a request that is not, so that no new one is forgotten.  Recorded fields are listed one
by one, so that a secret cannot be recorded by accident.  Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dtd.shown import one_line
from dtd.wire import messages as m

MOST_CHARACTERS: Final = 200
"""Limit for one argument or result."""
MOST_ENTRIES: Final = 16
"""Limit for an argument or result that is a list; the remaining entries are only counted."""
_NOTHING: Final[tuple[Any, ...]] = ("", 0, 0.0, False, None, (), [])


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
        BEFORE_IT_IS_DONE: for calls that run code or destroy something.
        BEFORE_IT_IS_ANSWERED: for calls whose answer grants something; without an entry, the
            answer is withheld.
    """

    IF_POSSIBLE = enum.auto()
    BEFORE_IT_IS_DONE = enum.auto()
    BEFORE_IT_IS_ANSWERED = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """The audit log's record of one kind of call.

    Attributes:
        about: fields of the request that are recorded.
        but: its other fields, which are long, secret or of no interest.
        results: keys of the answer that are recorded.
        must_be_entered: whether the call is done, and answered, if it cannot be recorded.
        when: tells whether a given request (message, payload bytes) changes something.
    """

    about: tuple[str, ...]
    but: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    must_be_entered: Must = Must.IF_POSSIBLE
    when: Callable[[Any, int], bool] = _always


CHANGING: Final[Mapping[type[Any], Audited]] = {
    m.SubmitJob: Audited(
        about=("from_job", "from_step", "from_mode", "package", "weights"),
        but=("spec", "strict"),
        results=("job",),
        must_be_entered=Must.BEFORE_IT_IS_DONE,
    ),
    m.BeginSweep: Audited(
        about=("package",),
        but=("spec",),
        results=("sweep", "trials"),
        must_be_entered=Must.BEFORE_IT_IS_DONE,
    ),
    m.CancelSweep: Audited(about=("sweep",), results=("state",)),
    m.CancelJob: Audited(about=("job",), results=("state",)),
    m.ResumeJob: Audited(about=("job",), results=("state",)),
    m.KillWorker: Audited(about=("name", "signal"), results=("pid",)),
    m.DrainWorker: Audited(about=("name",)),
    m.AnnotateJob: Audited(about=("job", "add", "remove", "sets_note"), but=("note",)),
    m.Delete: Audited(about=("job", "step"), must_be_entered=Must.BEFORE_IT_IS_DONE),
    m.PutPackage: Audited(
        about=("digest", "size", "kind"),
        but=("offset",),
        must_be_entered=Must.BEFORE_IT_IS_DONE,
        when=_first_piece,
    ),
    m.Examine: Audited(
        about=("what", "worker", "peer", "package", "force"),
        but=("spec", "worlds"),
        must_be_entered=Must.BEFORE_IT_IS_DONE,
        when=_acts,
    ),
    m.Profile: Audited(
        about=("job", "steps", "file"),
        but=("limit_s",),
        must_be_entered=Must.BEFORE_IT_IS_DONE,
    ),
    m.ListCheckpoints: Audited(
        about=("job", "tickets"),
        must_be_entered=Must.BEFORE_IT_IS_ANSWERED,
        when=_hands_out_tickets,
    ),
    m.RegisterModel: Audited(
        about=("name", "job", "step", "best", "mode", "copies"), but=("card",)
    ),
    m.ListModels: Audited(
        about=("name", "version", "tickets"),
        must_be_entered=Must.BEFORE_IT_IS_ANSWERED,
        when=_hands_out_tickets,
    ),
    m.AliasModel: Audited(about=("name", "alias", "version")),
    m.DescribeModel: Audited(about=("name", "version"), but=("card",)),
    m.CopyModel: Audited(about=("name", "version")),
    m.DeleteModel: Audited(about=("name", "version"), must_be_entered=Must.BEFORE_IT_IS_DONE),
    m.CreateToken: Audited(
        about=("role", "life_s", "uses", "names", "replaces"),
        results=("id", "role", "expires_s"),
        must_be_entered=Must.BEFORE_IT_IS_ANSWERED,
    ),
    m.OpenWeb: Audited(about=(), must_be_entered=Must.BEFORE_IT_IS_ANSWERED),
    m.RevokeToken: Audited(about=("id",)),
    m.RevokeCredential: Audited(about=("name",), results=("revoked", "evicted")),
    m.Enrol: Audited(
        about=("role", "name", "token_id", "workers"),
        but=("token_secret", "request_pem"),
        results=("replaced",),
        must_be_entered=Must.BEFORE_IT_IS_ANSWERED,
    ),
}
"""Calls that change something, or allow the caller to change or read more than before."""

UNCHANGING: Final[frozenset[type[Any]]] = frozenset(
    {
        m.GetStatus,
        m.WaitJob,
        m.ListJobs,
        m.ShowSweep,
        m.ListSweeps,
        m.CompareJobs,
        m.ShowJob,
        m.ReadLogs,
        m.ReadEvents,
        m.ReadAudit,
        m.GetFigures,
        m.GetMetrics,
        m.ListTokens,
        m.ListCredentials,
        m.ShowAuthority,
        m.GetAuthority,
        m.Renew,
    }
)
"""Calls that only read, or renew what the caller already has."""


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
