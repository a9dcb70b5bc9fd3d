"""Logins to the web page: codes that are good once, and the sessions they begin.

A session has two secrets.  One is a cookie, which a browser sends to every port of a host, so that
a server on another port there may get to know it.  The other, the key, stays in the page's own
storage, which belongs to one port.  Both must be shown.  Only hashes are kept, also in the file by
which sessions outlive a restart of the coordinator: to read it gives no session.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from dtd.errors import ConfigError
from dtd.security.identity import Identity
from dtd.security.private_files import read_records, write_records

CODE_LIFE_S: Final = 3600.0
SESSION_LIFE_S: Final = 12 * 3600.0
MAX_CODES: Final = 64
MAX_SESSIONS: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One browser that is logged in.

    Attributes:
        id: hash of the cookie.
        holder: its owner.
        key_sha256: hash of the key.
        expires_s: when it ends.
    """

    id: str
    holder: Identity
    key_sha256: str
    expires_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Code:
    holder: Identity
    expires_s: float


class WebSessions:
    """All codes and sessions, both bounded; the oldest makes room."""

    def __init__(self) -> None:
        self._codes: OrderedDict[str, _Code] = OrderedDict()
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def offer(self, code: str, holder: Identity, now_s: float) -> float:
        """A code with which `holder` can log in once; returns when it ends."""
        for sha256 in [key for key, one in self._codes.items() if one.expires_s <= now_s]:
            del self._codes[sha256]
        _make_room(self._codes, MAX_CODES)
        expires_s = now_s + CODE_LIFE_S
        self._codes[_sha256(code)] = _Code(holder=holder, expires_s=expires_s)
        return expires_s

    def redeem(self, code: str, now_s: float) -> Identity | None:
        """Use up a code and return its holder; None if it is not valid."""
        found = self._codes.pop(_sha256(code), None)
        return found.holder if found is not None and now_s < found.expires_s else None

    def begin(self, cookie: str, key: str, holder: Identity, now_s: float) -> Session:
        """Log `holder` in, with two fresh secrets."""
        for session_id in [key for key, one in self._sessions.items() if one.expires_s <= now_s]:
            del self._sessions[session_id]
        _make_room(self._sessions, MAX_SESSIONS)
        made = Session(
            id=_sha256(cookie),
            holder=holder,
            key_sha256=_sha256(key),
            expires_s=now_s + SESSION_LIFE_S,
        )
        self._sessions[made.id] = made
        return made

    def restore(self, sessions: Iterable[Session]) -> None:
        """Take over the sessions of an earlier process."""
        self._sessions.update((one.id, one) for one in sessions)

    def every(self) -> list[Session]:
        """Return all sessions, the oldest first."""
        return list(self._sessions.values())

    def find(self, cookie: str, key: str, now_s: float) -> Session | None:
        """The session of these two secrets; None: there is none, or it has ended."""
        found = self._sessions.get(_sha256(cookie))
        if found is None or not hmac.compare_digest(found.key_sha256, _sha256(key)):
            return None
        return found if now_s < found.expires_s else None

    def has_cookie(self, cookie: str, now_s: float) -> bool:
        """Whether there is a session of this cookie, for which no key was shown."""
        found = self._sessions.get(_sha256(cookie))
        return found is not None and now_s < found.expires_s

    def end(self, session: Session) -> None:
        """Log out."""
        self._sessions.pop(session.id, None)

    def __contains__(self, session: Session) -> bool:
        return session.id in self._sessions

    def __len__(self) -> int:
        return len(self._sessions)


def _make_room(held: OrderedDict[str, Any], most: int) -> None:
    if len(held) >= most:
        held.popitem(last=False)


def _sha256(secret: str) -> str:
    """Hash a random, long secret, for which a plain hash will do."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


log = structlog.get_logger()

FILE: Final = "web-sessions.json"


class KeptSessions:
    """The file; its methods block.

    Args:
        path: of the file.
        local: the settings by which users of this host have roles: under others, what the file has
            of them does not count.
    """

    def __init__(self, path: Path, local: str) -> None:
        self._path = path
        self._local = local

    def read(self, clock_s: float) -> list[Session]:
        """Return the sessions that have not ended.

        Args:
            clock_s: the monotonic clock by which sessions end in this process.
        """
        try:
            found = [self._session(one, clock_s) for one in read_records(self._path)]
        except (ConfigError, TypeError, ValueError, KeyError) as error:
            log.warning("web_sessions_not_read", reason=str(error))
            return []
        return [one for one in found if one is not None and one.expires_s > clock_s]

    def write(self, sessions: Iterable[Session], clock_s: float) -> None:
        """Replace the file; if that fails, a later start logs people out."""
        ahead_s = time.time() - clock_s
        records = [
            {
                "id": one.id,
                "key_sha256": one.key_sha256,
                "expires_unix_s": one.expires_s + ahead_s,
                "local": self._local if one.holder.uid is not None else "",
                "holder": asdict(one.holder),
            }
            for one in sessions
        ]
        try:
            write_records(self._path, records)
        except ConfigError as error:
            log.warning("web_sessions_not_written", reason=error.message)

    def _session(self, record: dict[str, Any], clock_s: float) -> Session | None:
        holder = dict(record["holder"])
        workers = holder.pop("workers")
        who = Identity(**holder, workers=None if workers is None else tuple(workers))
        if who.uid is not None and record["local"] != self._local:
            return None
        left_s = min(SESSION_LIFE_S, float(record["expires_unix_s"]) - time.time())
        return Session(
            id=str(record["id"]),
            holder=who,
            key_sha256=str(record["key_sha256"]),
            expires_s=clock_s + left_s,
        )
