"""Tags and notes, registered models, and sweeps in the store's file; and pages of rows.

Blocking; belongs in the store's thread.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from dtd.cluster.figures import finite
from dtd.coordinator.store.database import Database
from dtd.errors import RequestRefused
from dtd.rules import did_you_mean
from dtd.sweeps import Trial, TrialState
from dtd.text.shown import shown

# --- paged answers: bounded in rows and bytes; a cursor requests the rest -----------------------


PAGE_ROWS: Final = 500
PAGE_BYTES: Final = 512 * 1024
_OF_A_VALUE: Final = 8
"""The approximate size of a number, a key or the end of a text."""


def page(rows: Iterable[dict[str, Any]], *, most_bytes: int = PAGE_BYTES) -> list[dict[str, Any]]:
    """The first rows, as many as fit, at least one so that a large row cannot block the cursor."""
    kept: list[dict[str, Any]] = []
    room = most_bytes
    for row in rows:
        room -= size_of(row)
        if kept and room < 0:
            break
        kept.append(row)
    return kept


def size_of(value: Any) -> int:
    """The approximate number of bytes of a value in an answer."""
    if isinstance(value, str | bytes):
        return len(value) + _OF_A_VALUE
    if isinstance(value, dict):
        return sum(size_of(key) + size_of(one) for key, one in value.items())
    if isinstance(value, list | tuple):
        return sum(map(size_of, value)) + _OF_A_VALUE
    return _OF_A_VALUE


# --- tags and notes of jobs, which people change whenever they like ------------------------------

MAX_TAGS: Final = 32
"""Most tags of one job."""
MAX_TAG_CHARACTERS: Final = 64
MAX_NOTE_CHARACTERS: Final = 4000
_TAG: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+-]{0,63}")
_TAG_WORDS: Final = (
    f"1 to {MAX_TAG_CHARACTERS} letters, digits or . _ : / + -, the first one a letter or digit"
)


class Annotations:
    """The annotations in an open store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, job: str) -> dict[str, Any]:
        for tags, note in self._database.read("SELECT tags, note FROM notes WHERE job = ?", job):
            return {"tags": json.loads(tags), "note": note}
        return {"tags": [], "note": ""}

    def all(self) -> dict[str, dict[str, Any]]:
        rows = self._database.read("SELECT job, tags, note FROM notes")
        return {job: {"tags": json.loads(tags), "note": note} for job, tags, note in rows}

    def change(
        self, job: str, *, add: Sequence[str], remove: Sequence[str], note: str | None
    ) -> dict[str, Any]:
        """Add and remove tags, and replace the note unless it is None; return both."""
        known = self.of(job)
        tags = tagged(known["tags"], add=add, remove=remove)
        text = known["note"] if note is None else checked_note(note)
        with self._database.transaction(synced=True) as cursor:
            cursor.execute(
                "INSERT OR REPLACE INTO notes (job, tags, note) VALUES (?, ?, ?)",
                (job, json.dumps(tags), text),
            )
        return {"tags": list(tags), "note": text}


def tagged(tags: Sequence[str], *, add: Iterable[str], remove: Iterable[str]) -> tuple[str, ...]:
    """The tags of a job after some were added and some removed, sorted."""
    kept = set(tags)
    for tag in remove:
        if tag not in kept:
            near = did_you_mean(tag, kept)
            raise RequestRefused(
                f"the job has no tag {shown(tag)}{near}",
                remedy=f"its tags: {', '.join(sorted(tags)) or 'none'}",
            )
    kept -= set(remove)
    for tag in add:
        kept.add(checked_tag(tag))
    if len(kept) > MAX_TAGS:
        raise RequestRefused(f"a job may have {MAX_TAGS} tags, not {len(kept)}")
    return tuple(sorted(kept))


def checked_tag(tag: str) -> str:
    """The tag, if it is one."""
    if not _TAG.fullmatch(tag):
        raise RequestRefused(f"{shown(tag)} is not a tag", remedy=f"use {_TAG_WORDS}")
    return tag


def checked_note(note: str) -> str:
    """The note, if it is short enough."""
    if len(note) > MAX_NOTE_CHARACTERS:
        raise RequestRefused(
            f"a note may have {MAX_NOTE_CHARACTERS} characters, not {len(note)}",
            remedy="put the rest into a file, and its name into the note",
        )
    return note


# --- registered models: versions, aliases, and the workers that keep copies ----------------------


MAX_VERSIONS: Final = 10_000
"""Most versions of all models together."""
_ROWS: Final = "SELECT * FROM models WHERE deleted_s IS NULL AND ? IN ('', name)"


class Models:
    """The registry's tables in an open store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(
        self,
        name: str,
        record: Mapping[str, Any],
        *,
        copies: int,
        card: str,
        make_id: Callable[[int], str],
    ) -> tuple[int, str]:
        """Write the next version of a model down; returns its number and id."""
        ((count,),) = self._database.read("SELECT COUNT(*) FROM models WHERE deleted_s IS NULL")
        if count >= MAX_VERSIONS:
            raise RequestRefused(
                f"{MAX_VERSIONS} versions of models are registered already",
                remedy="delete some that are not needed: dtdctl models delete NAME@VERSION",
            )
        with self._database.transaction(synced=True) as cursor:
            query = "SELECT COALESCE(MAX(number), 0) + 1 FROM models WHERE name = ?"
            number = int(cursor.execute(query, (name,)).fetchone()[0])
            version = make_id(number)
            cursor.execute(
                "INSERT INTO models (name, number, id, record, files, copies, card)"
                " VALUES (?, ?, ?, ?, '[]', ?, ?)",
                (name, number, version, json.dumps(finite(record)), copies, card),
            )
        return number, version

    def all(self, name: str = "") -> list[dict[str, Any]]:
        """All versions, or those of a model, by name, the newest first, with their aliases."""
        aliases: dict[tuple[str, int], list[str]] = {}
        for one, alias, number in self._database.read(
            "SELECT name, alias, number FROM model_aliases WHERE ? IN ('', name) ORDER BY alias",
            name,
        ):
            aliases.setdefault((one, number), []).append(alias)
        rows = self._database.read(f"{_ROWS} ORDER BY name, number DESC", name)
        return [
            {
                "name": row["name"],
                "number": row["number"],
                "id": row["id"],
                "record": json.loads(row["record"]),
                "files": json.loads(row["files"]),
                "copies": row["copies"],
                "card": row["card"],
                "aliases": aliases.get((row["name"], row["number"]), []),
            }
            for row in rows
        ]

    def names(self) -> list[str]:
        rows = self._database.read("SELECT DISTINCT name FROM models WHERE deleted_s IS NULL")
        return [str(name) for (name,) in rows]

    def packages(self) -> set[str]:
        """Digests of the packages with which versions were trained."""
        query = "SELECT json_extract(record, '$.package') FROM models WHERE deleted_s IS NULL"
        return {package for (package,) in self._database.read(query) if package}

    def alias(self, name: str, alias: str, number: int) -> None:
        """Have an alias stand for a version; number 0 removes it."""
        with self._database.transaction(synced=True) as cursor:
            query = "SELECT 1 FROM models WHERE name = ? AND number = ? AND deleted_s IS NULL"
            if number and cursor.execute(query, (name, number)).fetchone() is None:
                raise RequestRefused(f"model {name} has no version {number} any more")
            cursor.execute("DELETE FROM model_aliases WHERE name = ? AND alias = ?", (name, alias))
            if number:
                cursor.execute("INSERT INTO model_aliases VALUES (?, ?, ?)", (name, alias, number))

    def describe(self, name: str, number: int, card: str) -> None:
        with self._database.transaction(synced=True) as cursor:
            cursor.execute(
                "UPDATE models SET card = ? WHERE name = ? AND number = ?", (card, name, number)
            )

    def delete(self, name: str, numbers: Sequence[int]) -> None:
        """Delete versions of a model."""
        with self._database.transaction(synced=True) as cursor:
            query = "SELECT alias, number FROM model_aliases WHERE name = ? ORDER BY alias"
            for alias, number in cursor.execute(query, (name,)).fetchall():
                if number in numbers:
                    raise RequestRefused(
                        f"{name}@{alias} stands for version {number}",
                        remedy=f"have it stand for another one, or remove it:"
                        f" dtdctl models alias {name}@{alias} 0",
                    )
            for number in numbers:
                key = (name, number)
                cursor.execute(
                    "DELETE FROM model_copies WHERE id ="
                    " (SELECT id FROM models WHERE name = ? AND number = ?)",
                    key,
                )
                cursor.execute(
                    "UPDATE models SET deleted_s = ? WHERE name = ? AND number = ?",
                    (time.time(), *key),
                )

    def deleted(self) -> list[str]:
        rows = self._database.read("SELECT id FROM models WHERE deleted_s NOT NULL")
        return [str(version) for (version,) in rows]

    # --- copies ----------------------------------------------------------------------------------

    def set_files(self, version: str, files: Sequence[Mapping[str, Any]]) -> None:
        """Store the files of a version; the first report decides."""
        with self._database.transaction(synced=True) as cursor:
            cursor.execute(
                "UPDATE models SET files = ? WHERE id = ? AND files = '[]'",
                (json.dumps([dict(one) for one in files]), version),
            )

    def set_copies(self, worker: str, versions: Iterable[str]) -> None:
        """Write down of which versions a worker keeps copies."""
        with self._database.transaction(synced=True) as cursor:
            cursor.execute("DELETE FROM model_copies WHERE worker = ?", (worker,))
            cursor.executemany(
                "INSERT INTO model_copies VALUES (?, ?)", [(one, worker) for one in versions]
            )

    def copies(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for version, worker in self._database.read("SELECT id, worker FROM model_copies"):
            found.setdefault(version, []).append(worker)
        return found


# --- sweeps and their trials ---------------------------------------------------------------------


MAX_LISTED: Final = 200


class SweepTables:
    """The sweeps in an open store."""

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
        with self._database.transaction(synced=synced) as cursor:
            cursor.execute(
                "INSERT OR REPLACE INTO trials (sweep, number, job, body) VALUES (?, ?, ?, ?)",
                (number, trial.number, trial.job, json.dumps(asdict(trial))),
            )

    def sweep(self, number: int) -> dict[str, Any] | None:
        return next(iter(self._rows("SELECT * FROM sweeps WHERE number = ?", number)), None)

    def open_sweeps(self) -> list[dict[str, Any]]:
        """The sweeps that have not ended, oldest first."""
        return self._rows("SELECT * FROM sweeps WHERE ended_s IS NULL ORDER BY number")

    def listed(self) -> list[dict[str, Any]]:
        """The newest sweeps, newest first, with how many trials each has."""
        query = (
            "SELECT sweeps.*, (SELECT COUNT(*) FROM trials WHERE sweep = sweeps.number) AS begun"
            " FROM sweeps ORDER BY number DESC LIMIT ?"
        )
        return self._rows(query, MAX_LISTED)

    def _rows(self, query: str, *values: int) -> list[dict[str, Any]]:
        rows = self._database.read(query, *values)
        return [{**dict(row), "spec": json.loads(row["spec"])} for row in rows]

    def trials(self, number: int) -> list[Trial]:
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
