"""`dtdctl install` and `uninstall` into a tree: what is written, what is kept, what is left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dtd.ctl.commands import install as install_module
from dtd.ctl.main import run

UNITS = "usr/local/lib/systemd/system"


@pytest.fixture(autouse=True)
def daemons(tmp_path, monkeypatch):
    """An environment that services can see."""
    place = tmp_path / "opt/bin"
    place.mkdir(parents=True)
    for name in install_module.DAEMONS:
        (place / name).write_text("")
    monkeypatch.setattr("sys.argv", [str(place / "dtdctl")])
    monkeypatch.setattr(install_module, "hidden_place", lambda _daemons: "")
    return place


@pytest.fixture
def root(tmp_path):
    return tmp_path / "root"


@pytest.fixture
def dtdctl(capsys, root):
    """Runs a command line for the tree; (lines of stdout, stderr)."""

    def command(*arguments):
        assert run([*arguments, "--prefix", str(root)]) == 0
        out, err = capsys.readouterr()
        return out.splitlines(), err

    return command


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_all_files_are_written_once(dtdctl, root, daemons):
    lines, err = dtdctl("install")
    assert {line.removeprefix(f"wrote {root}/") for line in lines} == files(root)
    assert {
        f"{UNITS}/dtd-coordinator.service",
        f"{UNITS}/dtd-worker@.service",
        f"{UNITS}/dtd-workers.target",
        "usr/local/lib/sysusers.d/dtd.conf",
        "usr/local/lib/tmpfiles.d/dtd.conf",
        "etc/dtd/coordinator.toml",
        "etc/dtd/worker.toml",
    } <= files(root)
    unit = (root / UNITS / "dtd-worker@.service").read_text()
    assert f"ExecStart={daemons}/dtd-worker --instance %i\n" in unit
    assert "/opt/dtd" not in unit
    assert "next: systemctl enable --now dtd-coordinator" in err
    assert {path.stat().st_mode & 0o777 for path in root.rglob("*") if path.is_file()} == {0o644}
    before = {path: path.stat().st_ino for path in root.rglob("*")}
    lines, _ = dtdctl("install")
    assert all(line.startswith("unchanged ") for line in lines)
    assert {path: path.stat().st_ino for path in root.rglob("*")} == before


def test_what_somebody_has_changed_is_kept(dtdctl, root):
    dtdctl("install")
    settings, service = root / "etc/dtd/worker.toml", root / UNITS / "dtd-worker@.service"
    settings.write_text("threads = 4\n")
    service.write_text(service.read_text().replace("RestartSec=1", "RestartSec=7"))
    lines, _ = dtdctl("install")
    assert f"kept {settings}: it was changed after installation" in lines
    assert f"kept {service}: it was changed after installation" in lines
    assert settings.read_text() == "threads = 4\n"
    lines, _ = dtdctl("uninstall")
    assert f"kept {settings}: it was changed after installation; --purge removes it" in lines
    assert files(root) == {"etc/dtd/worker.toml", f"{UNITS}/dtd-worker@.service"}
    dtdctl("uninstall", "--purge")
    assert files(root) == set()


def test_state_stays_unless_it_is_purged(dtdctl, root):
    dtdctl("install")
    ours = [root / f"var/lib/dtd/{name}/x" for name in ("worker-cpu", "workers", "coordinator")]
    credential, other = root / "etc/dtd/worker.credential", root / "var/lib/dtd/other"
    for path in (*ours, credential, other):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("secret")
    lines, _ = dtdctl("uninstall")
    assert lines[-1] == "kept state and credentials: --purge removes them"
    assert all(path.is_file() for path in (*ours, credential))
    dtdctl("uninstall", "--purge")
    assert files(root) == {"var/lib/dtd/other"}


# --- this host -------------------------------------------------------------------------------


@pytest.fixture
def host(monkeypatch, root):
    """This host's systemd, played: the commands that it was given."""
    commands: list[str] = []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(install_module, "_systemd_version", lambda: 254)
    monkeypatch.setattr(install_module, "_cannot_run", lambda _command: "")
    monkeypatch.setattr(install_module, "_run", lambda command: commands.append(" ".join(command)))
    monkeypatch.setattr(
        install_module.Installation, "place", lambda _self, path: root / path.relative_to("/")
    )
    return commands


def test_systemd_is_told(host, capsys):
    assert run(["install"]) == 0
    assert host == [
        "systemd-sysusers /usr/local/lib/sysusers.d/dtd.conf",
        "systemd-tmpfiles --create /usr/local/lib/tmpfiles.d/dtd.conf",
        "systemctl daemon-reload",
    ]
    assert "ran systemctl daemon-reload" in capsys.readouterr().out
    host.clear()
    assert run(["uninstall"]) == 0
    assert host == [
        "systemctl stop dtd-workers.target dtd-worker@*.service",
        "systemctl disable dtd-workers.target dtd-worker@.service",
        "systemctl reset-failed dtd-worker@*.service",
        "systemctl disable --now dtd-coordinator.service",
        "systemctl daemon-reload",
    ]


@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_only_root_may(host, root, capsys, monkeypatch, command):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert run([command]) == 2
    assert f"sudo dtdctl {command}" in capsys.readouterr().err
    assert (host, root.exists()) == ([], False)
