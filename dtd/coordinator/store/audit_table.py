"""The audit log in the store's file: entries are appended, and the oldest removed beyond a limit.

No entry is ever changed.  Each has the hash of the one before it (`dtd.security.audit`), and what
is removed is said by an entry.  The newest entry is read anew each time, since `dtd-coordinator
backup` adds one while the daemon runs.  Blocking; belongs in the store's thread.
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from typing import Any, Final

from dtd.cluster.figures import page
from dtd.coordinator.store.database import Database
from dtd.security.audit import BEGINNING, DONE, ENTERED, TRIMMED, Entry, canonical, hash_of

MAX_ENTRIES: Final = 100_000
TRIMMED_AT_ONCE: Final = 1000
PAGE_ENTRIES: Final = 200
_COLUMNS: Final = (*ENTERED, "previous", "hash")
_IN_JSON: Final = ("about", "result")
_INSERT: Final = "INSERT INTO audit VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_PAGE: Final = (
    "SELECT * FROM audit WHERE seq > ? AND time_s >= ?"
    " AND ? IN ('', who, serial, role || '/' || who) AND instr(what, ?) > 0"
    " ORDER BY seq LIMIT ?"
)


class AuditTable:
    """The entries in an open store.

    Args:
        database: the store's file.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, entry: Entry, *, synced: bool) -> tuple[int, str]:
        """Add an entry; with `synced` it survives the loss of power.

        Returns:
            Its number and its hash.
        """
        with self._database.transaction(synced=synced) as cursor:
            seq, made = append(cursor, entry)
            (oldest,) = cursor.execute("SELECT MIN(seq) FROM audit").fetchone()
            if seq - oldest >= MAX_ENTRIES:
                _trim(cursor, oldest + TRIMMED_AT_ONCE - 1, entry.time_s)
        return seq, made

    def page(
        self, after: int, since_s: float = 0.0, who: str = "", what: str = ""
    ) -> dict[str, Any]:
        """A page of entries after a cursor, with the highest number that was ever given."""
        rows = self._database.read(_PAGE, after, since_s, who, what.upper(), PAGE_ENTRIES)
        entries = page([_entry(row) for row in rows])
        return {
            "entries": entries,
            "next": entries[-1]["seq"] if entries else after,
            "newest": _newest(self._database.read(_HIGHEST)),
        }


_HIGHEST: Final = "SELECT seq FROM sqlite_sequence WHERE name = 'audit'"


def append(cursor: sqlite3.Cursor, entry: Entry) -> tuple[int, str]:
    """Add an entry within a transaction; returns its number and its hash."""
    last = cursor.execute("SELECT hash FROM audit ORDER BY seq DESC LIMIT 1").fetchone()
    previous = BEGINNING if last is None else str(last[0])
    seq = 1 + _newest(cursor.execute(_HIGHEST).fetchall())
    values: dict[str, Any] = {"seq": seq, **dataclasses.asdict(entry)}
    made = hash_of(previous, values)
    values |= {name: canonical(values[name]) for name in _IN_JSON}
    values |= {"previous": previous, "hash": made}
    cursor.execute(_INSERT, [values[name] for name in _COLUMNS])
    return seq, made


def _newest(rows: list[Any]) -> int:
    """The highest number that was given, also if its entry is gone."""
    return int(rows[0][0]) if rows else 0


def _trim(cursor: sqlite3.Cursor, through: int, now_s: float) -> None:
    """Remove the oldest entries, and say so."""
    query = "SELECT hash FROM audit WHERE seq <= ? ORDER BY seq DESC LIMIT 1"
    (cut,) = cursor.execute(query, (through,)).fetchone()
    about = {"through": through, "hash": cut}
    says = Entry(
        time_s=now_s, role="coordinator", who="dtd", what=TRIMMED, about=about, outcome=DONE
    )
    append(cursor, says)
    cursor.execute("DELETE FROM audit WHERE seq <= ?", (through,))


def _entry(row: sqlite3.Row) -> dict[str, Any]:
    found = dict(row)
    return {**found, **{name: json.loads(found[name]) for name in _IN_JSON}}
