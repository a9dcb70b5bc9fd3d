"""The environments of jobs on this disk: packages that a job requires and the worker lacks.

    <state directory>/environments/<key>/
        bin/, lib/, ...    a virtual environment
        requirements.txt, installed.txt, log, tmp/
        complete           made last

An environment only adds packages.  pip sees what the worker has, and may replace nothing of it, so
that torch and whatever dtd needs are the worker's own.  The key is a hash of the requirements and
of all that the worker has.  Blocking; on the job's thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import site
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import structlog
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from dtd.cluster.figures import MAX_CHARACTERS
from dtd.errors import TaskError
from dtd.packages.requirements import MEMBER, parse
from dtd.text.shown import counted, shown_bytes
from dtd.worker.environment.guarded_process import GuardedProcess
from dtd.worker.environment.pip_log import INDEX_REMEDY, failure, last_line

log = structlog.get_logger()

ENVIRONMENTS: Final = "environments"
"""Name of the directory in a worker's state directory."""

TICK_S: Final = 0.5
_COMPLETE: Final = "complete"
_INSTALLED: Final = "installed.txt"
_LOG: Final = "log"
_KEY_CHARACTERS: Final = 24


class Environments:
    """The environments of one worker.

    Args:
        limit_bytes: most bytes of all of them; 0: the worker makes none.

    Attributes:
        doing: what is being done, in words; empty while nothing is.
        versions: of what the job requires, as they are found here; for comparison with others.
    """

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        self.doing = self.versions = ""
        self._directory, self._limit_bytes = directory, limit_bytes

    def use(self, package: Path, *, progress: Callable[[], None], patience_s: float) -> None:
        """Have imports, here and in child processes, find what a job's package requires.

        Raises:
            TaskError: the packages cannot be installed.
        """
        try:
            place = self._place(package)
            if not (place / _COMPLETE).is_file():
                self._make(place, (package / MEMBER).read_bytes(), progress, patience_s)
            os.utime(place / _COMPLETE)
        except OSError as error:
            raise TaskError(
                f"requirements: {error.filename or self._directory}: {error.strerror or error}",
                remedy="free space there, or choose another --state-dir",
            ) from None
        finally:
            self.doing = ""
        found = _packages_of(place)
        site.addsitedir(found)
        os.environ.update(with_path(found))
        importlib.invalidate_caches()
        self.versions = _versions(package / MEMBER)

    def made(self, package: Path) -> str:
        """The directory of packages that a job requires, if it was made before.

        Raises:
            TaskError: it was not.
        """
        place = self._place(package)
        if not (place / _COMPLETE).is_file():
            raise TaskError(
                "the job's requirements are not installed here yet",
                remedy="submit the job: its workers install them before they train",
            )
        return _packages_of(place)

    def _installed_here(self) -> list[str]:
        """Packages of this worker, as "name==version", sorted; the first of a name counts."""
        found: dict[str, str] = {}
        for one in importlib.metadata.distributions(path=self._packages_here()):
            try:
                name, version = canonicalize_name(one.metadata["Name"]), Version(one.version)
            except (InvalidVersion, TypeError):
                continue  # pip does not read it either
            found.setdefault(name, f"{name}=={version}")
        return sorted(found.values())

    def _packages_here(self) -> list[str]:
        """The directories of packages that are the worker's own."""
        return [
            one
            for one in sys.path
            if Path(one).name in ("site-packages", "dist-packages")
            and not Path(one).is_relative_to(self._directory)
        ]

    # --- making one --------------------------------------------------------------------------

    def _place(self, package: Path) -> Path:
        worker = [*self._installed_here(), sys.version, sysconfig.get_platform()]
        total = hashlib.sha256((package / MEMBER).read_bytes())
        total.update("\n".join(worker).encode())
        return self._directory / total.hexdigest()[:_KEY_CHARACTERS]

    def _make(
        self, place: Path, requirements: bytes, progress: Callable[[], None], patience_s: float
    ) -> None:
        if not self._limit_bytes:
            raise TaskError(
                "the job has requirements, and this worker makes no environments",
                remedy="raise environments_gib of that worker, or install the packages in its own"
                " environment and remove `requirements` from the job",
            )
        began_s = time.monotonic()
        shutil.rmtree(place, ignore_errors=True)  # begun by a process that was killed
        (place / "tmp").mkdir(parents=True, mode=0o700)
        (place / MEMBER).write_bytes(requirements)
        (place / _INSTALLED).write_text("".join(f"{one}\n" for one in self._installed_here()))
        try:
            for command in _commands(place):
                self._run(command, place, progress, patience_s)
            shutil.rmtree(place / "tmp")
            size_bytes = _size_bytes(place)
            self._make_room(place, size_bytes)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
        os.sync()  # a loss of power leaves no environment that only seems to be complete
        (place / _COMPLETE).write_text(str(size_bytes))
        seconds = round(time.monotonic() - began_s, 3)
        log.info("environment_made", environment=place.name, bytes=size_bytes, seconds=seconds)

    def _run(
        self, command: Sequence[str], place: Path, progress: Callable[[], None], patience_s: float
    ) -> None:
        with (place / _LOG).open("wb") as printed:
            process = GuardedProcess(command, self._variables(place), output=printed)
        moved_s, before_bytes = time.monotonic(), -1
        try:
            while process.code is None:
                process.wait(TICK_S)
                progress()
                size_bytes = _size_bytes(place)
                self._check_size(size_bytes)
                if size_bytes != before_bytes:
                    moved_s, before_bytes = time.monotonic(), size_bytes
                if time.monotonic() - moved_s > patience_s:
                    raise TaskError(
                        f"requirements: pip has done nothing for {patience_s:.0f} s;"
                        f" {last_line(place / _LOG)}",
                        remedy=INDEX_REMEDY,
                    )
                self.doing = f"requirements: installing, {shown_bytes(size_bytes)} so far"
        finally:
            process.end()
        if process.code:
            raise failure(place / _LOG)

    def _variables(self, place: Path) -> Mapping[str, str]:
        """Pip takes what lies on PYTHONPATH for installed, and leaves it alone."""
        return os.environ | {
            "PYTHONPATH": os.pathsep.join(self._packages_here()),
            "PYTHONNOUSERSITE": "1",
            "TMPDIR": str(place / "tmp"),
            "PIP_NO_INPUT": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > self._limit_bytes:
            raise TaskError(
                f"requirements: they take more than the {shown_bytes(self._limit_bytes)} that this"
                " worker keeps for environments",
                remedy="raise environments_gib of that worker",
            )

    def _make_room(self, place: Path, size_bytes: int) -> None:
        """Remove those that were used least recently, until all fit."""
        others = [one for one in self._directory.iterdir() if one != place]
        others.sort(key=_used_s, reverse=True)
        left_bytes = self._limit_bytes - size_bytes
        for one in others:
            left_bytes -= _recorded_bytes(one)
            if left_bytes < 0 or not _used_s(one):
                shutil.rmtree(one, ignore_errors=True)


def with_path(packages: str) -> dict[str, str]:
    """The variable by which child processes find the packages in this directory."""
    before = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": os.pathsep.join(filter(None, (before, packages)))}


def _commands(place: Path) -> list[list[str]]:
    """One that makes the virtual environment, and one that fills it."""
    without_pip = ["--without-pip"] if importlib.util.find_spec("pip") else []
    return [
        [sys.executable, "-P", "-m", "venv", *without_pip, str(place)],
        [
            *(str(place / "bin" / "python"), "-P", "-m", "pip", "install"),
            *("--progress-bar", "off", "--no-warn-script-location", "--no-warn-conflicts"),
            *("--constraint", str(place / _INSTALLED), "--requirement", str(place / MEMBER)),
        ],
    ]


def _versions(requirements: Path) -> str:
    """The version that was found of each requirement; a hash of that where it is long."""
    found = []
    for one in parse(requirements.read_text(), requirements):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # not for this system
            found.append(f"{one.name} {importlib.metadata.version(one.name)}")
    text = ", ".join(found)
    if len(text) <= MAX_CHARACTERS:
        return text
    return f"{counted(len(found), 'package')}, {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _packages_of(place: Path) -> str:
    return sysconfig.get_path("purelib", "venv", vars={"base": str(place)})


def _size_bytes(place: Path) -> int:
    """Bytes of all files below, some of which may go meanwhile."""
    total = 0
    for folder, _, files in os.walk(place):
        for file in files:
            try:
                total += Path(folder, file).lstat().st_size
            except OSError:
                continue
    return total


def _used_s(place: Path) -> float:
    """When it was used last; 0 if it is not complete."""
    try:
        return (place / _COMPLETE).stat().st_mtime
    except OSError:
        return 0.0


def _recorded_bytes(place: Path) -> int:
    try:
        return int((place / _COMPLETE).read_text())
    except (OSError, ValueError):
        return 0
