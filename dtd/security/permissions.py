"""The permissions of each role on a control connection (protocol.md, "Security").

A worker opens worker connections only, an operator everything of dtdctl, a viewer what changes
nothing; a credential states the role, and on the coordinator's own host its settings do.  A caller
without a credential may ask to join.  The coordinator's own user may do everything on its host, and
a user that the settings do not name may do nothing.  Pure.
"""

from __future__ import annotations

from typing import Any, Final

from dtd.security.identity import Identity
from dtd.wire import messages as m

VIEWER_MAY: Final[frozenset[type[Any]]] = frozenset(
    {
        m.GetStatus,
        m.WaitJob,
        m.ListJobs,
        m.CompareJobs,
        m.ListModels,
        m.ShowSweep,
        m.ListSweeps,
        m.ShowJob,
        m.ReadLogs,
        m.ReadEvents,
        m.ListCheckpoints,
        m.GetFigures,
        m.GetMetrics,
        m.OpenWeb,
        m.Renew,
    }
)
# The connections that a role may open.
OPENS: Final[dict[str, frozenset[m.Role]]] = {
    "local": frozenset({m.Role.WORKER, m.Role.CTL}),
    "worker": frozenset({m.Role.WORKER, m.Role.JOIN}),
    "operator": frozenset({m.Role.CTL, m.Role.JOIN}),
    "viewer": frozenset({m.Role.CTL, m.Role.JOIN}),
    "outsider": frozenset(),
    "stranger": frozenset({m.Role.JOIN}),
}
NO_CREDENTIAL_REMEDY: Final = (
    "ask for a token: on the coordinator's host run `dtdctl token create`, then"
    " `dtd-worker join TOKEN` or `dtdctl join TOKEN` here"
)


def refusal(who: Identity, message: m.Message) -> str:
    """Why a caller may not send this message; empty when it may.

    Messages that the connection's role does not allow are rejected before this check.
    """
    if isinstance(message, m.Hello):
        return _may_not_open(who, message.role)
    if isinstance(message, m.Register):
        return _may_not_be(who, message.name)
    if who.role == "viewer":
        return _may_not_ask(who, message)
    return ""


def _may_not_ask(who: Identity, message: m.Message) -> str:
    """Why a viewer may not request this: viewers may list weights, but not read them."""
    asked = m.message_name(type(message))
    if isinstance(message, m.ListCheckpoints | m.ListModels) and message.tickets:
        asked = f"{asked} for tickets to fetch them"
    elif type(message) in VIEWER_MAY:
        return ""
    return f"{who.name} is a viewer and may not ask {asked}; an operator may"


def _may_not_open(who: Identity, role: str) -> str:
    here = who.uid is not None
    if role in OPENS.get(who.role, ()) and not (here and role == m.Role.JOIN):
        return ""
    if who.role in ("stranger", "outsider"):
        return f"{who.name} may not open a connection of role {role} here"
    if here:  # where joining is not needed
        return (
            f"{who.name} has the role {who.role} here and may not open a connection of role {role}"
        )
    return f"a credential of role {who.role} ({who.name}) does not open a connection of role {role}"


def _may_not_be(who: Identity, worker: str) -> str:
    """Why a caller may not register this name: a host's credential lists its workers' names.

    Workers on the coordinator's own host have no credential, so any name is allowed there.
    """
    if who.workers is None or worker in who.workers:
        return ""
    return f"the credential of {who.name} is not valid for a worker named {worker}"
