"""Users of the same host: identified by the kernel, and permitted by the settings."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dtd.security.identity import LOCAL, OUTSIDER, Identity

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

    Args:
        connection: has the `getsockopt` of a socket.

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
        own_uid: the coordinator's own user.
        uids: users by role.
        gids: groups by role.
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
