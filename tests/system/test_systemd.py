"""dtd under real systemd: installed and joined as an administrator would, then hurt."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.cluster import COORDINATOR, WORKER, Cluster
from tests.system.faults import FAULTS, run
from tests.system.host import Host

pytestmark = pytest.mark.timeout(1200)
WRITTEN_TO = ("/etc", "/usr/local/lib", "/var/lib", "/var/cache")


def test_every_fault_is_survived_and_told_alike_by_all(tmp_path: Path) -> None:
    cluster = Cluster(2, directory=tmp_path, say=print)
    try:
        table, problems = run(cluster, list(FAULTS.values()))
    finally:
        cluster.close()
    print(table)
    assert problems == []


def test_one_host_needs_no_credential(tmp_path: Path) -> None:
    cluster = Cluster(1, directory=tmp_path, say=print)
    try:
        host = cluster.coordinator
        _as_before_there_were_two_users(host)
        host.run("dtdctl", "install")
        units = ("dtd-workers.target", WORKER)
        host.run("systemctl", "enable", "--now", COORDINATOR, *units)
        job = host.run("sh", "-c", "dtdctl submit --wait /opt/dtd/lib/*/*/dtd/examples/digits.toml")
        assert job.strip() == "digits-1"
        host.run("systemctl", "start", "dtd-worker@server")
        served = "--set strategy.name=sharded --set strategy.owners=servers"
        host.run(
            "sh", "-c", f"dtdctl submit --wait {served} /opt/dtd/lib/*/*/dtd/examples/digits.toml"
        )
        kept = host.run("dtdctl", "checkpoints", "digits-2")
        assert "-server" in kept
        assert "-cpu" not in kept
        host.run("systemctl", "stop", "dtd-worker@server")
        _assert_users_are_told_apart(host)
        cluster.until(lambda: len(cluster.status()["workers"]) == 1, "its worker has not come back")
        host.run("dtdctl", "uninstall", "--purge")
        left = host.run("find", *WRITTEN_TO, "-name", "*dtd*").split()
        assert left == ["/etc/ld.so.conf.d/dtd.conf"]
    finally:
        cluster.close()


def _as_before_there_were_two_users(host: Host) -> None:
    """State that the user of both has left."""
    host.run("useradd", "--system", "dtd")
    for state in ("coordinator", "worker-cpu"):
        host.run("install", "-d", "-o", "dtd", "-g", "dtd", "-m", "0700", f"/var/lib/dtd/{state}")
        host.run("install", "-o", "dtd", "-m", "0600", "/dev/null", f"/var/lib/dtd/{state}/kept")


def _assert_users_are_told_apart(host: Host) -> None:
    owners = host.run(
        "sh", "-c", "stat -c '%U %G %a %n' /var/lib/dtd/* /var/lib/dtd/*/kept /run/dtd/*"
    )
    assert set(owners.splitlines()) >= {
        "dtd-coordinator dtd 700 /var/lib/dtd/coordinator",
        "dtd-coordinator dtd 600 /var/lib/dtd/coordinator/kept",
        "dtd-worker dtd-worker 700 /var/lib/dtd/worker-cpu",
        "dtd-worker dtd-worker 600 /var/lib/dtd/worker-cpu/kept",
        "dtd-coordinator dtd 750 /run/dtd/coordinator",
        "dtd-worker dtd-worker 700 /run/dtd/worker-cpu",
    }

    def refused(user: str, words: str, exit_code: int) -> None:
        done = host.attempt("runuser", "-u", user, "--", "dtdctl", "status")
        assert (done.returncode, words in done.stderr) == (exit_code, True), done.stderr

    host.run("useradd", "bob")
    refused("bob", "may not open the coordinator's socket unix:/run/dtd/coordinator/", 3)
    host.run("usermod", "-aG", "dtd", "bob")
    refused("bob", "may not open a connection of role ctl here", 1)
    refused("dtd-worker", "has the role worker here", 1)
    host.write("/etc/dtd/coordinator.toml", 'local_viewers = ["bob"]\n')
    host.run("systemctl", "restart", COORDINATOR)
    host.run("runuser", "-u", "bob", "--", "dtdctl", "jobs")
    for place in ("/var/lib/dtd/coordinator", "/run/dtd/coordinator/x"):
        assert host.attempt("runuser", "-u", "dtd-worker", "--", "touch", place).returncode != 0
    command = ("ls", "/var/lib/dtd/coordinator")
    assert host.attempt("runuser", "-u", "dtd-worker", "--", *command).returncode != 0
