"""Sweeps and their trials in the store's file; blocking, belongs in the store's thread.

A trial is written before its job is submitted, so that a restart neither forgets nor repeats it.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Any, Final

from dtd.coordinator.store.database import Database
from dtd.sweeps.course import Trial, TrialState

MAX_LISTED: Final = 200


class SweepTables:
    """The sweeps in an open store.

    Args:
        database: the store's file.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, spec: dict[str, Any], package: str) -> int:
        """Write a new sweep down; returns its number."""
        with self._database.transaction(synced=True) as cursor:
            cursor.execute(
                "INSERT INTO sweeps (spec, package, state, reason, began_s)"
                " VALUES (?, ?, 'running', '', ?)",
                (json.dumps(spec), package, time.time()),
            )
            return int(cursor.lastrowid or 0)

    def change(self, number: int, state: str, reason: str) -> None:
        """Write down that a sweep is being cancelled, or has ended."""
        ended_s = None if state in ("running", "cancelling") else time.time()
        with self._database.transaction(synced=True) as cursor:
            cursor.execute(
                "UPDATE sweeps SET state = ?, reason = ?, ended_s = ? WHERE number = ?",
                (state, reason, ended_s, number),
            )

    def write_trial(self, number: int, trial: Trial, *, synced: bool = True) -> None:
        """Write a trial down as it is."""
        with self._database.transaction(synced=synced) as cursor:
            cursor.execute(
                "INSERT OR REPLACE INTO trials (sweep, number, job, body) VALUES (?, ?, ?, ?)",
                (number, trial.number, trial.job, json.dumps(asdict(trial))),
            )

    def sweep(self, number: int) -> dict[str, Any] | None:
        """Return a stored sweep, without its trials."""
        for row in self._database.read("SELECT * FROM sweeps WHERE number = ?", number):
            return {**dict(row), "spec": json.loads(row["spec"])}
        return None

    def open_sweeps(self) -> list[dict[str, Any]]:
        """The sweeps that have not ended, oldest first."""
        rows = self._database.read("SELECT * FROM sweeps WHERE ended_s IS NULL ORDER BY number")
        return [{**dict(row), "spec": json.loads(row["spec"])} for row in rows]

    def listed(self) -> list[dict[str, Any]]:
        """The newest sweeps, newest first, with how many trials each has."""
        query = (
            "SELECT sweeps.*, (SELECT COUNT(*) FROM trials WHERE sweep = sweeps.number) AS begun"
            " FROM sweeps ORDER BY number DESC LIMIT ?"
        )
        rows = self._database.read(query, MAX_LISTED)
        return [{**dict(row), "spec": json.loads(row["spec"])} for row in rows]

    def trials(self, number: int) -> list[Trial]:
        """A sweep's trials, by number."""
        query = "SELECT body FROM trials WHERE sweep = ? ORDER BY number"
        return [_trial(json.loads(body)) for (body,) in self._database.read(query, number)]

    def job_called(self, name: str) -> str:
        """Id of the job with this name, if there is one; names of trials are never given twice."""
        query = "SELECT id FROM jobs WHERE id GLOB ? AND deleted_s IS NULL ORDER BY number"
        rows = self._database.read(query, f"{name}-*")
        return next((str(row[0]) for row in rows if str(row[0]).rpartition("-")[0] == name), "")

    def packages_in_use(self) -> set[str]:
        """Digests of the packages that sweeps need which have not ended."""
        rows = self._database.read("SELECT package FROM sweeps WHERE ended_s IS NULL")
        return {str(package) for (package,) in rows} - {""}


def _trial(body: dict[str, Any]) -> Trial:
    points = tuple((int(step), float(value)) for step, value in body["points"])
    return Trial(**{**body, "state": TrialState(body["state"]), "points": points})
