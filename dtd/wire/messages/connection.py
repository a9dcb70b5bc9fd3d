"""The beginning and the end of every connection, and how to get a credential (protocol.md)."""

from __future__ import annotations

from dataclasses import field

from dtd.wire.fields import U8, U16, U32, U64, Generation, MemberName, Name, Octets, Text, Words
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
    coding: U8 = 0


@message
class Welcome(Message):
    """Answer to HELLO: the connection is open with these limits; on a data port, after PROVE."""

    protocol: U8
    version: Name
    name: Name
    max_payload_bytes: U32
    nonce: Octets = b""
    tag: U8 = FLAG_XXH3
    coding: U8 = 0


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


@message
class GetAuthority(Message):
    """Ask for the certificate of the cluster's authority."""


@message
class Authority(Message):
    """The authority's certificate, PEM; the caller compares it with the hash in its token."""

    certificate_pem: Text


@message
class Enrol(Message):
    """Request a credential: the wanted name, a token, and a signing request, PEM.

    `workers`: the names for which a worker's credential is to be valid, separated by commas.
    """

    role: Name
    name: MemberName
    token_id: Name
    token_secret: Name = field(repr=False)
    request_pem: Text
    workers: Text = ""


@message
class Enrolled(Message):
    """The credential's certificate, PEM, and the coordinator's addresses, separated by commas."""

    certificate_pem: Text
    coordinators: Text


@message
class Renew(Message):
    """Request a renewal of this connection's certificate: a signing request, PEM.

    Without a request it reports that the certificate with the serial `taken` is on disk.
    """

    request_pem: Text = ""
    taken: Name = ""


@message
class Renewed(Message):
    """The new certificate, PEM, and the coordinator's present addresses.

    Without a certificate: `reason` says why there is none yet.
    """

    certificate_pem: Text = ""
    coordinators: Text = ""
    reason: Text = ""
