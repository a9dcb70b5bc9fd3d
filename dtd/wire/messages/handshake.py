"""The messages that begin and end every connection (protocol.md, "Connections")."""

from __future__ import annotations

from dtd.wire.fields import U8, U16, U32, U64, Generation, Name, Octets, Text, Words
from dtd.wire.messages.registry import Message, message
from dtd.wire.tags import FLAG_XXH3


@message
class Hello(Message):
    """First frame of every connection, from the side that opened it."""

    role: Name
    name: Name
    protocol_min: U8
    protocol_max: U8
    version: Name
    max_payload_bytes: U32
    generation: Generation = 0
    roster_id: U64 = 0
    rank: U16 = 0
    nonce: Octets = b""
    tag: U8 = FLAG_XXH3
    scope: Text = ""
    expires_s: U64 = 0
    ends: Octets = b""


@message
class Welcome(Message):
    """Answer to HELLO: the connection is open with these limits; on a data port, after PROVE."""

    protocol: U8
    version: Name
    name: Name
    max_payload_bytes: U32
    nonce: Octets = b""
    tag: U8 = FLAG_XXH3


@message
class Error(Message):
    """The last frame before the sender closes the connection."""

    code: U16
    message: Words
    remedy: Words = ""


@message
class Goodbye(Message):
    """The sender has finished normally and will close the connection."""

    reason: Words = ""


@message
class Prove(Message):
    """Data connections: the opener's answer to WELCOME, which proves that it has the key."""
