"""The grammar of names, the same on both sides of every connection and in every file.

Invalid names are reported where they are chosen (`--name`, the job file, a task's metrics()) and
refused by every receiver, so that a name never breaks a line, a path or a list.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

MOST_CHARACTERS: Final = 64
NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
"""Workers, people and their credentials, jobs as their files call them."""
NAME_WORDS: Final = (
    "1 to 64 letters, digits, dots, dashes or underscores, the first one a letter or digit"
)
_IDENTIFIER: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_DOTTED: Final = rf"{_IDENTIFIER}(\.{_IDENTIFIER})*"
REFERENCE: Final = rf"{_DOTTED}:{_DOTTED}"
"""A task that is imported: "package.module:attribute"."""
SCRIPT: Final = ":__main__"
"""End of a reference to a script, "train:__main__", which runs its own loop (`dtd.join`)."""
LAUNCHED: Final = ":__launch__"
"""End of a reference to a script that does not join: workers start it as torchrun does."""
MOST_STEPS: Final = 10**12
"""`job.steps` of a job of `dtdctl run`, whose script sets its steps and its batch size itself."""
DIGEST: Final = r"[0-9a-f]{64}"
"""Packages and files of weights: a sha256."""
METRIC_CHARACTERS: Final = 100
METRIC_WORDS: Final = f"1 to {METRIC_CHARACTERS} printable characters"
_NAME: Final = re.compile(NAME)
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._-]")


def is_name(text: str) -> bool:
    """Whether the text is a valid name of a worker, a user or a job."""
    return _NAME.fullmatch(text) is not None


def is_metric(text: str) -> bool:
    """Whether the text is a valid name of a metric: any single visible line."""
    return 0 < len(text) <= METRIC_CHARACTERS and text.isprintable()


def name_of(text: str, most: int = MOST_CHARACTERS) -> str:
    """A valid name derived from a host or user name; empty if no valid character is left."""
    return _NOT_IN_NAMES.sub("-", text).lstrip("._-")[:most]


@lru_cache(maxsize=1024)
def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key that puts worker-10 after worker-9."""
    return tuple(
        (0, int(part), "") if part.isdigit() else (1, 0, part)
        for part in re.split(r"(\d+)", name)
        if part
    )
