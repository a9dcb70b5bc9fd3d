"""A host: a systemd of its own over a copy of this machine's files that is kept in memory.

`systemd-nspawn` boots it in a mount namespace that only this process holds, so whatever becomes of
this process, nothing stays mounted.  What the host writes survives reboots and power cuts, as on a
disk, and ends with `close`.  Also what systemd and the host's journal report about a unit.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dtd.errors import DtdError
from scripts.cluster.namespaces import Ethernet, Namespace, may_make
from scripts.cluster.processes import Child, stop_all

# --- whether hosts can be booted here -------------------------------------------------------------


# Each with the package of Debian's that has it.
_PROGRAMS: Final = {
    "systemd-nspawn": "systemd-container",
    "systemctl": "systemd",
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "mount": "mount",
}
_SYSTEMD: Final = Path("/usr/lib/systemd/systemd")


def why_not() -> str:
    """The reason why no host can be booted here; empty: it can be tried."""
    if os.geteuid() != 0:
        return "only root can boot hosts"
    for program, package in _PROGRAMS.items():
        if shutil.which(program) is None:
            return f"{program} is not installed (apt-get install {package})"
    if not _SYSTEMD.exists():
        return "this machine's files have no systemd to boot (apt-get install systemd)"
    if not all(may_make(kind) for kind in ("net", "mnt")):
        return "this process may not make namespaces: it is in a container without privileges"
    if not any(os.access(root, os.W_OK) for root in hierarchies()):
        return "no hierarchy of control groups is mounted that can be written to"
    return _cannot_mount() or _cannot_shape()


def _cannot_mount() -> str:
    """Try the parts of a host's disk."""
    space = Namespace("mnt")
    try:
        with tempfile.TemporaryDirectory(prefix="dtd-systemd-") as directory:
            space.run("mount", "--make-rprivate", "/")
            space.run("mount", "-t", "tmpfs", "dtd", directory)
            upper, work, root = (f"{directory}/{name}" for name in ("upper", "work", "root"))
            space.run("mkdir", upper, work, root)
            layers = f"lowerdir=/,upperdir={upper},workdir={work}"
            space.run("mount", "-t", "overlay", "-o", layers, "dtd", root)
    except subprocess.CalledProcessError as error:
        return f"overlay file systems cannot be mounted here: {_said(error)}"
    finally:
        space.close()
    return ""


def _cannot_shape() -> str:
    """Try the parts of a cable."""
    space = Namespace("net")
    try:
        space.run("ip", "link", "add", "name", "a", "type", "veth", "peer", "name", "b")
        space.run("ip", "link", "add", "name", "c", "type", "bridge")
        bucket = ("tbf", "rate", "1gbit", "burst", "256kb", "latency", "50ms")
        space.run("tc", "qdisc", "add", "dev", "a", "root", *bucket)
    except subprocess.CalledProcessError as error:
        return f"the kernel lacks a part of the network: {_said(error)}"
    finally:
        space.close()
    return ""


def _said(error: subprocess.CalledProcessError) -> str:
    return " ".join(error.stderr.decode(errors="replace").split())


# --- a control group for each host, so that no systemd finds the units of another one -------------


_MOUNTS: Final = Path("/proc/self/mounts")
_NAME: Final = re.compile(r"dtd-systemd-([0-9]+)-.+")
_EMPTY_WITHIN_S: Final = 60.0


class ControlGroups:
    """One group in each hierarchy that systemd uses: cgroup2, and its own where there are both.

    Args:
        name: of the host.
    """

    def __init__(self, name: str) -> None:
        self._groups = [root / f"dtd-systemd-{os.getpid()}-{name}" for root in hierarchies()]

    def shell_lines(self) -> str:
        """Make the groups; returns the lines that bring the shell that runs them into them."""
        for group in self._groups:
            _remove_stale(group.parent)
            group.mkdir(exist_ok=True)
        return "".join(f"echo $$ > {group}/cgroup.procs\n" for group in self._groups)

    def close(self) -> None:
        """Remove the groups, once the last process in them has ended."""
        deadline_s = time.monotonic() + _EMPTY_WITHIN_S
        for group in self._groups:
            while not _remove(group) and time.monotonic() < deadline_s:
                time.sleep(0.05)


def hierarchies() -> list[Path]:
    """Return the mount points of systemd's control groups; empty if there are none."""
    found = []
    for line in _MOUNTS.read_text("utf-8").splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup2" or (kind == "cgroup" and "name=systemd" in options.split(",")):
            found.append(Path(place))
    return found


def _remove(group: Path) -> bool:
    """Whether the group and all below it are gone."""
    for directory, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):
            Path(directory).rmdir()
    return not group.exists()


def _remove_stale(root: Path) -> None:
    for group in root.glob("dtd-systemd-*"):
        match = _NAME.fullmatch(group.name)
        if match and not Path("/proc", match[1]).exists():
            _remove(group)


# --- the network between hosts --------------------------------------------------------------------

RATE: Final = "1gbit"


def lan(names: Sequence[str]) -> Ethernet:
    """One Ethernet for the hosts of these names, with cables of limited rate."""
    return Ethernet(
        names, shape=("tbf", "rate", RATE, "burst", "256kb", "latency", "50ms"), resolved=False
    )


# --- a host ---------------------------------------------------------------------------------------


_DISK_SIZE: Final = "2g"
_BOOT_S: Final = 180.0
_DOWN_S: Final = 120.0
_COMMAND_S: Final = 180.0
_LOOK_EVERY_S: Final = 0.05
_ASKS_FOR_REBOOT: Final = 133
"""Exit status by which systemd-nspawn asks its caller to boot the host again."""

_PATH: Final = "/opt/dtd/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NSPAWN: Final = Path("/run/systemd/nspawn")
# Services of this machine that a copy of it needs not start.
_MASKED: Final = ("systemd-firstboot.service", "systemd-networkd-wait-online.service")


class Host:
    """One host, switched off at first.

    Args:
        name: its host name.
        directory: empty; for what this machine keeps of it.
        network: path of its network namespace.
        neighbours: lines of /etc/hosts for the others.
        binds: directories of this machine that it sees, by its own path, read only.
    """

    def __init__(
        self,
        name: str,
        *,
        directory: Path,
        network: str,
        neighbours: str = "",
        binds: Mapping[Path, Path] | None = None,
    ) -> None:
        self.name = name
        self._network = network
        self._binds = dict(binds or {})
        self._console = directory / "console"
        self._groups = ControlGroups(name)
        self._mounts = Namespace("mnt")
        self._root = directory / "root"
        self._machine: Child | None = None
        self._mount(directory / "disk")
        self._write("/etc/hostname", f"{name}\n")
        self._write("/etc/machine-id", f"{uuid.uuid4().hex}\n")
        # As Debian's installer does: the own name is an address that no other host can reach.
        self._write("/etc/hosts", f"127.0.0.1 localhost\n127.0.1.1 {name}\n{neighbours}")

    # --- power ---------------------------------------------------------------------------------

    def boot(self) -> None:
        """Switch it on, and wait until systemd has started what is enabled.

        Raises:
            DtdError: it does not boot in time.
        """
        self._machine = Child(self.name, ["/bin/sh", "-ec", self._script()], self._console)
        self._machine.start()
        self._await_systemd()

    def reboot(self) -> None:
        """Restart it in good order, and wait until it is up again.

        Raises:
            DtdError: it does not come back in time.
        """
        assert self._machine is not None
        self.attempt("systemctl", "reboot")
        if self._machine.wait(_DOWN_S) != _ASKS_FOR_REBOOT:
            raise DtdError(f"{self.name} has not gone down to reboot within {_DOWN_S:g} s")
        self.boot()

    def cut_power(self) -> None:
        """Everything on it ends at once; `boot` switches it on again."""
        assert self._machine is not None
        leader = self._leader()
        if leader:
            os.kill(leader, signal.SIGKILL)
        self._machine.wait(_DOWN_S)
        stop_all([self._machine])

    def close(self) -> None:
        """Switch it off and forget all that it wrote."""
        if self._machine is not None and self._machine.started:
            self.cut_power()
        self._groups.close()
        self._mounts.close()

    @property
    def is_on(self) -> bool:
        """Whether a systemd runs on it."""
        return self._leader() != 0

    # --- use -----------------------------------------------------------------------------------

    def run(
        self,
        *command: str,
        timeout_s: float = _COMMAND_S,
    ) -> str:
        """Run a program on it, as root, and return its output.

        Args:
            command: program and arguments.
            timeout_s: it is killed after so long.

        Raises:
            DtdError: it failed, with its output; or the host is off, or time ran out.
        """
        done = self.attempt(*command, timeout_s=timeout_s)
        if done.returncode != 0:
            said = " ".join((done.stderr or done.stdout).split())[-600:]
            raise DtdError(
                f"{self.name}: {shlex.join(command)[:200]} failed with {done.returncode}: {said}"
            )
        return done.stdout

    def attempt(
        self,
        *command: str,
        timeout_s: float = _COMMAND_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on it, as root, whatever comes of it; arguments as for `run`.

        Raises:
            DtdError: the host is off, or time ran out.
        """
        leader = self._leader()
        if not leader:
            raise DtdError(f"{self.name} is off")
        try:
            return subprocess.run(
                ["/usr/bin/nsenter", "-t", str(leader), "-a", *command],
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                check=False,
                timeout=timeout_s,
                env={"PATH": _PATH, "HOME": "/root", "LANG": "C.UTF-8"},
            )
        except subprocess.TimeoutExpired:
            what = shlex.join(command)[:200]
            raise DtdError(f"{self.name}: {what} did not end within {timeout_s:g} s") from None

    def write(self, path: str, text: str) -> None:
        """Write a file on it."""
        self.run(
            "/bin/sh", "-c", 'mkdir -p "$(dirname "$1")"; printf %s "$2" > "$1"', "sh", path, text
        )

    # --- inside --------------------------------------------------------------------------------

    def _mount(self, disk: Path) -> None:
        """Its root: this machine's files below, its own above, and nothing that is enabled."""
        upper, work = disk / "upper", disk / "work"
        for directory in (disk, self._root):
            directory.mkdir()
        _NSPAWN.mkdir(parents=True, exist_ok=True)
        space = self._mounts
        space.run("mount", "--make-rprivate", "/")
        space.run("mount", "-t", "tmpfs", "-o", f"size={_DISK_SIZE},mode=755", "dtd", str(disk))
        # Its notes of running machines; it insists on memory, which /run is not everywhere.
        space.run("mount", "-t", "tmpfs", "-o", "mode=755", "dtd", str(_NSPAWN))
        space.run("mkdir", str(upper), str(work))
        layers = f"lowerdir=/,upperdir={upper},workdir={work}"
        space.run("mount", "-t", "overlay", "-o", layers, "dtd", str(self._root))
        for unwanted in ("etc/systemd/system", "var/log/journal", "etc/dtd", "var/lib/dtd"):
            space.run("rm", "-rf", str(self._root / unwanted))
        units = self._root / "etc/systemd/system"
        space.run("mkdir", "-p", str(units), str(self._root / "var/log/journal"))
        for unit in _MASKED:
            space.run("ln", "-s", "/dev/null", str(units / unit))

    def _write(self, path: str, text: str) -> None:
        target = self._root / path.lstrip("/")
        self._mounts.run("rm", "-f", str(target))  # it may be a link
        self._mounts.inside(lambda: target.write_text(text, "utf-8"))

    def _script(self) -> str:
        """Enter control groups and mounts, and become the machine."""
        command = [
            *("systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--boot"),
            *("--directory", str(self._root), "--hostname", self.name),
            *("--machine", f"dtd-{os.getpid()}-{self.name}"),
            f"--network-namespace-path={self._network}",
            *("--resolv-conf=off", "--timezone=off", "--link-journal=no", "--console=pipe"),
            "--system-call-filter=bpf",  # with which systemd filters addresses
            *(f"--bind-ro={source}:{target}" for target, source in self._binds.items()),
            "systemd.show_status=0",
        ]
        words = shlex.join(self._mounts.wrapped(command))
        return f"{self._groups.shell_lines()}SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 exec {words}"

    def _leader(self) -> int:
        """The process id of its systemd as this machine counts; 0 while it is off."""
        if self._machine is None or self._machine.exit_code() is not None:
            return 0
        pid = self._machine.pid
        with contextlib.suppress(OSError):
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("utf-8").split():
                ids = _namespace_ids(int(child))
                if len(ids) > 1 and ids[-1] == "1":
                    return int(child)
        return 0

    def _await_systemd(self) -> None:
        def up() -> bool:
            with contextlib.suppress(DtdError):
                state = self.attempt("systemctl", "is-system-running").stdout.strip()
                return state in ("running", "degraded")
            return False

        self._until(up, _BOOT_S, "has not booted")

    def _until(self, holds: Callable[[], bool], within_s: float, otherwise: str) -> None:
        deadline_s = time.monotonic() + within_s
        while not holds():
            assert self._machine is not None
            if self._machine.exit_code() is not None:
                said = "; ".join(self._machine.log_tail()[-5:])
                raise DtdError(f"{self.name} has gone off: {said}")
            if time.monotonic() > deadline_s:
                raise DtdError(f"{self.name} {otherwise} within {within_s:g} s")
            time.sleep(_LOOK_EVERY_S)


def _namespace_ids(pid: int) -> Sequence[str]:
    """A process's ids, the outermost first."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text("utf-8").splitlines():
            if line.startswith("NSpid:"):
                return line.split()[1:]
    return ()


_PROPERTIES: Final = ("ActiveState", "Result", "NRestarts", "MainPID", "InvocationID", "StatusText")
_MANAGER: Final = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """`systemctl show`; `start_id` is another one each time that it is started."""

    active: str
    result: str
    restarts: int
    pid: int
    start_id: str
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A line of the journal.

    Attributes:
        at_s: when, in Unix time.
        pid: of the process that wrote it.
        by_manager: it was systemd that wrote it.
        text: the line.
        event: the daemon's name of it; empty if it is no event.
        fields: its other fields.
    """

    at_s: float
    pid: int
    by_manager: bool
    text: str
    event: str = ""
    fields: dict[str, Any] = field(default_factory=dict)


def show(host: Host, unit: str) -> Unit:
    """Return systemd's properties of a unit."""
    said = host.run("systemctl", "show", unit, f"--property={','.join(_PROPERTIES)}")
    found = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    return Unit(
        active=found["ActiveState"],
        result=found["Result"],
        restarts=int(found["NRestarts"]),
        pid=int(found["MainPID"]),
        start_id=found["InvocationID"],
        status=found["StatusText"],
    )


def journal(host: Host, unit: str, *, since_s: float = 0.0) -> list[Entry]:
    """Return the journal of a unit, and of systemd about it, on all boots, oldest first."""
    options = (
        "--output=json",
        "--no-pager",
        "--quiet",
        f"--unit={unit}",
        f"--since=@{since_s:.6f}",
    )
    return list(_entries(host.run("journalctl", *options)))


def _entries(text: str) -> Iterator[Entry]:
    for line in text.splitlines():
        found = json.loads(line)
        message = found.get("MESSAGE")
        if not isinstance(message, str):  # bytes that are no text come as numbers
            message = bytes(message or ()).decode("utf-8", "replace")
        fields = _fields(message)
        yield Entry(
            at_s=int(found["__REALTIME_TIMESTAMP"]) / 1e6,
            pid=int(found.get("_PID", 0)),
            by_manager=found.get("_PID") == _MANAGER,
            text=message,
            event=str(fields.pop("event", "")),
            fields=fields,
        )


def _fields(message: str) -> dict[str, Any]:
    if not message.startswith("{"):
        return {}
    try:
        return dict(json.loads(message))
    except ValueError:
        return {}
