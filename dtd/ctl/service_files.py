"""The files of a dtd service, their places, and the mark of an unchanged file.

The units and the example settings come with the package.  Each is written with a last line that
holds a hash of the rest: a file whose hash still matches can be replaced and removed, any other has
been changed by its administrator and is kept.  Writes nothing; `dtd.ctl.install` does.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import dtd
from dtd.errors import UsageError
from dtd.places import home_directory

SOURCE_BIN: Final = "/opt/dtd/bin/"
"""Directory of the daemons in the units' own text; replaced by the real one."""

_SEAL: Final = "# written by dtdctl install, unchanged while this is "
_SYSTEM_UNITS: Final = Path("/usr/local/lib/systemd/system")
_SYSTEM_SETTINGS: Final = Path("/etc/dtd")
_DECLARATIONS: Final = {
    "dtd.sysusers": Path("/usr/local/lib/sysusers.d/dtd.conf"),
    "dtd.tmpfiles": Path("/usr/local/lib/tmpfiles.d/dtd.conf"),
}
_OF_COORDINATOR: Final = ("dtd-coordinator.", "coordinator.")
_UNIT: Final = re.compile(r"dtd-.*\.(service|target)")
_NEEDS_SYSTEMD: Final = re.compile(r"systemd-([0-9]+)\.conf")
_PLAIN_PATH: Final = re.compile(r"[A-Za-z0-9/._+@-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The units to install, and for the host or a user.

    Attributes:
        coordinator: the coordinator's unit and settings.
        worker: the workers' units and settings.
        config_home: a user's configuration directory; None: for the whole host.
    """

    coordinator: bool
    worker: bool
    config_home: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFile:
    """One file of an installation: where it belongs and what stands in it."""

    path: Path
    text: str


def shipped(name: str) -> Path:
    """A directory that comes with dtd: "units" or "examples".

    It lies in the package once that is installed, and in the repository before.
    """
    package = Path(dtd.__file__).parent
    in_repository = {"units": "systemd", "examples": "docs/examples"}[name]
    installed = package / name
    return installed if installed.is_dir() else package.parent / in_repository


def service_files(parts: Parts, *, daemons: Path, systemd_version: int) -> list[ServiceFile]:
    """All files of these parts.

    Args:
        parts: the units to install.
        daemons: the directory of dtd-coordinator and dtd-worker.
        systemd_version: drop-ins for newer ones are left out.

    Raises:
        UsageError: a unit cannot name that directory.
    """
    if not _PLAIN_PATH.fullmatch(str(daemons)):
        raise UsageError(
            f"a unit cannot name the directory {str(daemons)!r}",
            remedy="install dtd in a path that has only letters, digits and . _ + @ -, such as "
            "/opt/dtd",
        )
    found = []
    for source, target in _places(parts.config_home):
        needs = _NEEDS_SYSTEMD.search(source.name)
        if not _is_wanted(parts, source) or (needs and int(needs[1]) > systemd_version):
            continue
        text = source.read_text("utf-8").replace(SOURCE_BIN, f"{daemons}/")
        found.append(ServiceFile(path=target, text=sealed(text)))
    return found


def data_patterns(parts: Parts) -> list[tuple[Path, str]]:
    """Directories and patterns of files that only daemons and administrators create."""
    if parts.config_home is None:
        state, settings = Path("/var/lib/dtd"), _SYSTEM_SETTINGS
        caches = [(Path("/var/cache/dtd"), "worker-*")]
    else:
        state = home_directory(remedy="set HOME") / ".local/state/dtd"
        settings = parts.config_home / "dtd"
        caches = []
    of_coordinator = [(state, "coordinator")]
    of_workers = [
        *((state, "worker-*"), (state, "workers")),
        *((settings, "worker.credential"), (settings, "worker-*.env")),
    ]
    return of_coordinator * parts.coordinator + (of_workers + caches) * parts.worker


def sealed(text: str) -> str:
    """The text with the line that tells whether it was changed after installation."""
    return f"{text}{_SEAL}{_digest(text)}\n"


def is_ours(text: str) -> bool:
    """Whether the file is unchanged since it was written."""
    body, seal, digest = text.rpartition(_SEAL)
    return bool(seal) and digest == f"{_digest(body)}\n"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _places(config_home: Path | None) -> Iterator[tuple[Path, Path]]:
    """Every source with its target; the same ones whatever is wanted."""
    root = shipped("units")
    units = root if config_home is None else root / "user"
    unit_home = _SYSTEM_UNITS if config_home is None else config_home / "systemd/user"
    settings_home = _SYSTEM_SETTINGS if config_home is None else config_home / "dtd"
    if config_home is None:
        yield from ((root / name, target) for name, target in _DECLARATIONS.items())
    for source in sorted(path for path in units.iterdir() if path.name.startswith("dtd-")):
        if source.is_dir():
            drop_ins = sorted(source.glob("*.conf"))
            yield from ((file, unit_home / source.name / file.name) for file in drop_ins)
        elif _UNIT.fullmatch(source.name):
            yield source, unit_home / source.name
    for source in sorted((root / "etc").iterdir()):
        yield source, settings_home / source.name


def _is_wanted(parts: Parts, source: Path) -> bool:
    if source.name in _DECLARATIONS:
        return True
    owner = source.parent if source.parent.name.endswith(".d") else source
    return parts.coordinator if owner.name.startswith(_OF_COORDINATOR) else parts.worker
