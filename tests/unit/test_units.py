"""The units: what systemd itself says of them, and what they must agree on with the daemons."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dtd.config import WorkerConfig
from dtd.ctl.commands.install import Parts, is_ours, sealed, service_files, shipped
from dtd.errors import ConfigError, UsageError
from dtd.net.server import MAX_CONNECTIONS
from dtd.rules import fields_of

UNITS = shipped("units")
SERVICES = ("dtd-coordinator.service", "dtd-worker@.service")
EVERYWHERE = [f"{folder}{name}" for folder in ("", "user/") for name in SERVICES]
MAX_EXPOSURE = 20
"""In tenths, as systemd counts: 2.0 of 10."""

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


@pytest.fixture(scope="module")
def daemons(tmp_path_factory):
    """A directory with daemons that can be executed."""
    place = tmp_path_factory.mktemp("bin")
    for name in ("dtd-coordinator", "dtd-worker"):
        (place / name).symlink_to(sys.executable)
    return place


def write_units(directory, daemons, config_home=None, systemd_version=0):
    """Write what would be installed; the units' paths."""
    parts = Parts(coordinator=True, worker=True, config_home=config_home)
    files = service_files(parts, daemons=daemons, systemd_version=systemd_version)
    for path, text in files.items():
        if "systemd" in path.parts:
            target = directory / path.relative_to("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
    return sorted(str(path) for path in directory.rglob("dtd-*") if path.is_file())


def analyze(*arguments, **environment):
    return subprocess.run(
        ["systemd-analyze", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "LC_ALL": "C", "NO_COLOR": "1", **environment},
    )


@needs_systemd
@pytest.mark.parametrize("for_user", [False, True])
def test_systemd_finds_nothing_wrong(tmp_path, daemons, for_user):
    home = Path("/config") if for_user else None
    units = write_units(tmp_path, daemons, home)
    assert len(units) == 3
    manager = ["--user"] if for_user else []
    done = analyze("verify", "--man=no", *manager, *units, XDG_RUNTIME_DIR=str(tmp_path))
    ours = [line for line in done.stderr.splitlines() if "dtd" in line]
    assert ours == []
    assert done.returncode == 0, done.stderr


@needs_systemd
@pytest.mark.parametrize("name", SERVICES)
def test_exposure_is_small(tmp_path, daemons, name):
    (unit,) = (path for path in write_units(tmp_path, daemons) if path.endswith(name))
    done = analyze("security", "--offline=true", "--no-pager", f"--threshold={MAX_EXPOSURE}", unit)
    assert "Overall exposure level" in done.stdout, done.stderr
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", EVERYWHERE)
def test_what_does_not_become_right_by_starting_again(name):
    unit = (UNITS / name).read_text()
    (listed,) = re.findall(r"^RestartPreventExitStatus=(.*)$", unit, re.MULTILINE)
    codes = {int(code) for code in listed.split()}
    assert {ConfigError.exit_code, UsageError.exit_code} == codes - {0}
    assert (0 in codes) is ("worker" in name)
    assert "Restart=always\n" in unit
    assert "StartLimitIntervalSec=0\n" in unit


@pytest.mark.parametrize("name", EVERYWHERE)
def test_the_manager_is_told_by_the_daemon_itself(name):
    unit = (UNITS / name).read_text()
    assert {"Type=notify", "NotifyAccess=main"} <= set(unit.splitlines())
    assert re.search(r"^WatchdogSec=[1-9]", unit, re.MULTILINE)


@pytest.mark.parametrize("name", [name for name in EVERYWHERE if "worker" in name])
def test_a_worker_may_finish_its_step(name):
    unit = (UNITS / name).read_text()
    (patience,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert float(patience) >= 10 + fields_of(WorkerConfig)["drain_timeout_s"].default
    assert "KillMode=mixed\n" in unit


def setting(name, key):
    (value,) = re.findall(rf"^{key}=(.*)$", (UNITS / name).read_text(), re.MULTILINE)
    return value


@pytest.mark.parametrize("name", EVERYWHERE)
def test_what_a_service_may_use_is_bounded(name):
    """Files for all connections, and as many again for what else is open."""
    assert int(setting(name, "LimitNOFILE")) >= 2 * MAX_CONNECTIONS
    assert int(setting(name, "TasksMax")) >= 128
    assert re.fullmatch(r"[0-9]+G|[0-9]{2}%", setting(name, "MemoryMax"))


@pytest.mark.parametrize("text", ["", "a\n", "a\nb"])
def test_a_seal_breaks_with_any_change(text):
    assert is_ours(sealed(text))
    assert not is_ours(text)
    assert not is_ours("x" + sealed(text))
    assert not is_ours(sealed(text) + "x")
    assert not is_ours(sealed(text).replace("\n", "\n\n", 1))
