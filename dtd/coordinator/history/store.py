"""Work of the metrics store in its thread: write batches, make room, forget, answer.

Everything here blocks and may raise sqlite3.Error or OSError; `dtd.coordinator.history.recorder`
decides what happens then.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from dtd.coordinator.history import tracks
from dtd.coordinator.history.database import Database, damage_told, set_aside
from dtd.errors import HistoryDamaged
from dtd.observe.history.intake import MAX_TRACKS_OF_A_JOB
from dtd.observe.history.pyramid import width
from dtd.observe.history.retention import KEPT_S, Extent, Removal, outdated, to_forget, to_shrink
from dtd.observe.history.series import Entry, Kind, Track

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
