"""The search for a task's code: its package or module, and what it imports from its folder.

Finding executes nothing, not even a parent package, so that `dtdctl` needs none of what the task
needs.  The same search tells a worker what its own import is going to find.

As with `python train.py`, a module in the folder of the task's file comes before an installed one.
Import statements count wherever they stand; a name that the code computes
(`importlib.import_module(name)`) cannot be seen.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import site
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from pathlib import Path
from typing import Final

from dtd.errors import TaskError

OWN_NAME: Final = "dtd"
_INSTALLED_FOLDERS: Final = frozenset({"site-packages", "dist-packages"})
_PACKAGE_FILE: Final = "__init__.py"
_UNREADABLE: Final = (SyntaxError, ValueError, RecursionError, MemoryError)
"""Errors of a file that is no Python, at least not of this version: its import will tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A top-level package or module on this machine.

    Attributes:
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

    The folder "" is the current directory.

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


def with_imports(task: Source, module: str) -> list[Source]:
    """Return the task's own package or module, then those in its folder that it needs, by name.

    Raises:
        TaskError: a file of it cannot be read.
    """
    if task.installed or task.path is None:
        return [task]
    importlib.invalidate_caches()
    needed: dict[str, Source] = {}
    candidates: dict[str, Source | None] = {task.name: task}
    seen: set[str] = set()
    waiting = list(_with_parents(module))
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        top = name.partition(".")[0]
        if top not in candidates:
            candidates[top] = _beside(task.path.parent, top)
        source = candidates[top]
        file = _file_of(source, name) if source is not None else None
        if source is not None and file is not None:
            needed[top] = source
            package = name if file.name == _PACKAGE_FILE else name.rpartition(".")[0]
            waiting += _imported(file, package)
    needed.pop(task.name, None)
    return [task, *(needed[name] for name in sorted(needed))]


def imports_dtd(sources: Iterable[Source]) -> bool:
    """Whether a file of these packages and modules imports dtd.

    Raises:
        TaskError: a file cannot be read.
    """
    paths = [source.path for source in sources if source.path is not None]
    files = (file for path in paths for file in ([path] if path.is_file() else path.rglob("*.py")))
    return any(OWN_NAME in _imported(file, "") for file in files)


def _beside(folder: Path, name: str) -> Source | None:
    """The module that `import name` finds in the folder; None if Python looks elsewhere first."""
    if BuiltinImporter.find_spec(name) is not None or FrozenImporter.find_spec(name) is not None:
        return None
    spec = PathFinder.find_spec(name, [str(folder)])
    if spec is None:
        return None
    if not spec.has_location:  # a folder without __init__.py, perhaps of data
        elsewhere = PathFinder.find_spec(name)
        if elsewhere is not None and elsewhere.has_location:
            return None
    source = source_of(name, spec)
    is_dtd = name == OWN_NAME and source.path is not None and source.path.is_dir()
    return None if source.installed or is_dtd else source


def _file_of(source: Source, name: str) -> Path | None:
    """The file of a module; None for an attribute, or a folder that contains no such module."""
    assert source.path is not None
    inner = name.split(".")[1:]
    if not source.path.is_dir():
        return None if inner else source.path
    place = source.path.joinpath(*inner)
    files = [place / _PACKAGE_FILE, *([place.with_name(f"{place.name}.py")] if inner else [])]
    return next((file for file in files if file.is_file()), None)


def _imported(file: Path, package: str) -> Iterator[str]:
    """Names of modules that a file may import; some are those of functions and classes."""
    if file.suffix != ".py":
        return
    try:
        with warnings.catch_warnings(action="ignore"):  # the worker's import has the same ones
            tree = ast.parse(file.read_bytes())
    except OSError as error:
        raise TaskError(f"{file} cannot be read: {error.strerror}") from None
    except _UNREADABLE:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_parents(alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = _imported_from(node, package)
            yield from _with_parents(base)
            yield from (f"{base}.{alias.name}" for alias in node.names if base)


def _imported_from(node: ast.ImportFrom, package: str) -> str:
    """Absolute name of the module after `from`; empty if it is relative to no package."""
    if not node.level:
        return node.module or ""
    parents = package.split(".") if package else []
    kept = len(parents) - (node.level - 1)
    if kept < 1:
        return ""
    return ".".join([*parents[:kept], *([node.module] if node.module else [])])


def _with_parents(name: str) -> Iterator[str]:
    """Yield a.b.c, a.b and a, which are imported with a.b.c."""
    while name:
        yield name
        name = name.rpartition(".")[0]
