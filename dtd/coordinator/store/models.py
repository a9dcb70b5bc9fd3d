"""Registered models in the store's file: versions, aliases, and which workers keep copies.

A version's record is written once and never changed; the digests of its files are added when the
first copy is there.  The row of a deleted version stays, so that its number is not given again.
Blocking; belongs in the store's thread.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from dtd.cluster.figures import finite
from dtd.coordinator.store.database import Database
from dtd.errors import RequestRefused

MAX_VERSIONS: Final = 10_000
"""Most versions of all models together."""
_ROWS: Final = "SELECT * FROM models WHERE deleted_s IS NULL AND ? IN ('', name)"


class Models:
    """The registry's tables in an open store.

    Args:
        database: the store's file.
    """

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
        """Write the next version of a model down; returns its number and id.

        Raises:
            RequestRefused: there are too many.
        """
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
        """The names of all models."""
        rows = self._database.read("SELECT DISTINCT name FROM models WHERE deleted_s IS NULL")
        return [str(name) for (name,) in rows]

    def packages(self) -> set[str]:
        """Digests of the packages with which versions were trained."""
        query = "SELECT json_extract(record, '$.package') FROM models WHERE deleted_s IS NULL"
        return {package for (package,) in self._database.read(query) if package}

    def alias(self, name: str, alias: str, number: int) -> None:
        """Have an alias stand for a version; number 0 removes it.

        Raises:
            RequestRefused: the version was deleted meanwhile.
        """
        with self._database.transaction(synced=True) as cursor:
            query = "SELECT 1 FROM models WHERE name = ? AND number = ? AND deleted_s IS NULL"
            if number and cursor.execute(query, (name, number)).fetchone() is None:
                raise RequestRefused(f"model {name} has no version {number} any more")
            cursor.execute("DELETE FROM model_aliases WHERE name = ? AND alias = ?", (name, alias))
            if number:
                cursor.execute("INSERT INTO model_aliases VALUES (?, ?, ?)", (name, alias, number))

    def describe(self, name: str, number: int, card: str) -> None:
        """Replace the text of a version's card."""
        with self._database.transaction(synced=True) as cursor:
            cursor.execute(
                "UPDATE models SET card = ? WHERE name = ? AND number = ?", (card, name, number)
            )

    def delete(self, name: str, numbers: Sequence[int]) -> None:
        """Delete versions of a model.

        Raises:
            RequestRefused: an alias stands for one of them.
        """
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
        """Ids of all versions that were deleted."""
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
        """The workers that keep a copy of each version."""
        found: dict[str, list[str]] = {}
        for version, worker in self._database.read("SELECT id, worker FROM model_copies"):
            found.setdefault(version, []).append(worker)
        return found
