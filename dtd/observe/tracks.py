"""One track in the store: rows are added behind the others, replaced, and summarised as they come.

All of it happens within a transaction of the caller; what is held in memory is that of the file, so
the caller forgets it when a transaction fails.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, field

from dtd.observe.pyramid import (
    CELL_BYTES,
    FACTOR,
    LEVELS,
    VALUE_BYTES,
    Bucket,
    Pyramid,
    aligned,
    pack_cells,
    pack_values,
    summarised,
    unpack_cells,
    width,
)
from dtd.observe.series import Entry, Kind, Placement, at, placement, widened

_KEY_BYTES = 16
"""Bytes of a row besides its data, roughly."""


@dataclass(slots=True)
class StoredTrack:
    """The state of a track that its next row needs.

    Attributes:
        number: in the store.
        job: the job's number in the store.
        kind: the kind.
        columns: the names of its values.
        generation: the latest generation that it has rows of.
        pyramid: its growing end.
        grown_bytes: by level, what was added and is not in the table of extents yet.
    """

    number: int
    job: int
    kind: Kind
    columns: tuple[str, ...]
    generation: int
    pyramid: Pyramid
    grown_bytes: dict[int, int] = field(default_factory=dict)


def load_track(cursor: sqlite3.Cursor, job: int, kind: Kind, name: str) -> StoredTrack | None:
    """A track as the file has it; None if it has none."""
    row = cursor.execute(
        "SELECT number, columns, newest, generation FROM tracks WHERE job=? AND kind=? AND name=?",
        (job, kind.value, name),
    ).fetchone()
    if row is None:
        return None
    number, columns, newest, generation = row
    growing = [_growing(cursor, number, level, newest) for level in range(1, LEVELS)]
    pyramid = Pyramid(newest, [one for one in growing if one is not None])
    return StoredTrack(number, job, kind, tuple(json.loads(columns)), generation, pyramid)


def begin_track(cursor: sqlite3.Cursor, job: int, kind: Kind, name: str) -> StoredTrack:
    """A new track without rows."""
    cursor.execute(
        "INSERT INTO tracks (job, kind, name, columns, newest, generation) VALUES (?,?,?,?,?,?)",
        (job, kind.value, name, "[]", -1, 0),
    )
    number = cursor.lastrowid
    assert number is not None
    levels = [(number, level, 0, 0) for level in range(LEVELS)]
    cursor.executemany("INSERT INTO extents VALUES (?,?,?,?)", levels)
    return StoredTrack(number, job, kind, (), 0, Pyramid())


def add_entry(cursor: sqlite3.Cursor, track: StoredTrack, entry: Entry) -> None:
    """Add one row where it belongs; its summaries are written by `write_summaries`."""
    where = placement(
        track.kind,
        entry.position,
        entry.generation,
        newest=track.pyramid.newest,
        newest_generation=track.generation,
    )
    if where is Placement.LEFT_OUT:
        return
    if where is Placement.REPLACES:
        write_summaries(cursor, track)
        _go_back(cursor, track, entry.position)
    elif track.pyramid.newest < 0:
        _begin_at(cursor, track, entry.position)
    columns = widened(track.columns, entry.columns)
    if columns != track.columns:
        write_summaries(cursor, track)
        track.columns = columns
    track.generation = max(track.generation, entry.generation)
    values = at(track.columns, entry)
    track.pyramid.add(entry.position, values)
    _insert(cursor, track, 0, entry.position, pack_values(values))


def write_summaries(cursor: sqlite3.Cursor, track: StoredTrack) -> None:
    """Write what has grown, and how far the track goes now."""
    for one in track.pyramid.take_changed():
        _put(cursor, track, one)
    cursor.execute(
        "UPDATE tracks SET columns=?, newest=?, generation=? WHERE number=?",
        (json.dumps(track.columns), track.pyramid.newest, track.generation, track.number),
    )
    cursor.executemany(
        "UPDATE extents SET size_bytes=max(0, size_bytes+?) WHERE track=? AND level=?",
        [(size, track.number, level) for level, size in track.grown_bytes.items()],
    )
    track.grown_bytes.clear()


def row_bytes(level: int, columns: int) -> int:
    """Return the bytes of a bucket, roughly."""
    return _KEY_BYTES + columns * (CELL_BYTES if level else VALUE_BYTES)


def _begin_at(cursor: sqlite3.Cursor, track: StoredTrack, position: int) -> None:
    cursor.executemany(
        "UPDATE extents SET first=? WHERE track=? AND level=?",
        [(aligned(level, position), track.number, level) for level in range(LEVELS)],
    )


def _put(cursor: sqlite3.Cursor, track: StoredTrack, one: Bucket) -> None:
    """Write a bucket above level 0."""
    data, key = pack_cells(one.cells), (track.number, one.level, one.bucket)
    cursor.execute("UPDATE cells SET data=? WHERE track=? AND level=? AND bucket=?", (data, *key))
    if not cursor.rowcount:
        _insert(cursor, track, one.level, one.bucket, data)


def _insert(
    cursor: sqlite3.Cursor, track: StoredTrack, level: int, bucket: int, data: bytes
) -> None:
    cursor.execute("INSERT INTO cells VALUES (?,?,?,?)", (track.number, level, bucket, data))
    grown = row_bytes(level, len(track.columns))
    track.grown_bytes[level] = track.grown_bytes.get(level, 0) + grown


def _go_back(cursor: sqlite3.Cursor, track: StoredTrack, position: int) -> None:
    """Forget the rows from a position on, and summarise again what is left of their buckets.

    The newest rows of each level are never removed, so that what is left is known, except where a
    job goes back very far: then a bucket begins again at `position`.
    """
    growing = []
    for level in range(LEVELS):
        first = position // width(level)
        cursor.execute(
            "DELETE FROM cells WHERE track=? AND level=? AND bucket>=?",
            (track.number, level, first),
        )
        gone = cursor.rowcount * row_bytes(level, len(track.columns))
        track.grown_bytes[level] = track.grown_bytes.get(level, 0) - gone
        made = _made_again(cursor, track, level, first) if level else None
        if made is not None:
            growing.append(made)
            _put(cursor, track, made)
        cursor.execute(
            "UPDATE extents SET first=min(first, ?) WHERE track=? AND level=?",
            (aligned(level, position), track.number, level),
        )
    track.pyramid = Pyramid(position - 1, growing)


def _made_again(
    cursor: sqlite3.Cursor, track: StoredTrack, level: int, bucket: int
) -> Bucket | None:
    below = cursor.execute(
        "SELECT data FROM cells WHERE track=? AND level=? AND bucket>=? AND bucket<?",
        (track.number, level - 1, bucket * FACTOR, (bucket + 1) * FACTOR),
    ).fetchall()
    return summarised(level, bucket, (unpack_cells(level - 1, data) for (data,) in below))


def _growing(cursor: sqlite3.Cursor, number: int, level: int, newest: int) -> Bucket | None:
    bucket = newest // width(level)
    row = cursor.execute(
        "SELECT data FROM cells WHERE track=? AND level=? AND bucket=?", (number, level, bucket)
    ).fetchone()
    return None if row is None else Bucket(level, bucket, unpack_cells(level, row[0]))
