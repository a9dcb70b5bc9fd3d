"""The first messages of every connection: HELLO, and WELCOME in answer.

Both state the one protocol version that this dtd speaks, and its release; `dtd.wire.session` checks
what the other side stated (protocol.md, "Connections").
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

from dtd import __version__
from dtd.wire import messages as m
from dtd.wire.frames import LARGEST_MAX_PAYLOAD_BYTES, PROTOCOL_VERSION


def hello(
    role: m.Role, name: str, *, max_payload_bytes: int = LARGEST_MAX_PAYLOAD_BYTES
) -> m.Hello:
    """The first message of the side that opens the connection.

    Args:
        role: purpose of the connection.
        name: the caller's name.
        max_payload_bytes: the largest payload that this side accepts.
    """
    return m.Hello(
        role=role.value,
        name=name,
        protocol_min=PROTOCOL_VERSION,
        protocol_max=PROTOCOL_VERSION,
        version=__version__,
        max_payload_bytes=max_payload_bytes,
    )


def welcome(name: str, *, max_payload_bytes: int = LARGEST_MAX_PAYLOAD_BYTES) -> m.Welcome:
    """The answer of the side that accepts the connection.

    Args:
        name: the name of the answering process.
        max_payload_bytes: the largest payload that this side accepts.
    """
    return m.Welcome(
        protocol=PROTOCOL_VERSION,
        version=__version__,
        name=name,
        max_payload_bytes=max_payload_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCredential:
    """The credential of a data connection: a secret, and the fields of HELLO that identify it.

    Attributes:
        secret: a generation's secret, or a ticket's key.
        generation: with the next two, the roster whose secret it is.
        roster_id: that generation's roster.
        rank: the opening side's rank in it.
        scope: the resource that a ticket covers; empty for a generation's secret.
        expires_s: when the ticket expires, on the monotonic clock of the worker that is called.
    """

    secret: bytes = field(repr=False)
    generation: int = 0
    roster_id: int = 0
    rank: int = 0
    scope: str = ""
    expires_s: int = 0

    @classmethod
    def of(cls, assign: m.Assign) -> Self:
        """The credential of a member of a generation."""
        return cls(
            secret=assign.secret,
            generation=assign.generation,
            roster_id=assign.roster_id,
            rank=assign.rank,
        )

    def hello(self, role: m.Role, name: str) -> m.Hello:
        """The HELLO that states this credential."""
        return replace(
            hello(role, name),
            generation=self.generation,
            roster_id=self.roster_id,
            rank=self.rank,
            scope=self.scope,
            expires_s=self.expires_s,
        )
