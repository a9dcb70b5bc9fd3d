"""`dtdctl install` and `uninstall`: install the daemons as systemd services, and remove them.

Both can be repeated.  The units and the example settings come with the package.  Each is written
with a last line that holds a hash of the rest: a file whose hash still matches can be replaced and
removed, any other has been changed by its administrator, and is kept and reported.  With `--prefix`
or `--dry-run` systemd is not called; with `--dry-run` nothing is written either.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import dtd
from dtd.ctl import output
from dtd.ctl.settings import Settings
from dtd.errors import DtdError, UsageError
from dtd.host.places import config_home, home_directory

DAEMONS: Final = ("dtd-coordinator", "dtd-worker")
_HIDDEN: Final = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # noqa: S108
"""Directories that ProtectHome= and PrivateTmp= hide from a service."""

_RUNNING: Final = Path("/run/systemd/system")
_COMMAND_WITHIN_S: Final = 120.0
NEWEST_SYSTEMD: Final = 1 << 30
_OWN_DIRECTORIES: Final = ("dtd", "dtd-coordinator.service.d", "dtd-worker@.service.d")
SOURCE_BIN: Final = "/opt/dtd/bin/"
"""Directory of the daemons in the units' own text; replaced by the real one."""

_SEAL: Final = "# written by dtdctl install, unchanged while this is "
_SYSTEM_UNITS: Final = Path("/usr/local/lib/systemd/system")
_SYSTEM_SETTINGS: Final = Path("/etc/dtd")
_DECLARATIONS: Final = {
    "dtd.sysusers": Path("/usr/local/lib/sysusers.d/dtd.conf"),
    "dtd.tmpfiles": Path("/usr/local/lib/tmpfiles.d/dtd.conf"),
}
_OF_BOTH: Final = "dtd.conf"
_OF_COORDINATOR: Final = ("dtd-coordinator.", "coordinator.")
_UNIT: Final = re.compile(r"dtd-.*\.(service|target)")
_NEEDS_SYSTEMD: Final = re.compile(r"systemd-([0-9]+)\.conf")
_PLAIN_PATH: Final = re.compile(r"[A-Za-z0-9/._+@-]+")


@dataclass(slots=True, kw_only=True)
class Parts:
    """The units and settings to install, for the whole host or in a user's `config_home`."""

    coordinator: bool
    worker: bool
    config_home: Path | None = None


@dataclass(slots=True, kw_only=True)
class Installation(Parts):
    """One call of install or uninstall, its actions, and the root of the tree that it writes to."""

    prefix: Path | None = None
    dry_run: bool = False
    done: list[str] = field(default_factory=list)

    def place(self, path: Path) -> Path:
        """Return a host path's place in the tree that is written to."""
        return path if self.prefix is None else self.prefix / path.relative_to("/")

    def say(self, verb: str, past: str, what: object) -> None:
        """Note an action that was done, or would be."""
        self.done.append(f"{f'would {verb}' if self.dry_run else past} {what}")

    def run(self, *command: str) -> None:
        """Call systemd, where it is this host that is changed."""
        if self.prefix is not None:
            return
        why_not = _cannot_run(command)
        if why_not:
            self.done.append(f"skipped {' '.join(command)}: {why_not}")
            return
        if not self.dry_run:
            _run(command)
        self.say("run", "ran", " ".join(command))

    def systemctl(self, *arguments: str) -> None:
        self.run("systemctl", *(() if self.config_home is None else ("--user",)), *arguments)


def install(
    settings: Settings,
    *,
    coordinator: bool,
    worker: bool,
    user: bool,
    prefix: Path | None,
    dry_run: bool,
) -> None:
    """Write units and settings, and make systemd know them."""
    made = _installation(coordinator, worker, user, prefix, dry_run)
    _require_rights(made, "install")
    daemons = daemons_directory()
    _check_visible(made, daemons)
    version = _systemd_version()
    files = service_files(made, daemons=daemons, systemd_version=version)
    for path, text in files.items():
        _write(made, made.place(path), text)
    if made.config_home is None:
        declared = {path.parent.name: str(path) for path in files}
        made.run("systemd-sysusers", declared["sysusers.d"])
        made.run("systemd-tmpfiles", "--create", declared["tmpfiles.d"])
    made.systemctl("daemon-reload")
    _report(settings, made, _next_steps(made))


def uninstall(
    settings: Settings,
    *,
    coordinator: bool,
    worker: bool,
    user: bool,
    prefix: Path | None,
    dry_run: bool,
    purge: bool,
) -> None:
    """Stop the services and remove their files; with `purge` also settings and state."""
    made = _installation(coordinator, worker, user, prefix, dry_run)
    _require_rights(made, "uninstall")
    files = _all_files(made)
    _stop_services(made, {path.name for path in files if made.place(path).exists()})
    for path in files:
        if path.name != _OF_BOTH or not _other_part_remains(made):
            _remove(made, made.place(path), purge=purge)
    directories = {path.parent for path in files}
    if purge:
        for directory, pattern in data_patterns(made):
            directories.add(directory)
            for path in sorted(made.place(directory).glob(pattern)):
                _delete(made, path)
    _remove_empty_directories(made, directories)
    made.systemctl("daemon-reload")
    if not purge:
        made.done.append("kept state and credentials: --purge removes them")
    _report(settings, made, ())


def _stop_services(made: Installation, present: set[str]) -> None:
    if "dtd-worker@.service" in present:
        made.systemctl("stop", "dtd-workers.target", "dtd-worker@*.service")
        made.systemctl("disable", "dtd-workers.target", "dtd-worker@.service")
        made.systemctl("reset-failed", "dtd-worker@*.service")
    if "dtd-coordinator.service" in present:
        made.systemctl("disable", "--now", "dtd-coordinator.service")


def _write(made: Installation, path: Path, text: str) -> None:
    known = _read(path)
    if known == text:
        made.done.append(f"unchanged {path}")
        return
    if known is not None and not is_ours(known):
        made.done.append(f"kept {path}: it was changed after installation")
        return
    if not made.dry_run:
        temporary = path.with_name(f".{path.name}.new")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
            temporary.write_text(text, "utf-8")
            temporary.chmod(0o644)
            temporary.rename(path)
        except OSError as error:
            raise DtdError(f"{path} cannot be written: {error.strerror}") from error
    made.say("write", "wrote", path)


def _remove(made: Installation, path: Path, *, purge: bool) -> None:
    known = _read(path)
    if known is None:
        return
    if not purge and not is_ours(known):
        made.done.append(f"kept {path}: it was changed after installation; --purge removes it")
        return
    _delete(made, path)


def _delete(made: Installation, path: Path) -> None:
    try:
        if made.dry_run:
            pass
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError as error:
        raise DtdError(f"{path} cannot be removed: {error.strerror}") from error
    made.say("remove", "removed", path)


def _read(path: Path) -> str | None:
    """The file's text; None if there is none.  A file that is not text was not written by dtd."""
    try:
        return path.read_text("utf-8", "replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DtdError(f"{path} cannot be read: {error.strerror}") from error


def _remove_empty_directories(made: Installation, directories: Iterable[Path]) -> None:
    for path in sorted(map(made.place, directories)):
        if path.name in _OWN_DIRECTORIES and path.is_dir() and not any(path.iterdir()):
            _delete(made, path)


def _other_part_remains(made: Installation) -> bool:
    """Only one part goes, and the other one's unit is here."""
    other = Parts(
        coordinator=not made.coordinator, worker=not made.worker, config_home=made.config_home
    )
    paths = [path for path in _all_files(other) if path.suffix == ".service"]
    return any(made.place(path).exists() for path in paths)


def _all_files(parts: Parts) -> dict[Path, str]:
    """Return all files that install may have written; the daemons' place does not matter here."""
    return service_files(parts, daemons=Path("/"), systemd_version=NEWEST_SYSTEMD)


def _require_rights(made: Installation, command: str) -> None:
    elsewhere = made.dry_run or made.prefix is not None or made.config_home is not None
    if os.geteuid() != 0 and not elsewhere:
        raise UsageError(
            f"{command} changes the services of the whole host, which requires root",
            remedy=f"sudo dtdctl {command}, or for your own user's services: dtdctl {command} "
            "--user",
        )


def _check_visible(made: Installation, daemons: Path) -> None:
    hidden = hidden_place(daemons)
    if not hidden or made.config_home is not None:
        return
    problem = f"{hidden} is hidden from system services"
    remedy = "create the environment in /opt/dtd (python3 -m venv /opt/dtd), or install with --user"
    if made.prefix is None and not made.dry_run:
        raise UsageError(problem, remedy=remedy)
    made.done.append(f"warning: {problem}; {remedy}")


def _next_steps(made: Installation) -> list[str]:
    user = "" if made.config_home is None else "--user "
    steps = []
    if made.prefix is not None:
        steps.append("systemd-sysusers; systemd-tmpfiles --create; systemctl daemon-reload (there)")
    if made.coordinator:
        steps.append(f"systemctl {user}enable --now dtd-coordinator")
    if made.worker:
        steps += [
            "dtd-worker join TOKEN (if the coordinator is on another host: `dtdctl token create`)",
            f"systemctl {user}enable --now dtd-workers.target dtd-worker@cpu (or dtd-worker@cuda0)",
        ]
    if user:
        steps.append("loginctl enable-linger (to keep them running while you are not logged in)")
    return [*steps, f"dtdctl submit {shipped('examples') / 'digits.toml'}"]


def _report(settings: Settings, made: Installation, steps: Sequence[str]) -> None:
    if settings.as_json:
        output.print_json({"done": made.done, "next": list(steps)})
        return
    output.print_lines(made.done or ["nothing to do"])
    for step in steps:
        output.say(f"next: {step}")


def _installation(
    coordinator: bool, worker: bool, user: bool, prefix: Path | None, dry_run: bool
) -> Installation:
    both = coordinator == worker
    return Installation(
        coordinator=coordinator or both,
        worker=worker or both,
        config_home=config_home(remedy="set HOME") if user else None,
        prefix=prefix and prefix.absolute(),
        dry_run=dry_run,
    )


def daemons_directory() -> Path:
    """Return the directory of the running environment's daemons."""
    places = [Path(sys.argv[0]).absolute().parent, Path(sysconfig.get_path("scripts"))]
    for place in places:
        if all((place / name).is_file() for name in DAEMONS):
            return place
    raise UsageError(
        f"{' and '.join(DAEMONS)} are not in {places[-1]}",
        remedy="install dtd with pip, and use the dtdctl that it installs",
    )


def hidden_place(daemons: Path) -> str:
    """Return a path of dtd's environment that a system service could not see; empty if none."""
    for place in (daemons, Path(sys.executable).resolve()):
        if any(place.is_relative_to(hidden) for hidden in _HIDDEN):
            return str(place)
    return ""


def _systemd_version() -> int:
    """The version of this host's systemd; 0 if it has none."""
    if shutil.which("systemctl") is None:
        return 0
    match = re.search(r"systemd ([0-9]+)", _run(["systemctl", "--version"]))
    return int(match[1]) if match else 0


def _cannot_run(command: Sequence[str]) -> str:
    """Why a command of systemd's cannot be run here; empty: it can."""
    if shutil.which(command[0]) is None:
        return f"{command[0]} is not installed"
    if command[0] == "systemctl" and not _manager(for_user="--user" in command).exists():
        return "systemd is not running here"
    return ""


def _manager(*, for_user: bool) -> Path:
    """Return a path that exists while systemd runs: on this host, or for this user."""
    if not for_user:
        return _RUNNING
    return Path(os.environ.get("XDG_RUNTIME_DIR") or "/nonexistent") / "systemd/private"


def _run(command: Sequence[str]) -> str:
    """Run a command of systemd's and return its output."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_COMMAND_WITHIN_S
        )
    except subprocess.TimeoutExpired:
        raise DtdError(f"{' '.join(command)} did not end within {_COMMAND_WITHIN_S:g} s") from None
    if done.returncode != 0:
        why = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise DtdError(
            f"{' '.join(command)} failed: {why}", remedy="fix that, and run this command again"
        )
    return done.stdout


def shipped(name: str) -> Path:
    """A directory that comes with dtd: "units" or "examples".

    It lies in the package once that is installed, and in the repository before.
    """
    package = Path(dtd.__file__).parent
    in_repository = {"units": "systemd", "examples": "docs/examples"}[name]
    installed = package / name
    return installed if installed.is_dir() else package.parent / in_repository


def service_files(parts: Parts, *, daemons: Path, systemd_version: int) -> dict[Path, str]:
    """All files of these parts: where each belongs, and what stands in it."""
    if not _PLAIN_PATH.fullmatch(str(daemons)):
        raise UsageError(
            f"a unit cannot name the directory {str(daemons)!r}",
            remedy="install dtd in a path that has only letters, digits and . _ + @ -, such as "
            "/opt/dtd",
        )
    found = {}
    for source, target in _places(parts.config_home):
        needs = _NEEDS_SYSTEMD.search(source.name)
        if not _is_wanted(parts, source) or (needs and int(needs[1]) > systemd_version):
            continue
        text = source.read_text("utf-8").replace(SOURCE_BIN, f"{daemons}/")
        found[target] = sealed(text)
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
