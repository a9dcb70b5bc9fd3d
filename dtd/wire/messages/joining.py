"""How a host or a person gets a credential (protocol.md, "Security")."""

from __future__ import annotations

from dataclasses import field

from dtd.wire.fields import MemberName, Name, Text
from dtd.wire.messages.registry import Message, message


@message
class GetAuthority(Message):
    """Ask for the certificate of the cluster's authority."""


@message
class Authority(Message):
    """The authority's certificate, PEM; whoever asked compares it with the hash in his token."""

    certificate_pem: Text


@message
class Enrol(Message):
    """Ask for a credential: who one wants to be, a token for it, and a signing request, PEM.

    `workers`: the names that a worker's credential is to be good for, with commas between.
    """

    role: Name
    name: MemberName
    token_id: Name
    token_secret: Name = field(repr=False)
    request_pem: Text
    workers: Text = ""


@message
class Enrolled(Message):
    """The credential's certificate, PEM, and the coordinator's addresses, with commas between."""

    certificate_pem: Text
    coordinators: Text


@message
class Renew(Message):
    """Ask for a certificate that renews the one of this connection: a signing request, PEM.

    Without one it says that the certificate with the serial `taken` is on disk.
    """

    request_pem: Text = ""
    taken: Name = ""


@message
class Renewed(Message):
    """The new certificate, PEM, and all that goes with it into the credential.

    Without a certificate: `reason` says why there is none yet.
    """

    certificate_pem: Text = ""
    authority_pem: Text = ""
    coordinators: Text = ""
    reason: Text = ""


@message
class Revocations(Message):
    """What was revoked, as the authority has signed it: a payload, empty when nothing is known.

    A worker says what it remembers; the coordinator answers when that is not all, or news.
    """
