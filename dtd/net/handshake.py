"""The keyed handshake of data connections: from a shared secret to the tags of both directions.

HELLO and WELCOME bring a nonce each; what the two sides then send proves that they know the secret
(protocol.md, "Data connections").  `Link` and `BlockingLink` send and receive the messages; which
secret belongs to a HELLO is the business of `dtd.net.data_server`.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import os
from dataclasses import dataclass, field
from typing import Self

from dtd.errors import ErrorCode, ProtocolError
from dtd.security.data_keys import ACCEPTOR, NONCE_BYTES, OPENER, session_key
from dtd.wire import messages as m
from dtd.wire.greeting import hello
from dtd.wire.keyed_tag import KeyedTag
from dtd.wire.tags import FLAG_GCM, FLAG_XXH3


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What opens a data connection: a secret, and what HELLO says of where it comes from.

    Attributes:
        secret: of a generation, or a ticket's key.
        generation: with the next two, whose secret it is.
        roster_id: that generation's roster.
        rank: the caller's place in it.
        scope: what a ticket is for; empty for a generation's secret.
        expires_unix_s: until when a ticket is good.
    """

    secret: bytes = field(repr=False)
    generation: int = 0
    roster_id: int = 0
    rank: int = 0
    scope: str = ""
    expires_unix_s: int = 0

    @classmethod
    def of(cls, assign: m.Assign) -> Self:
        """As a member of a generation."""
        return cls(
            secret=assign.secret,
            generation=assign.generation,
            roster_id=assign.roster_id,
            rank=assign.rank,
        )

    def hello(self, role: m.Role, name: str) -> m.Hello:
        """The HELLO that shows it."""
        return hello(
            role,
            name,
            generation=self.generation,
            roster_id=self.roster_id,
            rank=self.rank,
            scope=self.scope,
            expires_unix_s=self.expires_unix_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """The tags of what either side sends."""

    opener: KeyedTag
    acceptor: KeyedTag


class Opening:
    """The opener's half.

    Args:
        hello: what to say.
        secret: what both sides know.
        private: nobody else can reach what the connection runs over.

    Attributes:
        hello: the same with a nonce, and with the least that the tags must be.
    """

    def __init__(self, hello: m.Hello, secret: bytes, *, private: bool) -> None:
        self.hello = dataclasses.replace(
            hello, nonce=os.urandom(NONCE_BYTES), tag=_least_tag(private=private)
        )
        self._secret = secret

    def keys(self, welcome: m.Welcome) -> Keys:
        """The acceptor has answered.

        Raises:
            ProtocolError: BAD_FIELD when it wants weaker tags than this side does.
        """
        if welcome.tag < self.hello.tag:
            raise ProtocolError(
                ErrorCode.BAD_FIELD, f"WELCOME.tag: {welcome.tag} is less than {self.hello.tag}"
            )
        return _keys(self._secret, m.encode_header(self.hello), self.hello, welcome)


def answer(
    welcome: m.Welcome, hello: m.Hello, *, header: bytes, secret: bytes, private: bool
) -> tuple[m.Welcome, Keys]:
    """The acceptor's half: WELCOME as it is sent, and the tags from there on.

    Args:
        welcome: what to say.
        hello: what the opener said.
        header: the same as it was on the wire.
        secret: what both sides know.
        private: nobody else can reach what the connection runs over.
    """
    said = dataclasses.replace(
        welcome,
        nonce=os.urandom(NONCE_BYTES),
        tag=max(hello.tag, _least_tag(private=private)),
    )
    return said, _keys(secret, header, hello, said)


def is_private(host: str) -> bool:
    """Whether what is exchanged with this address never leaves the machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _least_tag(*, private: bool) -> int:
    return FLAG_XXH3 if private else FLAG_GCM


def _keys(secret: bytes, header: bytes, hello: m.Hello, welcome: m.Welcome) -> Keys:
    def tag(sender: str) -> KeyedTag:
        key = session_key(
            secret,
            hello=header,
            hello_nonce=hello.nonce,
            welcome_nonce=welcome.nonce,
            sender=sender,
        )
        return KeyedTag(key, later=welcome.tag)

    return Keys(opener=tag(OPENER), acceptor=tag(ACCEPTOR))
