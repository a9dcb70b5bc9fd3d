"""The coordinator's store in the simulation: the product's own, and a reference copy.

All access goes through `dtd.coordinator.store.store`.  A plain table records what was written; a
coordinator that opens the store must find exactly that.  The store outlives the process; it can be
full, and it can be restored from a backup.
"""

from __future__ import annotations

import copy
import json
import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import Any, Final

from dtd.cluster.records import Job
from dtd.cluster.transitions import ENDED, JobState
from dtd.coordinator.store.database import FILE_NAME, NEWEST_NAME
from dtd.coordinator.store.store import Store, job_body
from dtd.wire import messages as m
from tests.sim.lineage import require

MEMORY: Final = Path("/dev/shm")
FULL: Final = (
    "CREATE TEMP TRIGGER full_{0} BEFORE INSERT ON {0} BEGIN SELECT RAISE(FAIL, 'no space'); END"
)
TABLES: Final = ("jobs", "checkpoints")


def in_memory() -> str | None:
    """A directory in memory; None for the default directory of temporary files."""
    return str(MEMORY) if MEMORY.is_dir() else None


class SimulatedStore:
    """The state directory of the coordinator.

    Attributes:
        full: nothing can be written.
    """

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="dtd-sim-", dir=in_memory())
        self._state_dir = Path(self._directory.name)
        self._store: Store | None = None
        self._bodies: dict[str, dict[str, Any]] = {}
        self._numbers: dict[str, int] = {}
        self._listed: dict[tuple[str, str], set[str]] = {}
        self._refused: set[str] = set()
        self._backup: tuple[dict[str, dict[str, Any]], dict[str, int], Any] | None = None
        self.full = False

    # --- for the coordinator -------------------------------------------------------------------

    def open(self) -> list[Job]:
        """Open the store for a new coordinator; returns its unfinished jobs, oldest first."""
        store = self._opened()
        last = max((body["generation"] for body in self._bodies.values()), default=0)
        require(store.last_generation() == last, "the store has forgotten a generation's number")
        jobs = [job for _, job in store.unfinished_jobs()]
        require(
            [_plain(job) for job in jobs] == self._unfinished(),
            "the store has not what was written down",
        )
        return jobs

    def close(self) -> None:
        """Close the store as the coordinator ends."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def save(self, job: Job) -> str:
        """Store a job; returns why that failed, or an empty text."""
        store, body = self._opened(), job_body(job)
        number = self._numbers.get(job.id) or store.next_job_number()
        require(number not in self._others(job.id), "two jobs have one number")
        try:
            store.save_job(number, body)
        except sqlite3.Error as error:
            if not self.full:
                raise
            self._refused.add(job.id)
            return str(error)
        self._refused.discard(job.id)
        self._numbers[job.id] = number
        self._bodies[job.id] = json.loads(json.dumps(body))
        return ""

    def save_checkpoint(self, worker: str, saved: m.CheckpointSaved) -> None:
        """Store the checkpoint that a worker has published, and which ones it keeps."""
        if self.full:
            return
        self._opened().save_checkpoint(worker, saved)
        listed = self._listed.setdefault((saved.job, worker), set())
        listed.add(Path(saved.directory).name)
        listed &= set(saved.kept)
        told = {
            Path(one["directory"]).name
            for one in self._opened().checkpoints(saved.job)
            if one["worker"] == worker
        }
        require(told == listed, "checkpoints are listed that are gone, or not listed", worker, told)

    def last_generation(self) -> int:
        """The highest generation number of any job."""
        return self._opened().last_generation()

    def has_jobs(self) -> bool:
        """Whether any job was ever submitted."""
        return bool(self._bodies)

    # --- for the plan and the oracle -----------------------------------------------------------

    def knows(self, job: str) -> bool:
        """Whether the job has been stored."""
        return job in self._bodies

    def refused(self, job: str) -> bool:
        """Whether the last attempt to store the job failed."""
        return job in self._refused

    def written(self, job: str) -> dict[str, Any] | None:
        """The record of a job that was stored last."""
        return self._bodies.get(job)

    def ended(self) -> list[Job]:
        """Jobs that have ended."""
        return [
            Job(**{**body, "state": JobState(body["state"])})
            for body in self._bodies.values()
            if body["state"] in ENDED
        ]

    def has_ended(self, job: str) -> bool:
        """Whether the stored record of the job has an end."""
        return job in self._bodies and self._bodies[job]["state"] in ENDED

    def fill(self) -> None:
        """Make all writes fail from now on."""
        self._opened()
        if not self.full:
            self.full = True
            for table in TABLES:
                self._execute(FULL.format(table))

    def mend(self) -> None:
        """Make writes succeed again."""
        if self.full:
            self.full = False
            for table in TABLES:
                self._execute(f"DROP TRIGGER IF EXISTS full_{table}")

    def back_up(self) -> None:
        """Take a backup."""
        self._opened()
        with sqlite3.connect(self._state_dir / "kept") as kept:
            self._raw().backup(kept)
        kept.close()
        kept_state = (self._bodies, self._numbers, self._listed)
        self._backup = copy.deepcopy(kept_state)

    def has_backup_of(self, ended: set[str]) -> bool:
        """Whether the backup has the same jobs, and some unfinished ones, none of them `ended`."""
        if self._backup is None or self._backup[0].keys() != self._bodies.keys():
            return False
        left = {name for name, body in self._backup[0].items() if body["state"] not in ENDED}
        return bool(left) and not left & ended

    def go_back(self) -> None:
        """Restore the store from the backup, its jobs in doubt; no coordinator is running."""
        assert self._backup is not None
        self.close()
        for leftover in (*self._state_dir.glob(f"{FILE_NAME}*"), self._state_dir / NEWEST_NAME):
            leftover.unlink(missing_ok=True)
        shutil.copy(self._state_dir / "kept", self._state_dir / FILE_NAME)
        self._bodies, self._numbers, self._listed = copy.deepcopy(self._backup)
        self._opened().doubt_jobs()
        for body in self._unfinished():
            body["in_doubt"] = body["forgetful"] = True
        self.close()

    # --- inside --------------------------------------------------------------------------------

    def _opened(self) -> Store:
        if self._store is None:
            self._store = Store(self._state_dir)
            if self.full:
                self.full = False
                self.fill()
        return self._store

    def _raw(self) -> sqlite3.Connection:
        return self._opened()._database._connection

    def _execute(self, statement: str) -> None:
        self._raw().execute(statement)

    def _others(self, job: str) -> set[int]:
        return {number for name, number in self._numbers.items() if name != job}

    def _unfinished(self) -> list[dict[str, Any]]:
        bodies = sorted(self._bodies.items(), key=lambda item: self._numbers[item[0]])
        return [body for _, body in bodies if body["state"] not in ENDED]


def _plain(job: Job) -> dict[str, Any]:
    """A job as JSON stores it; tuples of the job must not have become lists."""
    assert isinstance(job.roster, tuple), "a roster is a tuple"
    return dict(json.loads(json.dumps(job_body(job))))
