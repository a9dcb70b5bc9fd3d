"""The metrics store in its thread: a SQLite file, batches of rows, room for the next ones.

Beside the coordinator's state, and nothing depends on it: transactions are not synced, it is in no
backup, and a file that cannot be read is set aside and replaced.  Everything here blocks and may
raise sqlite3.Error or OSError; `dtd.observe.recorder` decides what happens then.

When the file is full, the largest job gives up its oldest rows of its finest level first, so that
one job, or one worker that floods its own, cannot push out the others.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dtd.errors import HistoryDamaged
from dtd.observe.pyramid import FACTOR, LEVELS, aligned, pack_row, summarised, width
from dtd.observe.series import MAX_COLUMNS, MAX_TRACKS_OF_A_JOB, NAN, Entry, Kind, Track

FILE_NAME: Final = "metrics.sqlite3"
DAMAGED_NAME: Final = "metrics.damaged.sqlite3"
LOG_BYTES: Final = 4 * 1024 * 1024
REMOVALS_AT_ONCE: Final = 64
"""After one batch; what is still too much goes after the next."""

GROWING: Final = 64
"""Newest buckets of each level that are never removed: a job may have to go back over them."""

SHARE: Final = 8
"""One removal takes one part in so many of a level's positions."""

_KEY_BYTES: Final = 16
"""Bytes of a row besides its data, roughly."""

SCHEMA: Final = 2
_TABLES: Final = """
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, identity TEXT NOT NULL,
    written_s REAL NOT NULL
);
CREATE TABLE tracks (
    number INTEGER PRIMARY KEY, job INTEGER NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL,
    columns TEXT NOT NULL, newest INTEGER NOT NULL, generation INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL, UNIQUE (job, kind, name)
);
CREATE TABLE cells (
    track INTEGER NOT NULL, level INTEGER NOT NULL, bucket INTEGER NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (track, level, bucket)
) WITHOUT ROWID;
"""


Row = tuple[str, Entry]
"""A row, after the identity of the job that it belongs to."""


class MetricsStore:
    """The open store, at most `limit_bytes` large; all methods run in one thread.

    `set_aside_told` is called with a sentence when a damaged file was replaced.
    """

    def __init__(
        self, directory: Path, limit_bytes: int, set_aside_told: Callable[[str], None]
    ) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._told = set_aside_told
        self._open: sqlite3.Connection | None = None

    def read(self, query: str, *values: object) -> list[Any]:
        return self._connection().execute(query, values).fetchall()

    def write(self, batch: Sequence[Row], unix_s: float) -> None:
        """Write rows, all or none, and make room for the next ones."""
        try:
            with damage_told():
                self._write(batch, unix_s)
                self._make_room()
        except HistoryDamaged as damage:
            self._replace(damage)
            self._write(batch, unix_s)

    def forget(self, job: str) -> None:
        with self._transaction() as cursor:
            _remove_job(cursor, job)

    def used_bytes(self) -> int:
        """Return the bytes of the file's pages, without those that are free."""
        pages, free, page_bytes = (
            int(self.read(f"PRAGMA {name}")[0][0])
            for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * page_bytes

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    # --- the file --------------------------------------------------------------------------------

    def _connection(self) -> sqlite3.Connection:
        """The file, opened when it is first needed; a damaged one is set aside."""
        if self._open is None:
            try:
                self._open = _opened(self._directory)
            except HistoryDamaged as damage:
                self._replace(damage)
                self._open = _opened(self._directory)
        return self._open

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Cursor]:
        connection = self._connection()
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection.cursor()
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise

    def _replace(self, damage: HistoryDamaged) -> None:
        """Set the file aside, in place of an earlier one."""
        self.close()
        aside = self._directory / DAMAGED_NAME
        (self._directory / FILE_NAME).replace(aside)
        for ending in ("-wal", "-shm"):
            (self._directory / (FILE_NAME + ending)).unlink(missing_ok=True)
        self._told(f"the metrics store cannot be used ({damage}); it was renamed to {aside}")

    # --- writing ---------------------------------------------------------------------------------

    def _write(self, batch: Sequence[Row], unix_s: float) -> None:
        of_track: dict[tuple[str, Track], list[Entry]] = {}
        for identity, entry in batch:
            of_track.setdefault((identity, entry.track), []).append(entry)
        with self._transaction() as cursor:
            for (identity, track), entries in of_track.items():
                job = _job_number(cursor, identity, track.job)
                cursor.execute("UPDATE jobs SET written_s=? WHERE number=?", (unix_s, job))
                stored = _load_track(cursor, job, track)
                if stored is not None:
                    _append(cursor, stored, entries)

    # --- making room -----------------------------------------------------------------------------

    def _make_room(self) -> None:
        for _ in range(REMOVALS_AT_ONCE):
            if self.used_bytes() <= self._limit_bytes:
                return
            if not (self._shrink() or self._forget_oldest()):
                return
            self.read("PRAGMA incremental_vacuum")

    def _shrink(self) -> bool:
        """Remove old rows of the largest job that has some to spare; False if none has."""
        jobs = self.read("SELECT job FROM tracks GROUP BY job ORDER BY sum(size_bytes) DESC, job")
        for (job,) in jobs:
            query = "SELECT number FROM tracks WHERE job=? ORDER BY size_bytes DESC, number"
            tracks = [number for (number,) in self.read(query, job)]
            for level in range(LEVELS - 1):
                for track in tracks:
                    below = self._removable(track, level)
                    if below is not None:
                        with self._transaction() as cursor:
                            _remove(cursor, track, "level=? AND bucket<?", level, below)
                        return True
        return False

    def _removable(self, track: int, level: int) -> int | None:
        """The bucket below which a part of a level may go; None if nothing can be spared."""
        query = "SELECT {}(bucket) FROM cells WHERE track=? AND level=?"
        first, last = (self.read(query.format(name), track, level)[0][0] for name in ("min", "max"))
        if first is None:
            return None
        most = aligned(level, max(0, last - GROWING) * width(level))
        if most <= first:
            return None
        step = max(1, (last - first) // SHARE)
        wanted = aligned(level, (first + step) * width(level))
        nearest = aligned(level, first * width(level) + width(level + 1))
        return min(max(wanted, nearest), most)

    def _forget_oldest(self) -> bool:
        """Remove the oldest job, unless it is the only one."""
        jobs = self.read("SELECT id FROM jobs ORDER BY written_s, number")
        if len(jobs) < 2:
            return False
        self.forget(jobs[0][0])
        return True


def _opened(directory: Path) -> sqlite3.Connection:
    """The open file, with its tables.

    Raises:
        HistoryDamaged: it is no such file, or of another release.
        sqlite3.OperationalError, OSError: the disk fails.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    made = sqlite3.connect(directory / FILE_NAME, check_same_thread=False, isolation_level=None)
    try:
        with damage_told():
            run = made.executescript
            run("PRAGMA auto_vacuum=INCREMENTAL; PRAGMA journal_mode=WAL")
            run(f"PRAGMA synchronous=NORMAL; PRAGMA journal_size_limit={LOG_BYTES}")
            ((version,),) = made.execute("PRAGMA user_version").fetchall()
            if version not in (0, SCHEMA):
                raise HistoryDamaged(f"its schema {version} is that of another release")
            if version == 0:
                run(f"BEGIN; {_TABLES} PRAGMA user_version={SCHEMA}; COMMIT")
    except BaseException:
        made.close()
        raise
    return made


@contextmanager
def damage_told() -> Iterator[None]:
    """Raise SQLite's errors of a damaged file as `HistoryDamaged`; a full disk is no damage."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if type(error) in (sqlite3.DatabaseError, sqlite3.IntegrityError):
            raise HistoryDamaged(str(error)) from error
        raise


# --- one track, within a transaction -------------------------------------------------------------


@dataclass(slots=True)
class _Stored:
    number: int
    kind: Kind
    columns: tuple[str, ...] = ()
    newest: int = -1
    generation: int = 0
    size_bytes: int = 0


def _job_number(cursor: sqlite3.Cursor, identity: str, job: str) -> int:
    """The job's number; one of the same id in an earlier state of the cluster is forgotten."""
    known = cursor.execute("SELECT number, identity FROM jobs WHERE id=?", (job,)).fetchone()
    if known is not None and known[1] == identity:
        return int(known[0])
    _remove_job(cursor, job)
    cursor.execute("INSERT INTO jobs (id, identity, written_s) VALUES (?,?,0)", (job, identity))
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def _remove_job(cursor: sqlite3.Cursor, job: str) -> None:
    found = cursor.execute("SELECT number FROM jobs WHERE id=?", (job,)).fetchone()
    if found is None:
        return
    tracks = "(SELECT number FROM tracks WHERE job=?)"
    cursor.execute(f"DELETE FROM cells WHERE track IN {tracks}", found)  # noqa: S608
    cursor.execute("DELETE FROM tracks WHERE job=?", found)
    cursor.execute("DELETE FROM jobs WHERE number=?", found)


def _load_track(cursor: sqlite3.Cursor, job: int, track: Track) -> _Stored | None:
    """The track, a new one if there was none; None if the job has too many."""
    row = cursor.execute(
        "SELECT number, columns, newest, generation, size_bytes FROM tracks"
        " WHERE job=? AND kind=? AND name=?",
        (job, track.kind.value, track.name),
    ).fetchone()
    if row is not None:
        number, columns, *rest = row
        return _Stored(number, track.kind, tuple(json.loads(columns)), *rest)
    (count,) = cursor.execute("SELECT count(*) FROM tracks WHERE job=?", (job,)).fetchone()
    if count >= MAX_TRACKS_OF_A_JOB:
        return None
    cursor.execute(
        "INSERT INTO tracks (job, kind, name, columns, newest, generation, size_bytes)"
        " VALUES (?,?,?,'[]',-1,0,0)",
        (job, track.kind.value, track.name),
    )
    assert cursor.lastrowid is not None
    return _Stored(cursor.lastrowid, track.kind)


def _append(cursor: sqlite3.Cursor, track: _Stored, entries: Sequence[Entry]) -> None:
    """Add rows where they belong, and summarise again the buckets that they lie in."""
    rows: dict[int, Entry] = {}
    replaced_from: int | None = None
    for entry in entries:
        if entry.position <= track.newest:
            again = track.kind is Kind.STEPS and entry.generation > track.generation
            if not again and track.kind is not Kind.EVALUATIONS:
                continue  # it was told before
            rows = {at: row for at, row in rows.items() if at < entry.position}
            if replaced_from is None or entry.position < replaced_from:
                replaced_from = entry.position
        rows[entry.position] = entry
        track.newest = entry.position
        track.generation = max(track.generation, entry.generation)
        new = [name for name in entry.columns if name not in track.columns]
        track.columns += tuple(new[: max(0, MAX_COLUMNS - len(track.columns))])
    if replaced_from is not None:
        for level in range(LEVELS):
            begin = replaced_from // width(level)
            _remove(cursor, track.number, "level=? AND bucket>=?", level, begin)
    grown = sum(
        _put(cursor, track.number, 0, at, pack_row(_values_in(track.columns, row)))
        for at, row in rows.items()
    )
    touched = set(rows)
    for level in range(1, LEVELS):
        touched = {at // FACTOR for at in touched}
        grown += sum(_summarise(cursor, track.number, level, bucket) for bucket in touched)
    cursor.execute(
        "UPDATE tracks SET columns=?, newest=?, generation=?, size_bytes=size_bytes+?"
        " WHERE number=?",
        (json.dumps(track.columns), track.newest, track.generation, grown, track.number),
    )


def _values_in(columns: Sequence[str], entry: Entry) -> list[float]:
    known = dict(zip(entry.columns, entry.values, strict=True))
    return [known.get(name, NAN) for name in columns]


def _summarise(cursor: sqlite3.Cursor, track: int, level: int, bucket: int) -> int:
    """Compute a bucket from the level below; returns the number of bytes added.

    The newest rows of each level are never removed, so that all is there, except where a job goes
    back very far: then the bucket begins again.
    """
    below = cursor.execute(
        "SELECT data FROM cells WHERE track=? AND level=? AND bucket BETWEEN ? AND ?"
        " ORDER BY bucket",
        (track, level - 1, bucket * FACTOR, bucket * FACTOR + FACTOR - 1),
    ).fetchall()
    return _put(cursor, track, level, bucket, summarised(level, [data for (data,) in below]))


def _put(cursor: sqlite3.Cursor, track: int, level: int, bucket: int, data: bytes) -> int:
    """Write a bucket; returns the number of bytes added."""
    key = (track, level, bucket)
    cursor.execute("UPDATE cells SET data=? WHERE track=? AND level=? AND bucket=?", (data, *key))
    if cursor.rowcount:
        return 0
    cursor.execute("INSERT INTO cells VALUES (?,?,?,?)", (*key, data))
    return _KEY_BYTES + len(data)


def _remove(cursor: sqlite3.Cursor, track: int, where: str, level: int, bucket: int) -> None:
    """Remove the buckets of a level on one side of a bucket."""
    key = (track, level, bucket)
    (gone,) = cursor.execute(
        f"SELECT coalesce(sum(length(data) + {_KEY_BYTES}), 0) FROM cells"  # noqa: S608
        f" WHERE track=? AND {where}",
        key,
    ).fetchone()
    cursor.execute(f"DELETE FROM cells WHERE track=? AND {where}", key)  # noqa: S608
    cursor.execute(
        "UPDATE tracks SET size_bytes=max(0, size_bytes-?) WHERE number=?", (gone, track)
    )
