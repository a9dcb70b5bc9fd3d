"""What the coordinator must not forget: a small SQLite file in its state directory.

Jobs with their results, incidents, what jobs printed, checkpoints.  Every method blocks and belongs
in the store's own thread (`dtd.coordinator.daemon` runs them there, in order); a generation is
announced only after the job that names it was written durably.  Tables are bounded.
"""

from __future__ import annotations

import fcntl
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import IO, Any, Final

from dtd.core.membership_events import ENDED, Incident, Job, JobState
from dtd.errors import ConfigError
from dtd.wire import messages as m

SCHEMA_VERSION: Final = 1
MAX_EVENTS: Final = 100_000
MAX_LOG_LINES: Final = 200_000
PAGE_ROWS: Final = 500

_SCHEMA: Final = """
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, body TEXT NOT NULL,
    submitted_s REAL NOT NULL, started_s REAL, ended_s REAL
);
CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, time_s REAL NOT NULL, kind TEXT NOT NULL,
    job TEXT NOT NULL, worker TEXT NOT NULL, generation INTEGER NOT NULL, step INTEGER NOT NULL,
    message TEXT NOT NULL
);
CREATE TABLE logs (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, time_s REAL NOT NULL, job TEXT NOT NULL,
    rank INTEGER NOT NULL, worker TEXT NOT NULL, text TEXT NOT NULL
);
CREATE INDEX logs_by_job ON logs (job, seq);
CREATE TABLE checkpoints (
    job TEXT NOT NULL, generation INTEGER NOT NULL, step INTEGER NOT NULL, worker TEXT NOT NULL,
    size_bytes INTEGER NOT NULL, directory TEXT NOT NULL, digest TEXT NOT NULL,
    metrics TEXT NOT NULL, PRIMARY KEY (job, generation, step, worker)
);
"""


class Store:
    """The open state directory; one process at a time.

    Args:
        state_dir: created if missing, readable by its owner only.

    Raises:
        ConfigError: the directory cannot be used, or another coordinator uses it.
    """

    def __init__(self, state_dir: Path) -> None:
        self._lock = _lock(state_dir)
        path = state_dir / "coordinator.sqlite3"
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.row_factory = sqlite3.Row
        try:
            version = self._open_schema()
        except sqlite3.Error as error:
            version = f"that cannot be read ({error})"
        if version != SCHEMA_VERSION:
            self.close()
            raise ConfigError(
                f"{path} has schema {version}, this dtd writes {SCHEMA_VERSION}",
                remedy="run the dtd version that wrote it, or use another --state-dir",
            )

    def _open_schema(self) -> int | str:
        """The file's schema; a new file gets ours."""
        self._db.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL")
        version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        if version == 0:
            version = SCHEMA_VERSION
            self._db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version={version}; COMMIT")
        return version

    def close(self) -> None:
        """Close the file and give up the directory."""
        self._db.close()
        self._lock.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Cursor]:
        """All or nothing; what failed must not stay open, or nothing later would be durable."""
        cursor = self._db.cursor()
        cursor.execute("BEGIN")
        try:
            yield cursor
            cursor.execute("COMMIT")
        except BaseException:
            self._db.rollback()
            raise

    # --- jobs --------------------------------------------------------------------------------

    def next_job_number(self) -> int:
        """A number that no job has had."""
        return 1 + int(self._db.execute("SELECT COALESCE(MAX(number), 0) FROM jobs").fetchone()[0])

    def save_job(self, number: int, body: dict[str, Any]) -> None:
        """Write a job down durably."""
        now = time.time()
        self._db.execute(
            "INSERT INTO jobs (number, id, body, submitted_s) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (number) DO UPDATE SET body = excluded.body",
            (number, body["id"], json.dumps(body), now),
        )
        if body["state"] == JobState.RUNNING:
            self._db.execute(
                "UPDATE jobs SET started_s = ? WHERE number = ? AND started_s IS NULL",
                (now, number),
            )
        elif body["state"] in ENDED:
            self._db.execute(
                "UPDATE jobs SET ended_s = ? WHERE number = ? AND ended_s IS NULL", (now, number)
            )

    def unfinished_jobs(self) -> list[tuple[int, Job]]:
        """(number, job) of everything that has not ended, oldest first."""
        rows = self._db.execute("SELECT number, body FROM jobs ORDER BY number").fetchall()
        jobs = [(int(number), job_from_body(json.loads(body))) for number, body in rows]
        return [(number, job) for number, job in jobs if job.state not in ENDED]

    def last_generation(self) -> int:
        """The highest generation number in any job."""
        rows = self._db.execute("SELECT body FROM jobs").fetchall()
        return max((int(json.loads(body)["generation"]) for (body,) in rows), default=0)

    def jobs(self) -> list[dict[str, Any]]:
        """The newest jobs, newest first, as `dtdctl jobs` shows them."""
        rows = self._db.execute(
            "SELECT body, submitted_s, started_s, ended_s FROM jobs ORDER BY number DESC LIMIT ?",
            (PAGE_ROWS,),
        ).fetchall()
        return [
            _job_row(json.loads(body), submitted_s, started_s, ended_s)
            for body, submitted_s, started_s, ended_s in map(tuple, rows)
        ]

    def job(self, job_id: str) -> dict[str, Any] | None:
        """One job as `dtdctl jobs` shows it, with its spec."""
        row = self._db.execute(
            "SELECT body, submitted_s, started_s, ended_s FROM jobs WHERE id = ?", (job_id,)
        ).fetchone()
        if row is None:
            return None
        body = json.loads(row[0])
        return {**_job_row(body, *tuple(row)[1:]), "spec": body["spec"]}

    # --- events, logs, checkpoints ---------------------------------------------------------------

    def add_incident(self, incident: Incident) -> None:
        """Append an incident."""
        cursor = self._db.execute(
            "INSERT INTO events (time_s, kind, job, worker, generation, step, message)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                time.time(),
                incident.kind,
                incident.job,
                incident.worker,
                incident.generation,
                incident.step,
                incident.message,
            ),
        )
        newest = cursor.lastrowid or 0
        self._db.execute("DELETE FROM events WHERE seq <= ?", (newest - MAX_EVENTS,))

    def events(self, after: int) -> list[dict[str, Any]]:
        """A page of incidents after a cursor; with cursor 0 the newest page."""
        if after:
            query = "SELECT * FROM events WHERE seq > ? ORDER BY seq LIMIT ?"
            return _dicts(self._db.execute(query, (after, PAGE_ROWS)))
        newest = self._db.execute("SELECT * FROM events ORDER BY seq DESC LIMIT ?", (PAGE_ROWS,))
        return _dicts(newest)[::-1]

    def add_lines(self, job: str, rank: int, worker: str, lines: Iterable[str]) -> None:
        """Append what a job printed."""
        now = time.time()
        with self._transaction() as cursor:
            cursor.executemany(
                "INSERT INTO logs (time_s, job, rank, worker, text) VALUES (?, ?, ?, ?, ?)",
                [(now, job, rank, worker, line) for line in lines],
            )
            newest = cursor.execute("SELECT COALESCE(MAX(seq), 0) FROM logs").fetchone()[0]
            cursor.execute("DELETE FROM logs WHERE seq <= ?", (newest - MAX_LOG_LINES,))

    def lines(self, job: str, after: int) -> list[dict[str, Any]]:
        """A page of a job's lines after a cursor."""
        query = (
            "SELECT seq, rank, worker, text, time_s FROM logs"
            " WHERE seq > ? AND job = ? ORDER BY seq LIMIT ?"
        )
        return _dicts(self._db.execute(query, (after, job, PAGE_ROWS)))

    def save_checkpoint(self, worker: str, saved: m.CheckpointSaved) -> None:
        """Add a worker's checkpoint and forget those that it does not keep any more."""
        with self._transaction() as cursor:
            cursor.execute(
                "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    saved.job,
                    saved.generation,
                    saved.step,
                    worker,
                    saved.size_bytes,
                    saved.directory,
                    saved.digest,
                    json.dumps(saved.metrics),
                ),
            )
            names = saved.kept.get("names", [])
            query = "SELECT rowid, directory FROM checkpoints WHERE job = ? AND worker = ?"
            for rowid, directory in cursor.execute(query, (saved.job, worker)).fetchall():
                if Path(directory).name not in names:
                    cursor.execute("DELETE FROM checkpoints WHERE rowid = ?", (rowid,))

    def checkpoints(self, job: str) -> list[dict[str, Any]]:
        """Known checkpoints of one job, or of all, newest first."""
        query = (
            "SELECT * FROM checkpoints WHERE ? IN ('', job)"
            " ORDER BY job, generation DESC, step DESC LIMIT ?"
        )
        found = _dicts(self._db.execute(query, (job, PAGE_ROWS)))
        for one in found:
            one["metrics"] = json.loads(one["metrics"])
        return found


def job_body(job: Job) -> dict[str, Any]:
    """A job as JSON can hold it; a snapshot, safe to hand to another thread."""
    body = {field.name: getattr(job, field.name) for field in fields(Job)}
    body["state"] = job.state.value
    body["checkpoint_holders"] = list(job.checkpoint_holders)
    body["roster"] = list(job.roster)
    return dict(body, metrics=dict(job.metrics), result=dict(job.result))


def job_from_body(body: dict[str, Any]) -> Job:
    """The job that `job_body` was made of."""
    known = {field.name: body[field.name] for field in fields(Job)}
    known["state"] = JobState(known["state"])
    known["checkpoint_holders"] = tuple(known["checkpoint_holders"])
    known["roster"] = tuple(known["roster"])
    return Job(**known)


def _job_row(
    body: dict[str, Any], submitted_s: float, started_s: float | None, ended_s: float | None
) -> dict[str, Any]:
    return {
        "id": body["id"],
        "name": body["spec"]["job"]["name"],
        "task": body["spec"]["job"]["task"],
        "state": body["state"],
        "submitted_s": submitted_s,
        "started_s": started_s,
        "ended_s": ended_s,
        "step": body["step"],
        "total_steps": body["total_steps"],
        "generation": body["generation"],
        "reason": body["reason"],
        "result": body["result"],
    }


def _dicts(cursor: sqlite3.Cursor) -> list[dict[str, Any]]:
    return [dict(row) for row in cursor.fetchall()]


def _lock(state_dir: Path) -> IO[str]:
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (state_dir / "lock").open("w")
    except OSError as error:
        raise ConfigError(
            f"state directory {state_dir} cannot be used: {error.strerror}",
            remedy="choose another with --state-dir",
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise ConfigError(
            f"another coordinator uses {state_dir}",
            remedy="stop it, or choose another directory with --state-dir",
        ) from None
    return lock
