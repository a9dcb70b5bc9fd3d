"""The modules beside a task's file that it imports, found in its source without executing it.

As with `python train.py`, a module in the folder of the task's file comes before an installed one.
Import statements count wherever they stand; a name that the code computes
(`importlib.import_module(name)`) cannot be seen.  `dtd.packages.pack` packs what is found.
"""

from __future__ import annotations

import ast
import importlib
import warnings
from collections.abc import Iterator
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from pathlib import Path
from typing import Final

from dtd.errors import TaskError
from dtd.packages.source import OWN_NAME, Source, source_of

_PACKAGE_FILE: Final = "__init__.py"
_UNREADABLE: Final = (SyntaxError, ValueError, RecursionError, MemoryError)
"""Errors of a file that is no Python, at least not of this version: its import will tell."""


def with_imports(task: Source, module: str) -> list[Source]:
    """Return the task's own package or module, then those in its folder that it needs, by name.

    Args:
        task: one that is installed has no folder of its own.
        module: dotted name of the module that contains the task.

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
