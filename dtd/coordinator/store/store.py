"""The coordinator's durable state: a small SQLite file in its state directory.

Jobs with their results, incidents, what jobs printed, checkpoints.  Every method blocks and belongs
in the store's own thread (`StoreThread`).  Jobs and checkpoints are synced to the
disk before a method returns, since a generation is announced only after the job that names it was
written; incidents and printed lines reach the disk with the next of those.  Tables are bounded.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from dtd.cluster.events import Incident
from dtd.cluster.figures import finite
from dtd.cluster.generation import checkpoints
from dtd.cluster.generation.branches import is_left, remembered
from dtd.cluster.records import Job
from dtd.cluster.status import EndedJob
from dtd.cluster.transitions import ENDED, JobState
from dtd.coordinator.store.database import Database
from dtd.coordinator.store.tables import PAGE_ROWS, Annotations, Models, SweepTables, page
from dtd.job.differences import differing
from dtd.job.terms import terms_of
from dtd.wire import messages as m

# --- jobs as JSON --------------------------------------------------------------------------------


_STORED: Final = {field.name: field for field in fields(Job) if field.init}
"""Fields that are not read from the specification again."""


def job_body(job: Job) -> dict[str, Any]:
    """A job as JSON can hold it; a snapshot, safe to hand to another thread.

    A loss that is not finite is null: not every SQLite and no other reader takes NaN for JSON.
    """
    body = {name: getattr(job, name) for name in _STORED}
    return {**{name: finite(value) for name, value in body.items()}, "state": job.state.value}


def job_from_body(body: dict[str, Any]) -> Job:
    """The job that `job_body` was made of."""
    known = {name: body[name] for name in _STORED if name in body}
    for name, field in _STORED.items():
        if name in known and isinstance(field.default, tuple):
            known[name] = tuple(known[name])
    return Job(**{**known, "state": JobState(body["state"])})


def job_row(
    body: dict[str, Any], submitted_s: float, started_s: float | None, ended_s: float | None
) -> dict[str, Any]:
    """A job as `dtdctl jobs` shows it."""
    job = job_from_body(body)
    return {
        "id": job.id,
        "name": job.name,
        "identity": job.identity,
        "task": job.terms.task,
        "state": job.state.value,
        "submitted_s": submitted_s,
        "started_s": started_s,
        "ended_s": ended_s,
        "step": job.step,
        "total_steps": job.total_steps,
        "generation": job.generation,
        "reason": job.reason,
        "result": job.result,
    }


def job_details(body: dict[str, Any]) -> dict[str, Any]:
    """Return the details of `dtdctl show` besides a job's row."""
    job = job_from_body(body)
    return {
        "spec": job.spec,
        "package": job.package,
        "from_job": job.from_job,
        "from_step": job.from_step,
        "from_mode": job.from_mode,
        "from_newest": job.from_newest,
        "weights": job.weights,
        "strict": job.strict,
        "epoch": job.epoch,
        "world_size": job.world_size,
        "workers": list(job.roster),
        "steps_lost": job.steps_lost,
        "skipped_steps": job.skipped_steps,
        "metrics": job.metrics,
        "dataset_rows": job.dataset_rows,
        "dataset_fingerprint": job.dataset_fingerprint,
        "task_digest": job.task_digest,
        "environment": job.environment,
    }


# --- the open store ------------------------------------------------------------------------------


MAX_EVENTS: Final = 100_000
MAX_LOG_LINES: Final = 200_000
MAX_MESSAGE_CHARACTERS: Final = 4000
LIST_BYTES: Final = 1024 * 1024
"""Most bytes of lists that have no cursor; the newest entries are told."""
_ONE_JOB: Final = (
    "SELECT body, submitted_s, started_s, ended_s FROM jobs WHERE id = ? AND deleted_s IS NULL"
)


class Store:
    """The open state directory; one process at a time.

    Raises:
        ConfigError: the directory cannot be used, or another coordinator uses it.
        StoreDamaged: it cannot be read whole.
    """

    def __init__(self, state_dir: Path) -> None:
        self._database = Database(state_dir)
        self.sweeps = SweepTables(self._database)
        self.annotations = Annotations(self._database)
        self.models = Models(self._database)

    def close(self) -> None:
        self._database.close()

    def fold(self) -> None:
        self._database.fold()

    def identity(self) -> str:
        """The id of this store, which a restored backup has as well."""
        ((store_id,),) = self._database.read("SELECT store_id FROM identity")
        return str(store_id)

    def doubt_jobs(self) -> None:
        """Note that this store may not know the newest generations of jobs that have not ended."""
        with self._database.transaction(synced=True) as cursor:
            cursor.execute(
                "UPDATE jobs SET body = json_set(body, '$.in_doubt', json('true'),"
                " '$.forgetful', json('true')) WHERE ended_s IS NULL"
            )

    # --- jobs --------------------------------------------------------------------------------

    def next_job_number(self) -> int:
        ((last,),) = self._database.read("SELECT COALESCE(MAX(number), 0) FROM jobs")
        return 1 + int(last)

    def save_job(self, number: int, body: dict[str, Any]) -> None:
        """Write a job down durably; generations wait for it, so it is one transaction."""
        now = time.time()
        with self._database.transaction(synced=True) as cursor:
            cursor.execute(
                "INSERT INTO jobs (number, id, body, submitted_s, started_s, ended_s)"
                " VALUES (:number, :id, :body, :now, :started, :ended)"
                " ON CONFLICT (number) DO UPDATE SET body = excluded.body,"
                " started_s = COALESCE(started_s, excluded.started_s),"
                " ended_s = COALESCE(ended_s, excluded.ended_s)",
                {
                    "number": number,
                    "id": body["id"],
                    "body": json.dumps(body),
                    "now": now,
                    "started": now if body["state"] == JobState.RUNNING else None,
                    "ended": now if body["state"] in ENDED else None,
                },
            )

    def unfinished_jobs(self) -> list[tuple[int, Job]]:
        """(number, job) of everything that has not ended, oldest first."""
        rows = self._database.read("SELECT number, body FROM jobs WHERE ended_s IS NULL")
        jobs = [(int(number), job_from_body(json.loads(body))) for number, body in rows]
        return sorted(jobs, key=lambda one: one[0])

    def packages_in_use(self) -> set[str]:
        """Digests of the packages of jobs and sweeps that have not ended, and of models."""
        running = self._needed_by_jobs("$.package")
        return running | self.sweeps.packages_in_use() | self.models.packages()

    def weights_in_use(self) -> set[str]:
        """Digests of the files of weights that jobs begin with which have not ended."""
        return self._needed_by_jobs("$.weights")

    def _needed_by_jobs(self, field: str) -> set[str]:
        query = "SELECT json_extract(body, ?) FROM jobs WHERE ended_s IS NULL"
        return {digest for (digest,) in self._database.read(query, field) if digest}

    def last_generation(self) -> int:
        query = "SELECT COALESCE(MAX(json_extract(body, '$.generation')), 0) FROM jobs"
        return int(self._database.read(query)[0][0])

    def last_ended(self) -> EndedJob | None:
        query = "SELECT body, ended_s FROM jobs WHERE ended_s NOT NULL AND deleted_s IS NULL"
        for body, ended_s in self._database.read(query + " ORDER BY ended_s DESC LIMIT 1"):
            return EndedJob(job=job_from_body(json.loads(body)), ended_s=ended_s)
        return None

    def jobs(self, tag: str = "") -> list[dict[str, Any]]:
        """The newest jobs, newest first, as `dtdctl jobs` shows them; all, or those with a tag."""
        query = (
            "SELECT body, submitted_s, started_s, ended_s FROM jobs WHERE deleted_s IS NULL"
            " AND (? = '' OR id IN (SELECT job FROM notes, json_each(notes.tags) AS one"
            " WHERE one.value = ?)) ORDER BY number DESC LIMIT ?"
        )
        rows = self._database.read(query, tag, tag, PAGE_ROWS)
        found = [(json.loads(body), times) for body, *times in map(tuple, rows)]
        unlike = differing([body["spec"] for body, _ in found])
        notes, none = self.annotations.all(), {"tags": [], "note": ""}
        listed = (
            {**job_row(body, *times), "settings": differ, **notes.get(body["id"], none)}
            for (body, times), differ in zip(found, unlike, strict=True)
        )
        return page(listed, most_bytes=LIST_BYTES)

    def job(self, job_id: str) -> dict[str, Any] | None:
        """One job as `dtdctl jobs` shows it, with its spec."""
        for text, *times in map(tuple, self._database.read(_ONE_JOB, job_id)):
            body = json.loads(text)
            return {**job_row(body, *times), "spec": body["spec"]}
        return None

    def job_details(self, job_id: str) -> dict[str, Any] | None:
        """Everything that is written down about one job, as `dtdctl show` has it."""
        for text, *times in map(tuple, self._database.read(_ONE_JOB, job_id)):
            body = json.loads(text)
            return {
                **job_row(body, *times),
                **job_details(body),
                **self.annotations.of(job_id),
                "incidents": self._incidents_of(job_id),
                "lines": self._lines_of(job_id),
            }
        return None

    def _lines_of(self, job_id: str) -> int:
        ((count,),) = self._database.read("SELECT COUNT(*) FROM logs WHERE job = ?", job_id)
        return int(count)

    def _incidents_of(self, job_id: str) -> dict[str, int]:
        query = "SELECT kind, COUNT(*) FROM events WHERE job = ? GROUP BY kind ORDER BY MIN(seq)"
        return {str(kind): int(count) for kind, count in self._database.read(query, job_id)}

    # --- events, logs, checkpoints ---------------------------------------------------------------

    def add_incident(self, incident: Incident) -> None:
        with self._database.transaction(synced=False) as cursor:
            cursor.execute(
                "INSERT INTO events"
                " (time_s, kind, job, worker, generation, step, message, details)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    time.time(),
                    incident.kind,
                    incident.job,
                    incident.worker,
                    incident.generation,
                    incident.step,
                    incident.message[:MAX_MESSAGE_CHARACTERS],
                    json.dumps(finite(incident.details)),
                ),
            )
            newest = cursor.lastrowid or 0
            cursor.execute("DELETE FROM events WHERE seq <= ?", (newest - MAX_EVENTS,))

    def events(self, after: int) -> list[dict[str, Any]]:
        """A page of incidents after a cursor; with cursor 0 the newest page."""
        if after:
            query = "SELECT * FROM events WHERE seq > ? ORDER BY seq LIMIT ?"
            found = page(_dicts(self._database.read(query, after, PAGE_ROWS)))
        else:
            query = "SELECT * FROM events ORDER BY seq DESC LIMIT ?"
            found = page(_dicts(self._database.read(query, PAGE_ROWS)))[::-1]
        for one in found:
            one["details"] = json.loads(one["details"])
        return found

    def add_lines(self, job: str, rank: int, worker: str, lines: Iterable[str]) -> None:
        now = time.time()
        with self._database.transaction(synced=False) as cursor:
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
        return page(_dicts(self._database.read(query, after, job, PAGE_ROWS)))

    def save_checkpoint(self, worker: str, saved: m.CheckpointSaved) -> None:
        """Add a worker's checkpoint and forget those that it does not keep any more."""
        with self._database.transaction(synced=True) as cursor:
            cursor.execute(
                "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    saved.job,
                    saved.generation,
                    saved.step,
                    worker,
                    saved.size_bytes,
                    saved.directory,
                    saved.digest,
                    json.dumps(finite(saved.metrics)),
                    json.dumps(saved.part),
                ),
            )
            query = "SELECT rowid, directory FROM checkpoints WHERE job = ? AND worker = ?"
            for rowid, directory in cursor.execute(query, (saved.job, worker)).fetchall():
                if Path(directory).name not in saved.kept:
                    cursor.execute("DELETE FROM checkpoints WHERE rowid = ?", (rowid,))

    def checkpoints(self, job: str) -> list[dict[str, Any]]:
        """Known checkpoints of one job, or of all, newest first.

        With each, whether it is what all ranks agreed on, and whether the job has left it behind;
        and which part of it the worker has, if the state is sharded, as in CHECKPOINT_SAVED.
        """
        query = (
            "SELECT * FROM checkpoints WHERE ? IN ('', job)"
            " ORDER BY job, generation DESC, step DESC LIMIT ?"
        )
        rows = _dicts(self._database.read(query, job, PAGE_ROWS))
        found = page(rows, most_bytes=LIST_BYTES)
        bodies = {name: self._body(name) for name in {one["job"] for one in found}}
        branches = {name: remembered(body.get("branches", ())) for name, body in bodies.items()}
        agreed = {
            name: checkpoints.remembered(body.get("agreed", ())) for name, body in bodies.items()
        }
        for one in found:
            name, key = one["job"], (one["generation"], one["step"])
            one["metrics"] = finite(json.loads(one["metrics"]))
            one["part"] = json.loads(one["part"])
            one["left_behind"] = is_left(key, branches[name])
            one["confirmation"] = checkpoints.verdict(
                agreed[name],
                key,
                one["digest"],
                sharded=terms_of(bodies[name].get("spec", {})).sharded,
            )
        return found

    def _body(self, job_id: str) -> dict[str, Any]:
        """Return the stored body of a job, deleted or not; empty if there is none."""
        for (body,) in self._database.read("SELECT body FROM jobs WHERE id = ?", job_id):
            return dict(json.loads(body))
        return {}

    # --- what is deleted -------------------------------------------------------------------------

    def delete_job(self, job_id: str) -> None:
        """Forget a job's output and list it no more.

        Its row stays, so that neither its number nor those of its generations are given again.
        """
        with self._database.transaction(synced=True) as cursor:
            cursor.execute("UPDATE jobs SET deleted_s = ? WHERE id = ?", (time.time(), job_id))
            cursor.execute("DELETE FROM logs WHERE job = ?", (job_id,))
            cursor.execute("DELETE FROM notes WHERE job = ?", (job_id,))

    def doom(self, job_id: str, identity: str, step: int) -> list[dict[str, Any]]:
        """Take a job's checkpoints, with `step` those of that step, from the known to the doomed.

        Returns:
            All of these that are still on a worker's disk.
        """
        those = (job_id, step)
        with self._database.transaction(synced=True) as cursor:
            cursor.execute(
                "INSERT OR REPLACE INTO doomed (worker, directory, job, identity, generation, step)"
                " SELECT worker, directory, job, ?, generation, step FROM checkpoints"
                " WHERE job = ? AND ? IN (0, step)",
                (identity, *those),
            )
            cursor.execute(
                "DELETE FROM checkpoints WHERE job = ? AND ? IN (0, step)",
                those,
            )
        query = "SELECT * FROM doomed WHERE job = ? AND ? IN (0, step) ORDER BY step, worker"
        return _dicts(self._database.read(query, job_id, step))

    def doomed_on(self, worker: str) -> list[dict[str, Any]]:
        """Checkpoints that a worker is still to delete, a page of them."""
        query = "SELECT * FROM doomed WHERE worker = ? LIMIT ?"
        return _dicts(self._database.read(query, worker, PAGE_ROWS))

    def dropped(self, worker: str, directory: str) -> None:
        """A doomed checkpoint is gone from a worker's disk."""
        with self._database.transaction(synced=True) as cursor:
            cursor.execute(
                "DELETE FROM doomed WHERE worker = ? AND directory = ?", (worker, directory)
            )


def _dicts(rows: Iterable[sqlite3.Row]) -> list[dict[str, Any]]:
    return [dict(row) for row in rows]
