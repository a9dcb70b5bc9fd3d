"""How a host or a person gets a credential (protocol.md, "Security")."""

from __future__ import annotations

from dataclasses import field

from dtd.wire.fields import Name, Text
from dtd.wire.messages.registry import message


@message(0x06)
class GetAuthority:
    """Ask for the certificate of the cluster's authority."""


@message(0x07)
class Authority:
    """The authority's certificate, PEM; whoever asked compares it with the hash in his token."""

    certificate_pem: Text


@message(0x08)
class Enrol:
    """Ask for a credential: who one wants to be, a token for it, and a signing request, PEM."""

    role: Name
    name: Name
    token_id: Name
    token_secret: Name = field(repr=False)
    request_pem: Text


@message(0x09)
class Enrolled:
    """The credential's certificate, PEM, and the coordinator's addresses, with commas between."""

    certificate_pem: Text
    coordinators: Text


JoiningMessage = GetAuthority | Authority | Enrol | Enrolled
