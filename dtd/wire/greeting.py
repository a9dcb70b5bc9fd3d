"""What the two sides of every connection say first: HELLO, and WELCOME in answer.

Both state the one protocol version that this dtd speaks and its own version; `dtd.wire.connection`
judges what the other side stated (protocol.md, "Connections").
"""

from __future__ import annotations

from dtd import __version__
from dtd.wire import messages as m
from dtd.wire.frames import LARGEST_MAX_PAYLOAD_BYTES, PROTOCOL_VERSION


def hello(
    role: m.Role,
    name: str,
    *,
    max_payload_bytes: int = LARGEST_MAX_PAYLOAD_BYTES,
    generation: int = 0,
    roster_id: int = 0,
    rank: int = 0,
    scope: str = "",
    expires_unix_s: int = 0,
) -> m.Hello:
    """The first message of the side that calls.

    Args:
        role: what the connection is for.
        name: who calls.
        max_payload_bytes: the largest payload that this side takes.
        generation: with the next two, the roster to which the caller belongs; 0 for other roles.
        roster_id: that generation's roster.
        rank: the caller's place in it.
        scope: what a ticket is for; empty without one.
        expires_unix_s: until when it is good.
    """
    return m.Hello(
        role=role.value,
        name=name,
        protocol_min=PROTOCOL_VERSION,
        protocol_max=PROTOCOL_VERSION,
        version=__version__,
        max_payload_bytes=max_payload_bytes,
        generation=generation,
        roster_id=roster_id,
        rank=rank,
        scope=scope,
        expires_unix_s=expires_unix_s,
    )


def welcome(name: str, *, max_payload_bytes: int = LARGEST_MAX_PAYLOAD_BYTES) -> m.Welcome:
    """The answer of the side that was called.

    Args:
        name: who answers.
        max_payload_bytes: the largest payload that this side takes.
    """
    return m.Welcome(
        protocol=PROTOCOL_VERSION,
        version=__version__,
        name=name,
        max_payload_bytes=max_payload_bytes,
    )
