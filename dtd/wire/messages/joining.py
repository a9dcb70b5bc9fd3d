"""Messages by which a host or a person gets a credential (protocol.md, "Security")."""

from __future__ import annotations

from dataclasses import field

from dtd.wire.fields import MemberName, Name, Text
from dtd.wire.messages.registry import Message, message


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
