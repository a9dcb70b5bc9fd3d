"""The packages that a job's code needs, as a requirements file or a pyproject.toml names them.

`dtdctl` reads the file that `[environment]` names and ships it with the task's package, a
requirement a line under a name of its own; a worker reads that again.  Names, versions, markers
and hashes count.  Where packages come from is for each host to say, so an option or an address in
such a file is refused.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from dtd.errors import TaskError
from dtd.text.shown import shown
from dtd.text.toml_source import CONTENT_ERRORS, content_fault, read_text

MEMBER: Final = "requirements.txt"
"""Name of the file in a job's archive, beside the task's modules."""
MAX_BYTES: Final = 1 << 20
MAX_REQUIREMENTS: Final = 1000

_COMMENT: Final = re.compile(r"(^|\s)#.*$")
_HASH: Final = re.compile(r"\s--hash[= ](sha(?:256|384|512):[0-9a-f]{64,128})(?=\s|$)")
_OF_THE_HOST: Final = (
    *("-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--no-index"),
    *("--trusted-host", "--proxy", "--cert"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One requirement; `hashes` as "sha256:HEX", empty: any file will do."""

    requirement: Requirement
    hashes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """As indexes spell it."""
        return canonicalize_name(self.requirement.name)

    def __str__(self) -> str:
        return " ".join((str(self.requirement), *(f"--hash={one}" for one in self.hashes)))


def read(path: Path) -> list[Wanted]:
    """The requirements in a file: `[project] dependencies` of a .toml, lines of any other.

    Raises:
        TaskError: it cannot be read, or says what is none.
    """
    try:
        text = read_text(path, limit_bytes=MAX_BYTES)
        if path.suffix == ".toml":
            return _checked(_of_project(tomllib.loads(text), path), path)
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror or error}") from None
    except CONTENT_ERRORS as error:
        raise TaskError(f"{path}: {content_fault(error)}") from None
    return parse(text, path)


def parse(text: str, source: Path) -> list[Wanted]:
    """The requirements in a text, sorted by name.

    Raises:
        TaskError: a line is none, or there are too many.
    """
    return _checked(_lines(text), source)


def encode(wanted: list[Wanted]) -> bytes:
    """The file as it is shipped; the same requirements give the same bytes."""
    return "".join(f"{one}\n" for one in wanted).encode()


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """Lines without comments, those joined that a backslash continues; with their place."""
    begun = ""
    for number, line in enumerate(text.splitlines(), 1):
        begun += _COMMENT.sub("", line)
        if begun.endswith("\\"):
            begun = begun[:-1] + " "
            continue
        if begun.strip():
            yield f"line {number}", begun.strip()
        begun = ""
    if begun.strip():
        yield "the last line", begun.strip()


def _of_project(raw: dict[str, Any], path: Path) -> Iterator[tuple[str, str]]:
    project = raw.get("project")
    given = project.get("dependencies") if isinstance(project, dict) else None
    if not isinstance(given, list):
        raise TaskError(
            f"{path} has no list [project] dependencies",
            remedy="add it, or name a requirements file: `uv export --no-emit-project` or"
            " `pip freeze` writes one",
        )
    for number, one in enumerate(given):
        yield f"[project] dependencies[{number}]", str(one)


def _checked(lines: Iterator[tuple[str, str]], source: Path) -> list[Wanted]:
    found: dict[str, Wanted] = {}
    for place, line in lines:
        one = _wanted(line, f"{source}, {place}")
        found[str(one)] = one
        if len(found) > MAX_REQUIREMENTS:
            raise TaskError(f"{source} has more than {MAX_REQUIREMENTS} requirements")
    return sorted(found.values(), key=str)


def _wanted(line: str, place: str) -> Wanted:
    option = re.split(r"[\s=]", line, maxsplit=1)[0]
    if option in _OF_THE_HOST:
        raise TaskError(
            f"{place}: {option} is for each host to say, not for a job",
            remedy="remove the line; a host's index is set in its /etc/pip.conf or with"
            " PIP_INDEX_URL",
        )
    if line.startswith("-"):
        raise TaskError(
            f"{place}: {shown(option)} is not supported",
            remedy="name packages with versions only, as `uv export --no-emit-project` or"
            " `pip freeze` does",
        )
    bare = _HASH.sub("", f"{line} ").strip()
    try:
        requirement = Requirement(bare)
    except InvalidRequirement as error:
        why = str(error).splitlines()[0]
        raise TaskError(f"{place}: {shown(bare)} is not a requirement: {why}") from None
    if requirement.url:
        raise TaskError(
            f"{place}: {requirement.name} has an address, and packages come from the host's index",
            remedy="name its version, or put its code beside the task, which ships it",
        )
    return Wanted(requirement=requirement, hashes=tuple(_HASH.findall(f"{line} ")))
