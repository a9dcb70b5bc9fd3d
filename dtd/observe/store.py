"""The metrics store in its thread: a SQLite file, batches of rows, room for the next ones.

Beside the coordinator's state, and nothing depends on it: transactions are not synced, it is in no
backup, and a file that cannot be read is set aside and replaced.  Everything here blocks and may
raise sqlite3.Error or OSError; `dtd.observe.recorder` decides what happens then.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from dtd.errors import HistoryDamaged
from dtd.observe import tracks
from dtd.observe.pyramid import LEVELS, aligned, width
from dtd.observe.series import MAX_TRACKS_OF_A_JOB, Entry, Kind, Track

DAY_S: Final = 86_400.0
KEPT_S: Final = (7 * DAY_S, 30 * DAY_S, 180 * DAY_S)
"""Ages at which buckets of the finest levels are removed; others stay as long as they fit."""

GROWING: Final = 64
"""Newest buckets of each level that are never removed: a job may have to go back over them."""

SHARE: Final = 8
"""One removal takes one part in so many of a level's positions."""


class Extent(NamedTuple):
    """The stored buckets of a track at one level.

    Attributes:
        track: its number.
        job: the job's number.
        level: the level.
        first: the first bucket.
        newest: the last one.
        size_bytes: of all of them.
    """

    track: int
    job: int
    level: int
    first: int
    newest: int
    size_bytes: int


class Removal(NamedTuple):
    """The buckets of a level below `below` are to be removed."""

    track: int
    level: int
    below: int


def outdated(extent: Extent, positions: Sequence[int]) -> Removal | None:
    """Return the removal of the buckets that are too old; None if there are none.

    Args:
        extent: of one level.
        positions: of each level that has an age, the first position that is young enough.
    """
    if extent.level >= len(positions):
        return None
    below = aligned(extent.level, positions[extent.level])
    below = min(below, _removable(extent))
    return Removal(extent.track, extent.level, below) if below > extent.first else None


def to_shrink(extents: Sequence[Extent]) -> Removal | None:
    """Return the next removal when the store is too large; None if nothing can be spared."""
    sizes: dict[int, int] = {}
    for one in extents:
        sizes[one.job] = sizes.get(one.job, 0) + one.size_bytes
    spare = [one for one in extents if one.level < LEVELS - 1 and _removable(one) > one.first]
    if not spare:
        return None
    chosen = min(spare, key=lambda one: (-sizes[one.job], one.level, -one.size_bytes, one.track))
    step = max(1, (chosen.newest - chosen.first) // SHARE)
    wanted = aligned(chosen.level, (chosen.first + step) * width(chosen.level))
    nearest = aligned(chosen.level, chosen.first * width(chosen.level) + width(chosen.level + 1))
    return Removal(chosen.track, chosen.level, min(max(wanted, nearest), _removable(chosen)))


def to_forget(last_written_s: Mapping[int, float], writing: int) -> int | None:
    """The job to forget when no rows can be spared: the oldest but the one that is written."""
    others = [job for job in last_written_s if job != writing]
    return min(others, key=lambda job: (last_written_s[job], job), default=None)


def _removable(extent: Extent) -> int:
    """The bucket below which everything may go."""
    newest = (extent.newest - GROWING) * width(extent.level)
    return aligned(extent.level, max(0, newest))


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


AGE_EVERY_S: Final = 600.0
MARK_EVERY_S: Final = 3600
REMOVALS_AT_ONCE: Final = 64
"""After one batch; what is still too much goes after the next."""

MAX_LOADED: Final = 2048


class Batch(NamedTuple):
    """One row, and the identity of the job that it belongs to."""

    identity: str
    entry: Entry


class MetricsStore:
    """The open store; all methods run in one thread.

    Args:
        directory: the coordinator's state directory.
        limit_bytes: the most that the file may hold.
        set_aside_told: called with a sentence when a damaged file was replaced.
    """

    def __init__(
        self, directory: Path, limit_bytes: int, set_aside_told: Callable[[str], None]
    ) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._told = set_aside_told
        self._open: Database | None = None
        self._jobs: dict[str, tuple[int, str]] = {}
        self._loaded: dict[Track, tracks.StoredTrack] = {}
        self._aged_s = 0.0

    @property
    def database(self) -> Database:
        """The file, opened when it is first needed; a damaged one is set aside."""
        if self._open is None:
            try:
                self._open = Database(self._directory)
            except HistoryDamaged as damage:
                self._replace(damage)
                self._open = Database(self._directory)
        return self._open

    def write(self, batch: Sequence[Batch], unix_s: float) -> None:
        """Write rows, all or none, and make room for the next ones."""
        try:
            with damage_told():
                self._write(batch, unix_s)
                self._make_room(unix_s)
        except HistoryDamaged as damage:
            self.close()
            self._replace(damage)
            self._write(batch, unix_s)
        except BaseException:
            self._forget_loaded()
            raise

    def forget(self, job: str) -> None:
        """Remove all that is known of a job."""
        with self.database.transaction() as cursor:
            self._remove_job(cursor, job)

    def close(self) -> None:
        """Close the file."""
        self._forget_loaded()
        if self._open is not None:
            self._open.close()
            self._open = None

    def _replace(self, damage: HistoryDamaged) -> None:
        aside = set_aside(self._directory)
        self._told(f"the metrics store cannot be used ({damage}); it was renamed to {aside}")

    def _forget_loaded(self) -> None:
        self._jobs.clear()
        self._loaded.clear()

    # --- writing -------------------------------------------------------------------------------

    def _write(self, batch: Sequence[Batch], unix_s: float) -> None:
        touched: dict[int, tracks.StoredTrack] = {}
        if len(self._loaded) > MAX_LOADED:
            self._forget_loaded()
        with self.database.transaction() as cursor:
            for identity, entry in batch:
                track = self._track(cursor, identity, entry.track)
                if track is not None:
                    tracks.add_entry(cursor, track, entry)
                    touched[track.number] = track
            for track in touched.values():
                tracks.write_summaries(cursor, track)
            for job in {track.job for track in touched.values()}:
                cursor.execute("UPDATE jobs SET written_s=? WHERE number=?", (unix_s, job))
            for track in touched.values():
                if track.kind is Kind.STEPS:
                    hour = int(unix_s) // MARK_EVERY_S * MARK_EVERY_S
                    mark = (track.job, hour, track.pyramid.newest)
                    cursor.execute("INSERT OR IGNORE INTO marks VALUES (?,?,?)", mark)

    def _track(
        self, cursor: sqlite3.Cursor, identity: str, track: Track
    ) -> tracks.StoredTrack | None:
        job = self._job(cursor, identity, track.job)
        known = self._loaded.get(track)
        if known is None:
            known = tracks.load_track(cursor, job, track.kind, track.name)
        if known is None:
            found = cursor.execute("SELECT count(*) FROM tracks WHERE job=?", (job,)).fetchone()
            if found[0] >= MAX_TRACKS_OF_A_JOB:
                return None
            known = tracks.begin_track(cursor, job, track.kind, track.name)
        self._loaded[track] = known
        return known

    def _job(self, cursor: sqlite3.Cursor, identity: str, job: str) -> int:
        """The job's number; one of the same id in an earlier state of the cluster is forgotten."""
        known = self._jobs.get(job)
        if known is None:
            query = "SELECT number, identity FROM jobs WHERE id=?"
            known = cursor.execute(query, (job,)).fetchone()
        if known is not None and known[1] != identity:
            self._remove_job(cursor, job)
            known = None
        if known is None:
            cursor.execute(
                "INSERT INTO jobs (id, identity, written_s) VALUES (?,?,0)", (job, identity)
            )
            assert cursor.lastrowid is not None
            known = cursor.lastrowid, identity
        self._jobs[job] = known
        return known[0]

    # --- making room ---------------------------------------------------------------------------

    def _make_room(self, unix_s: float) -> None:
        if unix_s - self._aged_s >= AGE_EVERY_S:
            self._aged_s = unix_s
            for extent, positions in self._young_enough(unix_s):
                removal = outdated(extent, positions)
                if removal is not None:
                    self._remove(removal)
        for _ in range(REMOVALS_AT_ONCE):
            if self.database.used_bytes() <= self._limit_bytes:
                return
            removal = to_shrink(self._extents())
            if removal is not None:
                self._remove(removal)
            elif not self._forget_oldest():
                return

    def _extents(self) -> list[Extent]:
        rows = self.database.read(
            "SELECT track, job, level, first, newest, size_bytes FROM extents"
            " JOIN tracks ON tracks.number = track"
        )
        return [
            Extent(track, job, level, first, newest // width(level), size)
            for track, job, level, first, newest, size in rows
        ]

    def _young_enough(self, unix_s: float) -> list[tuple[Extent, list[int]]]:
        """Every extent, and of each level that has an age the first position to keep."""
        moments = [unix_s - kept_s for kept_s in KEPT_S]
        kinds = {row[0]: row[1] for row in self.database.read("SELECT number, kind FROM tracks")}
        steps: dict[int, list[int]] = {}
        for (job,) in self.database.read("SELECT number FROM jobs"):
            query = "SELECT coalesce(max(step), 0) FROM marks WHERE job=? AND unix_s<=?"
            steps[job] = [self.database.read(query, job, moment)[0][0] for moment in moments]
        seconds = [max(0, int(moment)) for moment in moments]
        return [
            (one, seconds if kinds[one.track] in (Kind.WORKER, Kind.LINK) else steps[one.job])
            for one in self._extents()
        ]

    def _remove(self, removal: Removal) -> None:
        with self.database.transaction() as cursor:
            columns = cursor.execute(
                "SELECT json_array_length(columns) FROM tracks WHERE number=?", (removal.track,)
            ).fetchone()[0]
            cursor.execute("DELETE FROM cells WHERE track=? AND level=? AND bucket<?", removal)
            gone = cursor.rowcount * tracks.row_bytes(removal.level, columns)
            cursor.execute(
                "UPDATE extents SET first=?, size_bytes=max(0, size_bytes-?)"
                " WHERE track=? AND level=?",
                (removal.below, gone, removal.track, removal.level),
            )
        self.database.give_back()

    def _forget_oldest(self) -> bool:
        """Whether there was a job that could be forgotten."""
        rows = self.database.read("SELECT number, written_s, id FROM jobs")
        written = {number: written_s for number, written_s, _id in rows}
        writing = max(written, key=lambda job: (written[job], job), default=0)
        job = to_forget(written, writing)
        if job is None:
            return False
        self.forget(next(name for number, _written_s, name in rows if number == job))
        self.database.give_back()
        return True

    def _remove_job(self, cursor: sqlite3.Cursor, job: str) -> None:
        self._jobs.pop(job, None)
        for track in [one for one in self._loaded if one.job == job]:
            del self._loaded[track]
        found = cursor.execute("SELECT number FROM jobs WHERE id=?", (job,)).fetchone()
        if found is None:
            return
        mine = "(SELECT number FROM tracks WHERE job=?)"
        for table in ("cells", "extents"):
            cursor.execute(f"DELETE FROM {table} WHERE track IN {mine}", found)  # noqa: S608
        for table, column in (("tracks", "job"), ("marks", "job"), ("jobs", "number")):
            cursor.execute(f"DELETE FROM {table} WHERE {column}=?", found)  # noqa: S608
