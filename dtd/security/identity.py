"""Who is at the other end of a connection, as a certificate or the kernel states it.

A certificate of the cluster's authority names its holder in one URI of its subject's alternative
names, `dtd://CLUSTER/ROLE/NAME`.  On loopback the kernel says which user the caller is.  Parsing
only: that the certificate is genuine was checked by TLS before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dtd.errors import ErrorCode, ProtocolError

WORKER: Final = "worker"
OPERATOR: Final = "operator"
VIEWER: Final = "viewer"
COORDINATOR: Final = "coordinator"
JOINABLE: Final = (WORKER, OPERATOR, VIEWER)
"""The roles that a token can let somebody join as."""

LOCAL: Final = "local"
"""On loopback: the user whom the coordinator belongs to, or root."""
STRANGER: Final = "stranger"
"""On loopback: any other user.  Beyond: a caller without a certificate."""

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_URI: Final = re.compile(
    rf"dtd://(?P<cluster>[0-9a-f]{{32}})/(?P<role>worker|operator|viewer|coordinator)"
    rf"/(?P<name>{NAME.pattern})"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who somebody is.

    Attributes:
        role: what he may do; one of this file's roles.
        name: his own within the role, or what can be said of a stranger.
        serial: of his certificate, lower-case hexadecimal; empty without one.
        where: how it is known: "certificate" or "loopback uid 0".
        cluster: id of the cluster that the certificate belongs to; empty without one.
    """

    role: str
    name: str
    serial: str = ""
    where: str
    cluster: str = ""

    def __str__(self) -> str:
        return f"{self.role}/{self.name}" if self.serial else self.name


NO_CERTIFICATE: Final = Identity(role=STRANGER, name="a caller without a credential", where="")


def identity_uri(cluster: str, role: str, name: str) -> str:
    """The URI that a certificate carries."""
    uri = f"dtd://{cluster}/{role}/{name}"
    assert _URI.fullmatch(uri), uri
    return uri


def of_certificate(certificate: Mapping[str, Any] | None) -> Identity:
    """The holder of a certificate that TLS has verified.

    Args:
        certificate: as `ssl.SSLSocket.getpeercert()` gives it; empty or None without one.

    Raises:
        ProtocolError: REFUSED, it names nobody or several.
    """
    if not certificate:
        return NO_CERTIFICATE
    uris = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    found = _URI.fullmatch(uris[0]) if len(uris) == 1 else None
    if found is None:
        raise ProtocolError(
            ErrorCode.REFUSED,
            "the certificate names no member of a dtd cluster",
            remedy="use a credential that `dtd-worker join` or `dtdctl join` has made",
        )
    return Identity(
        role=found["role"],
        name=found["name"],
        serial=serial_text(int(certificate["serialNumber"], 16)),
        where="certificate",
        cluster=found["cluster"],
    )


def check_role(who: Identity, role: str) -> None:
    """Whether the other side is what it must be; an empty role allows any.

    Raises:
        ProtocolError: REFUSED, it is something else.
    """
    if role and who.role != role:
        raise ProtocolError(
            ErrorCode.REFUSED,
            f"a {role} was called, but {who} answers",
            remedy="check the address; somebody may be posing as it",
        )


def of_user(uid: int | None, *, own_uid: int) -> Identity:
    """A caller on loopback.

    Args:
        uid: his, None when the kernel does not know him (any more).
        own_uid: whom this process belongs to.
    """
    if uid is None:
        return Identity(role=STRANGER, name="a caller unknown to the kernel", where="loopback")
    role = LOCAL if uid in (own_uid, 0) else STRANGER
    return Identity(role=role, name=f"uid {uid}", where=f"loopback uid {uid}")


def serial_text(serial: int) -> str:
    """A certificate's serial number as people see and type it."""
    return f"{serial:x}"
