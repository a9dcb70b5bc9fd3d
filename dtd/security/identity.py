"""The identity of a connection's peer, from its certificate or from the kernel.

A certificate of the cluster's authority names its holder in URIs among its subject's alternative
names: `dtd://CLUSTER/ROLE/NAME`; of a worker's, the names that it may register,
`dtd://CLUSTER/registers/NAME`; and the credential that it belongs to, `dtd://CLUSTER/credential/ID`.
On the coordinator's own host the kernel says which user calls.  That a certificate is genuine was
checked by TLS before.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import grp
import os
import pwd
import re
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dtd.errors import ErrorCode, ProtocolError, RequestRefused
from dtd.text.names import NAME, is_name

WORKER: Final = "worker"
OPERATOR: Final = "operator"
VIEWER: Final = "viewer"
COORDINATOR: Final = "coordinator"
JOINABLE: Final = (WORKER, OPERATOR, VIEWER)
"""The roles that a token can grant."""

LOCAL: Final = "local"
"""Role on this host of the coordinator's own user, and of root."""
OUTSIDER: Final = "outsider"
"""Role on the socket of a user that the coordinator's settings do not name."""
STRANGER: Final = "stranger"
"""Role over TCP of a caller without a certificate."""

_URI: Final = re.compile(
    rf"dtd://(?P<cluster>[0-9a-f]{{32}})/(?P<role>worker|operator|viewer|coordinator)"
    rf"/(?P<name>{NAME})"
)
_REGISTERS: Final = re.compile(rf"dtd://(?P<cluster>[0-9a-f]{{32}})/registers/(?P<name>{NAME})")
_CREDENTIAL: Final = re.compile(
    r"dtd://(?P<cluster>[0-9a-f]{32})/credential/(?P<name>[0-9a-f]{1,40})"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The identity of a peer.

    Attributes:
        name: the peer's name within the role, or a description of an unknown peer.
        serial: of the certificate, lower-case hexadecimal; empty without one.
        where: how it is known: "certificate" or "socket".
        uid: the user's number on this host, where the kernel has stated it; else None.
        workers: the names that the peer may register; None: any, since the user is known.
        credential: the serial of the credential's first certificate; renewed ones keep it.
        issued_s: Unix time from which the certificate counts; 0 without one.
    """

    role: str
    name: str
    serial: str = ""
    where: str
    workers: tuple[str, ...] | None = None
    credential: str = ""
    issued_s: float = 0.0
    expires_s: float = 0.0
    fingerprint: str = ""
    uid: int | None = None

    @property
    def is_known(self) -> bool:
        """Whether the peer has authenticated as a member of the cluster, in any role."""
        return self.role not in (STRANGER, OUTSIDER)

    @property
    def is_worker_here(self) -> bool:
        """Whether the peer is a worker by the coordinator's settings, without a credential."""
        return self.role == WORKER and self.uid is not None

    def __str__(self) -> str:
        return f"{self.role}/{self.name}" if self.serial else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The credential and the validity of a certificate."""

    serial: str
    credential: str
    issued: dt.datetime
    expires: dt.datetime


NO_CERTIFICATE: Final = Identity(role=STRANGER, name="a caller without a credential", where="")


def identity_uri(cluster: str, role: str, name: str) -> str:
    """The URI that a certificate carries."""
    uri = f"dtd://{cluster}/{role}/{name}"
    assert _URI.fullmatch(uri), uri
    return uri


def registers_uri(cluster: str, worker: str) -> str:
    """The URI by which a certificate is good for a worker's name."""
    return f"dtd://{cluster}/registers/{worker}"


def credential_uri(cluster: str, credential: str) -> str:
    """The URI by which a certificate belongs to a credential."""
    return f"dtd://{cluster}/credential/{credential}"


def of_certificate(certificate: Mapping[str, Any] | None, der: bytes | None) -> Identity:
    """The holder of a certificate that TLS has verified.

    Raises:
        ProtocolError: REFUSED, it names nobody or several.
    """
    if not certificate or der is None:
        return NO_CERTIFICATE
    uris = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    found = [match for match in map(_URI.fullmatch, uris) if match is not None]
    workers = [match["name"] for match in map(_REGISTERS.fullmatch, uris) if match is not None]
    first = [match["name"] for match in map(_CREDENTIAL.fullmatch, uris) if match is not None]
    if len(found) != 1 or len(first) > 1 or len(uris) != 1 + len(workers) + len(first):
        raise ProtocolError(
            ErrorCode.REFUSED,
            "the certificate names no member of a dtd cluster",
            remedy="use a credential that `dtd-worker join` or `dtdctl join` has created",
        )
    import hashlib
    import ssl  # TLS connections have loaded it; a plain call of dtdctl has not

    serial = serial_text(int(certificate["serialNumber"], 16))
    role, name = found[0]["role"], found[0]["name"]
    return Identity(
        role=role,
        name=name,
        serial=serial,
        where="certificate",
        workers=tuple(workers),
        credential=first[0] if first else serial,
        issued_s=float(ssl.cert_time_to_seconds(certificate["notBefore"])),
        expires_s=float(ssl.cert_time_to_seconds(certificate["notAfter"])),
        fingerprint=hashlib.sha256(der).hexdigest(),
    )


def check_role(who: Identity, role: str) -> None:
    """Check the role of the other side; an empty role allows any.

    Raises:
        ProtocolError: REFUSED, it has another one.
    """
    if role and who.role != role:
        raise ProtocolError(
            ErrorCode.REFUSED,
            f"the peer should be a {role}, but {who} answers",
            remedy="check the address; another program may be impersonating it",
        )


def serial_text(serial: int) -> str:
    """A certificate's serial number as people see and type it."""
    return f"{serial:x}"


# --- the names that a host's credential is good for ----------------------------------------------
#
# A list that is settled when the host joins.  A host with several devices has one credential and
# several workers.  Each of their names stands in the certificate; no rule makes further ones of
# them, so that `host7` reaches no worker of `host7-b`.


MAX_NAMES: Final = 64
"""So many workers can one credential be good for."""
USUAL_GPUS: Final = 16
HAND_INSTANCES: Final = tuple(f"hand{n}" for n in range(16))
"""Those of processes that are started by hand."""
USUAL_INSTANCES: Final = (
    *("cpu", *(f"cuda{n}" for n in range(USUAL_GPUS)), "server"),
    *HAND_INSTANCES,
)
"""Instances requested by default: dtd-worker@cpu, @cuda0 to @cuda15, @server, and scripts."""


def worker_names(host: str, instances: Sequence[str] = USUAL_INSTANCES) -> tuple[str, ...]:
    """The names of a host's workers: its own, and one for each instance of the unit that fits."""
    names = (host, *(f"{host}-{instance}" for instance in instances))
    return tuple(dict.fromkeys(name for name in names if is_name(name)))


def split_names(text: str) -> tuple[str, ...]:
    """Names with commas between, each once."""
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def check_names(host: str, names: Sequence[str]) -> None:
    """Whether a host may ask for these names: its own, or its own with an ending.

    Raises:
        RequestRefused: one of them is no name or not this host's, or they are too many.
    """
    if len(names) > MAX_NAMES:
        raise RequestRefused(
            f"{host[:80]} asks for {len(names)} names, and a credential has {MAX_NAMES} at most",
            remedy="give fewer with --instances",
        )
    for name in names:
        own = name == host or (name.startswith(f"{host}-") and name != f"{host}-")
        if not own or not is_name(name):
            raise RequestRefused(
                f"{host[:80]} cannot be given the name {name[:80]!r}",
                remedy=f"its workers are called {host[:80]} or {host[:80]}-INSTANCE, 64 characters"
                " at most",
            )


# --- what the kernel says of the process at the other end of a Unix-domain socket (unix(7)) ----
#
# Written down by the kernel when the connection was made, whatever the process does afterwards;
# nothing that the other side sends takes part in this.


ROOT_UID: Final = 0

_CREDENTIALS: Final = struct.Struct("=iII")
# asm-generic/socket.h; Python's module has no name for it.
_SO_PEERGROUPS: Final = 59
_GROUP: Final = struct.Struct("=I")
MAX_GROUPS: Final = 256
"""Most groups that Python's getsockopt has room for; beyond, only the first one counts."""


def peer_uid(connection: Any) -> int:
    """The user of the process that called, or, on the calling side, of the one that listens.

    Raises:
        OSError: the connection is gone.
    """
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(packed)[1])


def peer_groups(connection: Any) -> frozenset[int]:
    """The groups of that process; its first one alone where those are too many.

    Raises:
        OSError: the connection is gone.
    """
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    groups = {int(_CREDENTIALS.unpack(packed)[2])}
    with contextlib.suppress(OSError):
        size = MAX_GROUPS * _GROUP.size
        more = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, size)
        groups |= {group for (group,) in _GROUP.iter_unpack(more)}
    return frozenset(groups)


# --- users and groups of the coordinator's host that its settings name, as numbers -------------
#
# Names are looked up once, when the coordinator starts, since a directory service may take its
# time; a caller is then known from numbers that the kernel states.


_GROUP_SIGN: Final = "@"
_ROLES_IN_ORDER: Final = ("operator", "worker", "viewer")


@dataclass(slots=True, kw_only=True)
class LocalUsers:
    """The users and groups that were named, by role.

    Attributes:
        unknown: the names that this host does not know.
    """

    own_uid: int
    uids: dict[str, set[int]] = field(default_factory=dict)
    gids: dict[str, set[int]] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)

    def identity(self, uid: int, groups: frozenset[int]) -> Identity:
        """The identity of a caller on the socket; the first list that names the user counts."""
        role = LOCAL if uid in (self.own_uid, ROOT_UID) else self._named(uid, groups)
        return Identity(role=role, name=f"uid {uid}", where="socket", uid=uid)

    def _named(self, uid: int, groups: frozenset[int]) -> str:
        for role in _ROLES_IN_ORDER:
            if uid in self.uids.get(role, ()) or groups & self.gids.get(role, set()):
                return role
        return OUTSIDER


def look_up(named: Mapping[str, Sequence[str]]) -> LocalUsers:
    """The users and groups of these names, or numbers, by role; blocking.

    Args:
        named: NAME, UID, @GROUP or @GID, by role.
    """
    found = LocalUsers(own_uid=os.geteuid())
    for role, words in named.items():
        for word in words:
            is_group = word.startswith(_GROUP_SIGN)
            number = _number(word.removeprefix(_GROUP_SIGN), _gid if is_group else _uid)
            if number is None:
                found.unknown.append(word)
            else:
                (found.gids if is_group else found.uids).setdefault(role, set()).add(number)
    return found


def _number(word: str, known: Callable[[str], int]) -> int | None:
    if word.isascii() and word.isdigit():
        return int(word)
    try:
        return known(word)
    except KeyError:
        return None


def _uid(name: str) -> int:
    return pwd.getpwnam(name).pw_uid


def _gid(name: str) -> int:
    return grp.getgrnam(name).gr_gid
