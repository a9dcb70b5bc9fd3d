"""dtd on several hosts, set up as an administrator would.

The first host has the coordinator, all have a worker, and the last one is where the operator sits.
dtd lies in a virtual environment in /opt/dtd.  It is built from the checkout as for a package
index, so that what the package lacks is missing here too.  What it needs is not copied: the
environment that runs this script lends its packages and its interpreter, which hosts see below /opt
and read only, because services are not shown what lies in a home directory.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import sysconfig
import time
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from dtd.errors import DtdError
from tests.system.host import Host, Unit, journal, lan, show

WORKER: Final = "dtd-worker@cpu.service"
COORDINATOR: Final = "dtd-coordinator.service"
WATCHDOG_S: Final = 8
_PORT: Final = 7117
_HURRY: Final = "/etc/dtd/hurry"
_JOB_DIRECTORY: Final = "/srv/job"
_LOOK_EVERY_S: Final = 0.2
_RECENT_S: Final = 20.0
_START_S: Final = 180.0
# What `systemctl edit dtd-worker@.service` writes: a test should not wait a minute.
_DROP_IN: Final = f"[Service]\nWatchdogSec={WATCHDOG_S}\n"
_JOB: Final = """[job]
name = "paced"
task = "paced:Paced"
steps = {steps}
global_batch_size = 32

[task]
pause_ms = {pause_ms}
hurry = "{hurry}"

[optimizer]
lr = 0.05

[checkpoint]
every_steps = 200
copies = 2

[elastic]
min_workers = 1
settle_s = 1.0

[train]
threads = 1
"""


class Cluster:
    """The hosts, and dtd on them.

    Args:
        hosts: how many.
        directory: empty; for what this machine keeps.
        say: called with lines about progress.

    Raises:
        DtdError: a host does not boot or a command fails.
    """

    def __init__(self, hosts: int, *, directory: Path, say: Callable[[str], None]) -> None:
        self._say = say
        self._directory = directory
        self._names = [f"host{number}" for number in range(1, hosts + 1)]
        self._closing = contextlib.ExitStack()
        self.lan = lan(self._names)
        self._closing.callback(self.lan.close)
        self.hosts: list[Host] = []
        self.job = ""
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self._boot()
            undo.pop_all()

    @property
    def coordinator(self) -> Host:
        """The host with the coordinator."""
        return self.hosts[0]

    @property
    def operator(self) -> Host:
        """The host from which jobs are submitted and watched."""
        return self.hosts[-1]

    def worker(self, host: Host) -> str:
        """The name of a host's worker."""
        return f"{host.name}-cpu"

    def close(self) -> None:
        """Switch everything off; nothing is left behind."""
        self._closing.close()

    # --- setting up ----------------------------------------------------------------------------

    def _boot(self) -> None:
        environment = Environment(_made(self._directory / "environment"))

        for name in self._names:
            host = Host(
                name,
                directory=_made(self._directory / name),
                network=self.lan.spaces[name].path,
                neighbours=self.lan.neighbours(name),
                binds=environment.binds,
            )
            self._closing.callback(host.close)
            self.hosts.append(host)
            host.boot()
            host.write("/etc/ld.so.conf.d/dtd.conf", library_settings())
            host.run("ldconfig")
            self._say(f"{name} is up")

    def install(self) -> None:
        """Units on all hosts, the coordinator on the first one, and all credentials."""
        first = self.coordinator
        first.run("dtdctl", "install", "--coordinator")
        # A machine that boots hosts beside this leaves a worker without a processor for a while.
        settings = f'listen = "0.0.0.0:{_PORT}"\nheartbeat_timeout_s = 6.0\n'
        first.write("/etc/dtd/coordinator.toml", settings)
        first.run("systemctl", "enable", "--now", COORDINATOR)
        self._say("the coordinator has started")
        for host in self.hosts:
            host.run("dtdctl", "install", "--worker")
            host.write("/etc/systemd/system/dtd-worker@.service.d/watchdog.conf", _DROP_IN)
            # Steps are judged by what the workers log of them.
            host.write("/etc/dtd/worker.toml", 'log_level = "debug"\n')
            host.run("systemctl", "daemon-reload")
            host.run("dtd-worker", "join", self._token("worker"))
            host.run("systemctl", "enable", "--now", "dtd-workers.target", WORKER)
            self._say(f"the worker of {host.name} has started")
        self.operator.run("dtdctl", "join", self._token("operator"))

    def _token(self, role: str) -> str:
        said = self.coordinator.run("dtdctl", "token", "create", "--role", role)
        return next(word for word in said.split() if word.startswith("dtd1/"))

    # --- jobs ----------------------------------------------------------------------------------

    def submit(self, *, steps: int, pause_ms: float) -> str:
        """Submit a job whose task is shipped with it, and wait until all workers train.

        Returns:
            its id
        """
        task = (Path(__file__).parent / "paced_task.py").read_text("utf-8")
        self.operator.write(f"{_JOB_DIRECTORY}/paced.py", task)
        job = _JOB.format(steps=steps, pause_ms=pause_ms, hurry=_HURRY)
        self.operator.write(f"{_JOB_DIRECTORY}/job.toml", job)
        self.until(lambda: len(self.status()["workers"]) == len(self.hosts), "workers are missing")
        self.job = self.operator.run("dtdctl", "submit", f"{_JOB_DIRECTORY}/job.toml").strip()
        self.await_whole(after_step=0)
        return self.job

    def finish(self, *, timeout_s: float) -> dict[str, Any]:
        """Let the job's remaining steps take no time; returns the job as `dtdctl jobs` has it."""
        for host in self.hosts:
            host.write(_HURRY, "")
        self.operator.run("dtdctl", "wait", self.job, timeout_s=timeout_s)
        jobs = json.loads(self.operator.run("dtdctl", "jobs", "-o", "json"))["jobs"]
        found: dict[str, Any] = next(job for job in jobs if job["id"] == self.job)
        return found

    # --- asking --------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return the answer of `dtdctl status`; empty while there is no coordinator."""
        done = self._ask("status", "-o", "json")
        return dict(json.loads(done.stdout)) if done.stdout.startswith("{") else {"workers": []}

    def events(self, *, after: int = 0) -> list[dict[str, Any]]:
        """Return the events from one number on; empty while there is no coordinator."""
        said = self._ask("events", "-o", "json").stdout
        found = [json.loads(line) for line in said.splitlines()]
        return [event for event in found if event["seq"] > after]

    def committed(self, host: Host) -> int:
        """Return the newest step that a host's worker has logged as committed."""
        steps = [
            int(entry.fields["step"])
            for entry in journal(host, WORKER, since_s=time.time() - _RECENT_S)
            if entry.event == "step_committed"
        ]
        return max(steps, default=0)

    def is_whole(self, *, after_step: int) -> bool:
        """Whether all workers train together, and the job is beyond that step."""
        status = self.status()
        job = status.get("job")
        states = {worker["name"]: worker["state"] for worker in status["workers"]}
        return (
            job is not None
            and job["state"] == "running"
            and job["step"] > after_step
            and job["world_size"] == len(self.hosts)
            and all(states.get(self.worker(host)) == "running" for host in self.hosts)
        )

    def await_whole(self, *, after_step: int) -> None:
        """Until all workers train together, beyond that step.

        Raises:
            DtdError: time ran out, with the coordinator's status.
        """
        self.until(lambda: self.is_whole(after_step=after_step), "the workers do not all train")

    def await_changed(self, host: Host, unit: str, before: Unit) -> None:
        """Wait until systemd has started a unit again, and it is ready."""

        def changed() -> bool:
            now = show(host, unit)
            return now.start_id != before.start_id and now.active == "active"

        self.until(changed, f"{unit} of {host.name} is as it was")

    def until(self, holds: Callable[[], bool], otherwise: str) -> None:
        """Wait; raises DtdError with `otherwise` and the status when time ran out."""
        deadline_s = time.monotonic() + _START_S
        while not holds():
            if time.monotonic() > deadline_s:
                said = self._ask("status")
                raise DtdError(
                    f"{otherwise}, after {_START_S:g} s: {said.stdout} {said.stderr}",
                    remedy=" ".join(self._latest_lines()),
                )
            time.sleep(_LOOK_EVERY_S)

    def _ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run dtdctl where the operator sits, or beside the coordinator while that host is off."""
        host = self.operator if self.operator.is_on else self.coordinator
        return host.attempt("dtdctl", *arguments)

    def _latest_lines(self) -> Iterator[str]:
        """Yield the newest lines of every unit, to find the cause of a failure."""
        for host in self.hosts:
            with contextlib.suppress(DtdError):
                options = ("--no-pager", "--output=cat", "--lines=25", "--unit=dtd-*")
                yield f"[{host.name}] {host.run('journalctl', *options)}"


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True)
    return directory


PLACE: Final = Path("/opt/dtd")
_PACKAGES: Final = Path("/opt/dtd-packages")
_PYTHON: Final = Path("/opt/dtd-python")
_CHECKOUT: Final = Path(__file__).resolve().parents[2]
_SOURCES: Final = ("dtd", "systemd", "docs/examples", "pyproject.toml", "setup.py")
_TEXTS: Final = ("README.md", "LICENSE")
_BUILD: Final = "import setuptools.build_meta as b; b.build_wheel('.')"
_BUILD_S: Final = 120.0
_SCRIPT: Final = """#!{python}
import sys
from {module} import {function}
sys.exit({function}())
"""


class Environment:
    """Made once, for all hosts.

    Args:
        directory: empty; where it is kept on this machine.

    Attributes:
        binds: the directories of this machine that a host must see, by its own path.

    Raises:
        DtdError: the package cannot be built.
    """

    def __init__(self, directory: Path) -> None:
        self._home = directory / "dtd"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        own_packages = self._home / "lib" / version / "site-packages"
        own_packages.mkdir(parents=True)
        self._make_interpreter(version)
        with zipfile.ZipFile(_wheel(directory / "build")) as wheel:
            wheel.extractall(own_packages)
        # Searched after dtd's own; .pth files in there, as of the checkout itself, do not count.
        (own_packages / "lent.pth").write_text(f"{_PACKAGES}\n", "utf-8")
        self._make_scripts()
        self.binds = {
            PLACE: self._home,
            _PACKAGES: Path(sysconfig.get_path("platlib")),
            _PYTHON: Path(sys.base_prefix),
        }

    def _make_interpreter(self, version: str) -> None:
        """Make the files of `python -m venv`, for their final place."""
        programs = self._home / "bin"
        programs.mkdir()
        for name in ("python", "python3", version):
            (programs / name).symlink_to(_PYTHON / "bin" / version)
        settings = f"home = {_PYTHON / 'bin'}\ninclude-system-site-packages = false\n"
        (self._home / "pyvenv.cfg").write_text(settings, "utf-8")

    def _make_scripts(self) -> None:
        project = tomllib.loads((_CHECKOUT / "pyproject.toml").read_text("utf-8"))["project"]
        for name, entry in project["scripts"].items():
            module, _, function = entry.partition(":")
            script = self._home / "bin" / name
            python = PLACE / "bin/python"
            script.write_text(
                _SCRIPT.format(python=python, module=module, function=function), "utf-8"
            )
            script.chmod(0o755)


def library_settings() -> str:
    """Lines for ld.so.conf: an interpreter with a shared library looks for it where it was made."""
    return f"{_PYTHON / 'lib'}\n"


def _wheel(directory: Path) -> Path:
    """The package, built from a copy of the checkout."""
    for source in (*_SOURCES, *_TEXTS):
        target = directory / source
        target.parent.mkdir(parents=True, exist_ok=True)
        if (_CHECKOUT / source).is_dir():
            unwanted = shutil.ignore_patterns("__pycache__")
            shutil.copytree(_CHECKOUT / source, target, ignore=unwanted)
        else:
            shutil.copy(_CHECKOUT / source, target)
    built = subprocess.run(
        [sys.executable, "-c", _BUILD],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=_BUILD_S,
    )
    wheels = list(directory.glob("*.whl"))
    if built.returncode != 0 or not wheels:
        raise DtdError(f"the package cannot be built: {' '.join(built.stderr.split())[-600:]}")
    return wheels[0]
