"""What each role may do on a control connection (protocol.md, "Security").

A worker opens worker connections only, an operator everything of dtdctl, a viewer what changes
nothing; a credential says who is what, and on the coordinator's own host its settings.  Who has no
credential may ask to join.  The user whom the coordinator belongs to may do everything on its host,
and who is named nowhere nothing.  Pure.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from dtd.wire import messages as m

VIEWER_MAY: Final[frozenset[type[Any]]] = frozenset(
    {
        m.GetStatus,
        m.WaitJob,
        m.ListJobs,
        m.ShowJob,
        m.ReadLogs,
        m.ReadEvents,
        m.ListCheckpoints,
        m.GetFigures,
        m.Renew,
    }
)
# Which connections a role may open.
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


class Identity(Protocol):
    """Who somebody is: `dtd.security.identity.Identity`."""

    @property
    def role(self) -> str:
        """What he may do."""
        ...

    @property
    def name(self) -> str:
        """His own within the role."""
        ...

    @property
    def uid(self) -> int | None:
        """The user's number, on the coordinator's own host."""
        ...

    @property
    def workers(self) -> tuple[str, ...] | None:
        """The names that he may register; None: any."""
        ...


def refusal(who: Identity, message: m.Message) -> str:
    """Why somebody may not send this; empty when he may.

    Messages that his connection's role does not allow never come this far.
    """
    if isinstance(message, m.Hello):
        return _may_not_open(who, message.role)
    if isinstance(message, m.Register):
        return _may_not_be(who, message.name)
    if who.role == "viewer":
        return _may_not_ask(who, message)
    return ""


def _may_not_ask(who: Identity, message: m.Message) -> str:
    """A viewer sees which checkpoints there are, but not what is in them."""
    asked = m.message_name(type(message))
    if isinstance(message, m.ListCheckpoints) and message.tickets:
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
    if here:  # where nobody needs to join
        return (
            f"{who.name} has the role {who.role} here and may not open a connection of role {role}"
        )
    return f"a credential of role {who.role} ({who.name}) does not open a connection of role {role}"


def _may_not_be(who: Identity, worker: str) -> str:
    """A host with several devices has one credential, which lists the names of its workers.

    Workers of the coordinator's own host have none, so that nothing says what they are called.
    """
    if who.workers is None or worker in who.workers:
        return ""
    return f"the credential of {who.name} is not good for a worker named {worker}"
