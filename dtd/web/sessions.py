"""Logins to the web page: codes that are good once, and the sessions they begin.

A session has two secrets.  One is a cookie, which a browser sends to every port of a host, so that
a server on another port there may get to know it.  The other, the key, stays in the page's own
storage, which belongs to one port.  Both must be shown.  Only hashes are kept.  Pure: secrets and
the clock are arguments.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

CODE_LIFE_S: Final = 3600.0
SESSION_LIFE_S: Final = 12 * 3600.0
MAX_CODES: Final = 64
MAX_CODES_OF_ONE: Final = 8
MAX_SESSIONS: Final = 256
MAX_SESSIONS_OF_ONE: Final = 32

HolderT = TypeVar("HolderT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Session(Generic[HolderT]):
    """One browser that is logged in.

    Attributes:
        id: hash of the cookie.
        holder: its owner.
        key_sha256: hash of the key.
        expires_s: when it ends.
    """

    id: str
    holder: HolderT
    key_sha256: str
    expires_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Code(Generic[HolderT]):
    holder: HolderT
    expires_s: float


class WebSessions(Generic[HolderT]):
    """All codes and sessions, both bounded; the oldest of a holder with too many makes room."""

    def __init__(self) -> None:
        self._codes: OrderedDict[str, _Code[HolderT]] = OrderedDict()
        self._sessions: OrderedDict[str, Session[HolderT]] = OrderedDict()

    def offer(self, code: str, holder: HolderT, now_s: float) -> float:
        """A code with which `holder` can log in once; returns when it ends."""
        for sha256 in [key for key, one in self._codes.items() if one.expires_s <= now_s]:
            del self._codes[sha256]
        _make_room(self._codes, holder, MAX_CODES_OF_ONE, MAX_CODES)
        expires_s = now_s + CODE_LIFE_S
        self._codes[_sha256(code)] = _Code(holder=holder, expires_s=expires_s)
        return expires_s

    def redeem(self, code: str, now_s: float) -> HolderT | None:
        """Use up a code and return its holder; None if it is not valid."""
        found = self._codes.pop(_sha256(code), None)
        return found.holder if found is not None and now_s < found.expires_s else None

    def begin(self, cookie: str, key: str, holder: HolderT, now_s: float) -> Session[HolderT]:
        """Log `holder` in, with two fresh secrets."""
        for session_id in [key for key, one in self._sessions.items() if one.expires_s <= now_s]:
            del self._sessions[session_id]
        _make_room(self._sessions, holder, MAX_SESSIONS_OF_ONE, MAX_SESSIONS)
        made = Session(
            id=_sha256(cookie),
            holder=holder,
            key_sha256=_sha256(key),
            expires_s=now_s + SESSION_LIFE_S,
        )
        self._sessions[made.id] = made
        return made

    def restore(self, sessions: Iterable[Session[HolderT]]) -> None:
        """Take over the sessions of an earlier process."""
        self._sessions.update((one.id, one) for one in sessions)

    def every(self) -> list[Session[HolderT]]:
        """Return all sessions, the oldest first."""
        return list(self._sessions.values())

    def find(self, cookie: str, key: str, now_s: float) -> Session[HolderT] | None:
        """The session of these two secrets; None: there is none, or it has ended."""
        found = self._sessions.get(_sha256(cookie))
        if found is None or not hmac.compare_digest(found.key_sha256, _sha256(key)):
            return None
        return found if now_s < found.expires_s else None

    def of_cookie(self, cookie: str, now_s: float) -> Session[HolderT] | None:
        """The session of a cookie, for which no key was shown; None: there is none."""
        found = self._sessions.get(_sha256(cookie))
        return found if found is not None and now_s < found.expires_s else None

    def end(self, session: Session[HolderT]) -> None:
        """Log out."""
        self._sessions.pop(session.id, None)

    def __contains__(self, session: Session[HolderT]) -> bool:
        return session.id in self._sessions

    def __len__(self) -> int:
        return len(self._sessions)


_Held = TypeVar("_Held", Session, _Code)  # type: ignore[type-arg]


def _make_room(held: OrderedDict[str, _Held], holder: object, most_of_one: int, most: int) -> None:
    own = [key for key, one in held.items() if one.holder == holder]
    if len(own) >= most_of_one:
        del held[own[0]]
    elif len(held) >= most:
        held.popitem(last=False)


def _sha256(secret: str) -> str:
    """Hash a random, long secret, for which a plain hash will do."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
