"""Which calls change something, and what of each stands in the audit log.

Every message that operators or those who join can ask is declared here, once: a test fails for one
that is not, so that a new call cannot forget it.  What is named is listed field by field, so that a
secret cannot slip in with the rest.  Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dtd.shown import one_line
from dtd.wire import messages as m

MOST_CHARACTERS: Final = 200
"""Of one argument or result."""
MOST_ENTRIES: Final = 16
"""Of a result that is a list; the rest is counted."""
_NOTHING: Final[tuple[Any, ...]] = ("", 0, 0.0, False, None, (), [])


def _always(_message: Any, _payload_bytes: int) -> bool:
    return True


def _first_piece(message: m.PutPackage, payload_bytes: int) -> bool:
    """A package comes in pieces, and is asked for with none."""
    return message.offset == 0 and payload_bytes > 0


def _acts(message: m.Examine, _payload_bytes: int) -> bool:
    """To measure a step runs the job's code; what is measured by force disturbs a job."""
    return message.what == "step" or message.force


def _hands_out_tickets(message: m.ListCheckpoints, _payload_bytes: int) -> bool:
    """With them parameters can be read from the workers."""
    return message.tickets


class Must(enum.Enum):
    """When a call has to stand in the log: the disk may be full.

    Attributes:
        IF_POSSIBLE: what takes something away is done in any case.
        BEFORE_IT_IS_DONE: what runs code or destroys something.
        BEFORE_IT_IS_ANSWERED: what gives something with its answer, which is not given else.
    """

    IF_POSSIBLE = enum.auto()
    BEFORE_IT_IS_DONE = enum.auto()
    BEFORE_IT_IS_ANSWERED = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """What is entered of one call.

    Attributes:
        about: fields of the request that are entered.
        but: its other fields, which are long, secret or of no interest.
        results: keys of the answer.
        must_be_entered: whether it is done, and answered, though it cannot be entered.
        when: whether this request changes something.
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
    m.CancelJob: Audited(about=("job",), results=("state",)),
    m.ResumeJob: Audited(about=("job",), results=("state",)),
    m.KillWorker: Audited(about=("name", "signal"), results=("pid",)),
    m.DrainWorker: Audited(about=("name",)),
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
    m.ListCheckpoints: Audited(
        about=("job", "tickets"),
        must_be_entered=Must.BEFORE_IT_IS_ANSWERED,
        when=_hands_out_tickets,
    ),
    m.CreateToken: Audited(
        about=("role", "life_s", "uses", "names", "replaces"),
        results=("id", "role", "expires_s"),
        must_be_entered=Must.BEFORE_IT_IS_ANSWERED,
    ),
    m.RevokeToken: Audited(about=("id",)),
    m.RevokeCredential: Audited(about=("name",), results=("revoked", "evicted")),
    m.RotateAuthority: Audited(
        about=("overlap_s", "finish"),
        results=("sha256", "out"),
        must_be_entered=Must.BEFORE_IT_IS_DONE,
    ),
    m.Enrol: Audited(
        about=("role", "name", "token_id", "workers"),
        but=("token_secret", "request_pem"),
        results=("replaced",),
        must_be_entered=Must.BEFORE_IT_IS_ANSWERED,
    ),
}
"""Calls that change something, or let somebody change or read more than before."""

UNCHANGING: Final[frozenset[type[Any]]] = frozenset(
    {
        m.GetStatus,
        m.WaitJob,
        m.ListJobs,
        m.ShowJob,
        m.ReadLogs,
        m.ReadEvents,
        m.ReadAudit,
        m.GetFigures,
        m.ListTokens,
        m.ListCredentials,
        m.ShowAuthority,
        m.GetAuthority,
        m.Renew,
    }
)
"""Calls that only look; or keep what somebody has, as often as he likes."""


def audited(message: m.Message, payload_bytes: int = 0) -> Audited | None:
    """How this call is entered; None when it changes nothing."""
    declared = CHANGING.get(type(message))
    changes = declared is not None and declared.when(message, payload_bytes)
    return declared if changes else None


def about(message: m.Message, declared: Audited) -> dict[str, Any]:
    """What the call is about: its arguments that say something, bounded."""
    found = {name: getattr(message, name) for name in declared.about}
    if isinstance(message, m.SubmitJob | m.Examine):
        table = message.spec.get("job")
        given = table if isinstance(table, dict) else {}
        found |= {name: given.get(name) for name in ("name", "task")}
    return {name: _short(value) for name, value in found.items() if value not in _NOTHING}


def outcome(answer: Mapping[str, Any], declared: Audited) -> dict[str, Any]:
    """What came of it: the declared part of the answer, bounded."""
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
