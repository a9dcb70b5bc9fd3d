"""The search for a task's code: its top-level package or module, without importing it.

Finding executes nothing, not even a parent package, so that `dtdctl` needs none of what the task
needs.  The same search tells a worker what its own import is going to find.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Final

from dtd.errors import TaskError

OWN_NAME: Final = "dtd"
_INSTALLED_FOLDERS: Final = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A top-level package or module on this machine.

    Attributes:
        name: as it is imported.
        path: the package's directory, or the module's file; None: it has no files of its own.
        installed: it lies where installers put things, so others have it from an installer too.
    """

    name: str
    path: Path | None
    installed: bool


def top_level_name(reference: str) -> str:
    """The top-level name of "package.module:attribute"; empty for a built-in task."""
    colon = ":" in reference
    name = module_name(reference).partition(".")[0]
    return name if colon and name != OWN_NAME else ""


def module_name(reference: str) -> str:
    """The dotted name of the module in "package.module:attribute"."""
    return reference.partition(":")[0]


def find_source(name: str, folders: Iterable[str | Path]) -> Source | None:
    """The package or module that importing `name` would find with these folders on the path.

    Args:
        name: a top-level name.
        folders: where to look, first to last; "" is the current directory.

    Raises:
        TaskError: it is in several directories at once.
    """
    importlib.invalidate_caches()
    spec = PathFinder.find_spec(name, _distinct(folders))
    if spec is None and name not in sys.modules:
        spec = importlib.util.find_spec(name)  # editable installs have finders of their own
    if spec is None:
        return None
    return source_of(name, spec)


def source_of(name: str, spec: ModuleSpec) -> Source:
    """The package or module that Python's import system has found.

    Raises:
        TaskError: it is in several directories at once.
    """
    path = _path_of(name, spec)
    return Source(name=name, path=path, installed=path is None or _is_installed(path))


def _path_of(name: str, spec: ModuleSpec) -> Path | None:
    if spec.submodule_search_locations is None:
        return Path(spec.origin).resolve() if spec.has_location and spec.origin else None
    if spec.origin is not None and spec.has_location:
        return Path(spec.origin).resolve().parent
    portions = [str(Path(portion).resolve()) for portion in spec.submodule_search_locations]
    if len(portions) != 1:
        raise TaskError(
            f"package {name} is in several directories at once: {', '.join(portions)}",
            remedy=f"put an __init__.py into the intended one, {name}/__init__.py",
        )
    return Path(portions[0])


def _distinct(folders: Iterable[str | Path]) -> Sequence[str]:
    return list(dict.fromkeys(os.path.realpath(folder or os.curdir) for folder in folders))


def _is_installed(path: Path) -> bool:
    """Whether an installer put it there, or Python came with it."""
    if not _INSTALLED_FOLDERS.isdisjoint(path.parts):
        return True
    places = {sysconfig.get_path(key) for key in ("purelib", "platlib", "stdlib", "platstdlib")}
    places |= {*site.getsitepackages(), site.getusersitepackages()}
    return any(path.is_relative_to(os.path.realpath(place)) for place in places if place)
