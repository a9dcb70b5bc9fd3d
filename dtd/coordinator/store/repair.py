"""Makes a coordinator's damaged store usable again: keeps the rows that can be read.

The damaged files are set aside whole under a name with the time, never deleted.  A new epoch
begins, as after a restored backup: workers which still train a job that is kept are taken over with
their state; what they know and the store does not is learned from them.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dtd.coordinator.audit_log import command_entry
from dtd.coordinator.store.database import FILE_NAME, NEWEST_NAME, Database, lock
from dtd.coordinator.store.store import Store
from dtd.errors import ConfigError, StoreDamaged

_FILES: Final = (FILE_NAME, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm", NEWEST_NAME)
_MOST_SKIPPED: Final = 2**40
"""Rows beyond the last one that could be read are not looked for further than this."""


@dataclass(slots=True, kw_only=True)
class Repaired:
    """The result of repairing a store.

    Attributes:
        aside: directory with the damaged files.
        epoch: of the new file.
        kept: rows by table.
        holes: places of the damaged file that could not be read.
    """

    aside: Path
    epoch: int = 1
    kept: dict[str, int] = field(default_factory=dict)
    holes: int = 0


def repair(state_dir: Path) -> Repaired | None:
    """Set a damaged store aside, and begin another with what can be read of it.

    Returns:
        None if nothing is wrong with it.

    Raises:
        ConfigError: there is no store, a coordinator runs, or the disk fails.
    """
    path = state_dir / FILE_NAME
    if not path.is_file():
        raise ConfigError(
            f"{state_dir} has no {FILE_NAME}", remedy="name the directory with --state-dir"
        )
    lock(state_dir).close()  # a coordinator that runs is named as such
    try:
        Store(state_dir).close()
        return None
    except StoreDamaged:
        pass
    try:
        return _begin_again(state_dir)
    except (OSError, sqlite3.Error) as error:
        raise ConfigError(f"{path} cannot be repaired: {error}") from error


def _begin_again(state_dir: Path) -> Repaired:
    aside = state_dir / f"damaged-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
    aside.mkdir(mode=0o700)
    for name in _FILES:
        if (state_dir / name).exists():
            (state_dir / name).rename(aside / name)
    done = Repaired(aside=aside)
    with (
        closing(sqlite3.connect(aside / FILE_NAME)) as damaged,
        closing(Database(state_dir)) as database,
        database.transaction(synced=True) as cursor,
    ):
        _copy(damaged, cursor, done)
    with closing(Store(state_dir)) as store:
        store.begin_epoch()
        done.epoch = store.identity()[1]
        about = {"aside": aside.name, "holes": done.holes, "epoch": done.epoch}
        store.audit.add(command_entry("REPAIR", about), synced=True)
    return done


def _copy(damaged: sqlite3.Connection, cursor: sqlite3.Cursor, done: Repaired) -> None:
    tables = cursor.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    ).fetchall()
    for (table,) in tables:
        columns = _columns(damaged, table, done)
        rows = _rows(damaged, table, columns, done) if columns else iter(())
        if table == "identity":
            _take_identity(cursor, rows)
        elif table != "commits" and columns:
            done.kept[table] = _insert(cursor, table, columns, rows)


def _columns(damaged: sqlite3.Connection, table: str, done: Repaired) -> list[str]:
    """The columns that the table has in the damaged file; a file of an older schema has fewer."""
    try:
        return [row[1] for row in damaged.execute(f"PRAGMA table_info({table})")]
    except sqlite3.DatabaseError:
        done.holes += 1
        return []


def _take_identity(cursor: sqlite3.Cursor, rows: Iterator[tuple[Any, ...]]) -> None:
    """The store stays the same one, if its name can be read."""
    row = next(rows, None)
    if row is not None:
        cursor.execute("UPDATE identity SET store_id = ?, epoch = ?", row)


def _insert(
    cursor: sqlite3.Cursor, table: str, columns: list[str], rows: Iterator[tuple[Any, ...]]
) -> int:
    marks = ", ".join("?" * len(columns))
    insert = f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({marks})"  # noqa: S608
    body = columns.index("body") if table == "jobs" else None
    kept = (row for row in rows if body is None or _is_json(row[body]))
    return sum(cursor.execute(insert, row).rowcount for row in kept)


def _rows(
    damaged: sqlite3.Connection, table: str, columns: list[str], done: Repaired
) -> Iterator[tuple[Any, ...]]:
    """Rows in order, past the places that cannot be read."""
    last, skipped = -1, 1
    wanted = f"SELECT rowid, {', '.join(columns)} FROM {table} WHERE rowid > ? ORDER BY rowid"  # noqa: S608
    while skipped < _MOST_SKIPPED:
        try:
            for row in damaged.execute(wanted, (last,)):
                last, skipped = row[0], 1
                yield row[1:]
            return
        except sqlite3.DatabaseError:
            done.holes += skipped == 1
            last, skipped = last + skipped, 2 * skipped


def _is_json(text: Any) -> bool:
    try:
        json.loads(text)
    except (TypeError, ValueError):
        return False
    return True
