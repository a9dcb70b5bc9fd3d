"""The sessions of the web page in a file, so that they outlive a restart of the coordinator.

It has hashes of secrets, and is its owner's alone; to read it gives no session.  It is of one
host, so that Unix time counts.  What cannot be read is no session: people log in again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import structlog

from dtd.errors import ConfigError
from dtd.security.identity import Identity
from dtd.security.private_files import read_records, write_records
from dtd.web.sessions import SESSION_LIFE_S, Session

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

    def read(self, clock_s: float) -> list[Session[Identity]]:
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

    def write(self, sessions: Iterable[Session[Identity]], clock_s: float) -> None:
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

    def _session(self, record: dict[str, Any], clock_s: float) -> Session[Identity] | None:
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
