"""Tags and notes of jobs in the store's file.

Beside the jobs' records, which the core writes: people change these whenever they like.  Blocking;
belongs in the store's thread.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dtd.coordinator.store.database import Database
from dtd.observe.annotations import checked_note, tagged


class Annotations:
    """The annotations in an open store.

    Args:
        database: the store's file.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, job: str) -> dict[str, Any]:
        """A job's tags and its note."""
        for tags, note in self._database.read("SELECT tags, note FROM notes WHERE job = ?", job):
            return {"tags": json.loads(tags), "note": note}
        return {"tags": [], "note": ""}

    def all(self) -> dict[str, dict[str, Any]]:
        """Tags and note of each job that has any."""
        rows = self._database.read("SELECT job, tags, note FROM notes")
        return {job: {"tags": json.loads(tags), "note": note} for job, tags, note in rows}

    def change(
        self, job: str, *, add: Sequence[str], remove: Sequence[str], note: str | None
    ) -> dict[str, Any]:
        """Add and remove tags, and replace the note unless it is None; returns what there is now.

        Raises:
            RequestRefused: a tag or the note is not valid.
        """
        known = self.of(job)
        tags = tagged(known["tags"], add=add, remove=remove)
        text = known["note"] if note is None else checked_note(note)
        with self._database.transaction(synced=True) as cursor:
            cursor.execute(
                "INSERT OR REPLACE INTO notes (job, tags, note) VALUES (?, ?, ?)",
                (job, json.dumps(tags), text),
            )
        return {"tags": list(tags), "note": text}
