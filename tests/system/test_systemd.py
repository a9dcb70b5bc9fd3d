"""dtd under real systemd: installed and joined as an administrator would, then hurt."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.systemdcluster import report
from scripts.systemdcluster.cgroups import hierarchies
from scripts.systemdcluster.cluster import COORDINATOR, WORKER, Cluster
from scripts.systemdcluster.faults import FAULTS
from scripts.systemdcluster.run import run

pytestmark = pytest.mark.timeout(600)
BOOTED_S = 60.0
WRITTEN_TO = ("/etc", "/usr/local/lib", "/var/lib", "/var/cache")


def test_every_fault_is_survived_and_told_alike_by_all(tmp_path: Path) -> None:
    lines: list[str] = []
    cluster = Cluster(2, directory=tmp_path, say=lines.append)
    try:
        result = run(cluster, list(FAULTS.values()), say=lines.append)
    finally:
        cluster.close()
        print("\n".join(lines))
    print("\n".join(report.lines(result)))
    assert result.problems == []
    assert len(result.outcomes) == len(FAULTS)


def test_one_host_needs_no_credential(tmp_path: Path) -> None:
    cluster = Cluster(1, directory=tmp_path, say=print)
    try:
        host = cluster.coordinator
        host.run("dtdctl", "install")
        units = ("dtd-workers.target", WORKER)
        host.run("systemctl", "enable", "--now", COORDINATOR, *units)
        job = host.run("sh", "-c", "dtdctl submit --wait /opt/dtd/lib/*/*/dtd/examples/digits.toml")
        assert job.strip() == "digits-1"
        host.run("useradd", "bob")
        refused = host.attempt("runuser", "-u", "bob", "--", "dtdctl", "status")
        assert refused.returncode == 1
        assert "uid" in refused.stderr
        host.run("dtdctl", "uninstall", "--purge")
        left = host.run("find", *WRITTEN_TO, "-name", "*dtd*").split()
        assert left == ["/etc/ld.so.conf.d/dtd.conf"]
    finally:
        cluster.close()


def test_an_interrupted_run_leaves_nothing() -> None:
    groups = _groups()
    command = [sys.executable, "-m", "scripts.systemd_cluster", "--hosts", "2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "is up" in line:
                break
        hosts = subprocess.run(
            ["pgrep", "-f", f"dtd-{process.pid}-host"], capture_output=True, text=True, check=False
        ).stdout.split()
        process.send_signal(signal.SIGINT)
        process.stderr.read()
        assert process.wait(BOOTED_S) == 128 + signal.SIGINT
    assert hosts
    assert not [pid for pid in hosts if Path("/proc", pid).exists()]
    assert _groups() == groups


def _groups() -> set[Path]:
    return {group for root in hierarchies() for group in root.glob("dtd-systemd-*")}
