"""Tags and a note that people give to a job.  Pure.

A tag is a word by which jobs are found again; a note is free text.  Neither affects training.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from dtd.errors import RequestRefused
from dtd.rules import did_you_mean
from dtd.shown import shown

MAX_TAGS: Final = 32
"""Most tags of one job."""
MAX_TAG_CHARACTERS: Final = 64
MAX_NOTE_CHARACTERS: Final = 4000
_TAG: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+-]{0,63}")
_TAG_WORDS: Final = (
    f"1 to {MAX_TAG_CHARACTERS} letters, digits or . _ : / + -, the first one a letter or digit"
)


def tagged(tags: Sequence[str], *, add: Iterable[str], remove: Iterable[str]) -> tuple[str, ...]:
    """The tags of a job after some were added and some removed, sorted.

    Raises:
        RequestRefused: a tag is not valid, one that is to go is not there, or there are too many.
    """
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
    """The tag, if it is one.

    Raises:
        RequestRefused: it is not.
    """
    if not _TAG.fullmatch(tag):
        raise RequestRefused(f"{shown(tag)} is not a tag", remedy=f"use {_TAG_WORDS}")
    return tag


def checked_note(note: str) -> str:
    """The note, if it is short enough.

    Raises:
        RequestRefused: it is too long.
    """
    if len(note) > MAX_NOTE_CHARACTERS:
        raise RequestRefused(
            f"a note may have {MAX_NOTE_CHARACTERS} characters, not {len(note)}",
            remedy="put the rest into a file, and its name into the note",
        )
    return note
