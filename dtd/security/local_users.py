"""What the users of the coordinator's host may do: whom its settings name, as numbers.

Names are looked up once, when the coordinator starts, since a directory service may take its time;
who calls is then known from numbers that the kernel states.
"""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dtd.security.identity import LOCAL, OUTSIDER, Identity
from dtd.security.peer_credentials import ROOT_UID

_GROUP_SIGN: Final = "@"
_ROLES_IN_ORDER: Final = ("operator", "worker", "viewer")


@dataclass(slots=True, kw_only=True)
class LocalUsers:
    """The users and groups that were named, by role.

    Attributes:
        own_uid: whom the coordinator belongs to.
        uids: users by role.
        gids: groups by role.
        unknown: the names that this host does not know.
    """

    own_uid: int
    uids: dict[str, set[int]] = field(default_factory=dict)
    gids: dict[str, set[int]] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)

    def identity(self, uid: int, groups: frozenset[int]) -> Identity:
        """Who a caller on the socket is; the first list that names him counts."""
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
