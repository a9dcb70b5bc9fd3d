"""Content of a worker's file of a profile, and the check of a fetched one.  Pure.

A JSON object: `spans` of the training thread and the ring, `tracks` of torch, both with Unix times
in nanoseconds by that worker's clock, and what was left out.  A worker may have written anything:
what does not fit is refused, and nothing is taken beyond what an honest worker writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dtd.errors import ProfileError
from dtd.observe.profiling.chrome import Track, WorkerTrace
from dtd.observe.profiling.spans import (
    CHUNK,
    MAX_SPANS,
    RING_KINDS,
    STAR_CHUNK,
    STAR_KINDS,
    TRAINING_KINDS,
    Span,
)

FORMAT: Final = 1
MAX_TRACKS: Final = 256
MAX_ROWS: Final = 200_000
"""Most rows of all of torch's tracks together."""
MAX_NAME_CHARACTERS: Final = 200
MAX_JSON_BYTES: Final = 128 << 20
_LATEST_NS: Final = 1 << 62
_KINDS: Final = frozenset({*TRAINING_KINDS, *RING_KINDS, *STAR_KINDS})
_CHUNK_DETAIL: Final = 3


def encoded(
    spans: Sequence[Span], tracks: Sequence[Track], *, ahead_ns: int, dropped: Mapping[str, int]
) -> dict[str, Any]:
    """Return the contents of a file.

    Args:
        spans: by the monotonic clock.
        tracks: by the Unix clock.
        ahead_ns: time of the Unix clock, less that of the monotonic clock.
        dropped: numbers of entries left out, by kind.
    """
    return {
        "format": FORMAT,
        "spans": [
            [one.kind, one.begin_ns + ahead_ns, one.end_ns + ahead_ns, one.number, [*one.detail]]
            for one in spans
        ],
        "tracks": [
            {
                "name": track.name[:MAX_NAME_CHARACTERS],
                "rows": [[name[:MAX_NAME_CHARACTERS], *times] for name, *times in track.rows],
            }
            for track in tracks
        ],
        "dropped": dict(dropped),
    }


def decoded(contents: Any, *, name: str, rank: int, offset_ns: int) -> WorkerTrace:
    """Return a worker's recording, on the coordinator's clock.

    Args:
        contents: of its file.
        name: the worker's.
        rank: in the generation.
        offset_ns: how far its clock is ahead.

    Raises:
        ProfileError: a worker of this release would not have written it.
    """
    if not isinstance(contents, dict) or contents.get("format") != FORMAT:
        raise ProfileError(
            f"the profile of {name} has an unknown format",
            remedy="install the same dtd version on all hosts",
        )
    spans, tracks = contents.get("spans"), contents.get("tracks")
    if not isinstance(spans, list) or len(spans) > 2 * MAX_SPANS:
        raise _odd(name, "spans")
    if not isinstance(tracks, list) or len(tracks) > MAX_TRACKS:
        raise _odd(name, "tracks")
    read = [_track(one, name, offset_ns) for one in tracks]
    if sum(len(track.rows) for track in read) > MAX_ROWS:
        raise _odd(name, "rows")
    return WorkerTrace(
        name=name,
        rank=rank,
        spans=[_span(one, name, offset_ns) for one in spans],
        tracks=read,
    )


def _odd(name: str, what: str) -> ProfileError:
    return ProfileError(f"the profile of {name} has {what} that no worker records")


def _span(row: Any, name: str, offset_ns: int) -> Span:
    match row:
        case [str(kind), int(begin), int(end), int(number), list(detail)] if (
            kind in _KINDS
            and 0 <= begin <= end < _LATEST_NS
            and 0 <= number < _LATEST_NS
            and len(detail) == (_CHUNK_DETAIL if kind in (CHUNK, STAR_CHUNK) else 0)
            and all(isinstance(one, int) and 0 <= one < _LATEST_NS for one in detail)
        ):
            return Span(kind, begin - offset_ns, end - offset_ns, number, tuple(detail))
    raise _odd(name, "spans")


def _track(track: Any, name: str, offset_ns: int) -> Track:
    match track:
        case {"name": str(title), "rows": list(rows)} if (
            len(title) <= MAX_NAME_CHARACTERS and len(rows) <= MAX_ROWS
        ):
            return Track(name=title, rows=[_torch_row(row, name, offset_ns) for row in rows])
    raise _odd(name, "tracks")


def _torch_row(row: Any, name: str, offset_ns: int) -> tuple[str, int, int]:
    match row:
        case [str(what), int(begin), int(end)] if (
            len(what) <= MAX_NAME_CHARACTERS and 0 <= begin <= end < _LATEST_NS
        ):
            return what, begin - offset_ns, end - offset_ns
    raise _odd(name, "rows")
