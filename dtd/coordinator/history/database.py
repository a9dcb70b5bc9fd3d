"""The metrics store's SQLite file: its schema, its migration, and the handling of damage.

Beside the coordinator's state, and nothing depends on it: transactions are not synced, it is in no
backup, and a file that cannot be read is set aside and replaced.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from dtd.errors import HistoryDamaged

FILE_NAME: Final = "metrics.sqlite3"
DAMAGED_NAME: Final = "metrics.damaged.sqlite3"
LOG_BYTES: Final = 4 * 1024 * 1024

_FIRST_SCHEMA: Final = """
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, identity TEXT NOT NULL,
    written_s REAL NOT NULL
);
CREATE TABLE tracks (
    number INTEGER PRIMARY KEY, job INTEGER NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL,
    columns TEXT NOT NULL, newest INTEGER NOT NULL, generation INTEGER NOT NULL,
    UNIQUE (job, kind, name)
);
CREATE TABLE extents (
    track INTEGER NOT NULL, level INTEGER NOT NULL, first INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL, PRIMARY KEY (track, level)
) WITHOUT ROWID;
CREATE TABLE cells (
    track INTEGER NOT NULL, level INTEGER NOT NULL, bucket INTEGER NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (track, level, bucket)
) WITHOUT ROWID;
CREATE TABLE marks (
    job INTEGER NOT NULL, unix_s INTEGER NOT NULL, step INTEGER NOT NULL, PRIMARY KEY (job, unix_s)
) WITHOUT ROWID;
"""
# What leads from the schema of a file to the next one; a new file takes all the steps.
STEPS: Final = (_FIRST_SCHEMA,)


class Database:
    """The open file.

    Args:
        directory: where it is; made if missing.
        steps: leads from one schema to the next.

    Raises:
        HistoryDamaged: it is no such file, or of a later release.
        sqlite3.OperationalError, OSError: the disk fails.
    """

    def __init__(self, directory: Path, steps: Sequence[str] = STEPS) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path = directory / FILE_NAME
        self._connection = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None)
        try:
            with damage_told():
                self._open_schema(steps)
        except BaseException:
            self._connection.close()
            raise

    def _open_schema(self, steps: Sequence[str]) -> None:
        run = self._connection.executescript
        run("PRAGMA auto_vacuum=INCREMENTAL; PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;")
        run(f"PRAGMA journal_size_limit={LOG_BYTES}")
        version = int(self.read("PRAGMA user_version")[0][0])
        if version > len(steps):
            raise HistoryDamaged(f"its schema {version} is that of a later release")
        for number, step in enumerate(steps[version:], start=version + 1):
            run(f"BEGIN; {step} PRAGMA user_version={number}; COMMIT")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def read(self, query: str, *values: object) -> list[Any]:
        """The rows that a query finds."""
        return self._connection.execute(query, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Cursor]:
        """All or nothing."""
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        try:
            yield self._connection.cursor()
            execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                execute("ROLLBACK")
            raise

    def used_bytes(self) -> int:
        """Return the bytes of its pages, without those that are free."""
        pages, free, page_bytes = (
            int(self.read(f"PRAGMA {name}")[0][0])
            for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * page_bytes

    def give_back(self) -> None:
        """Return free pages to the file system."""
        self.read("PRAGMA incremental_vacuum")


@contextmanager
def damage_told() -> Iterator[None]:
    """Raise SQLite's errors of a damaged file as `HistoryDamaged`; a full disk is no damage."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if type(error) in (sqlite3.DatabaseError, sqlite3.IntegrityError):
            raise HistoryDamaged(str(error)) from error
        raise


def set_aside(directory: Path) -> Path:
    """Rename the file, in place of one that was set aside before; raises OSError."""
    aside = directory / DAMAGED_NAME
    (directory / FILE_NAME).replace(aside)
    for ending in ("-wal", "-shm"):
        (directory / (FILE_NAME + ending)).unlink(missing_ok=True)
    return aside
