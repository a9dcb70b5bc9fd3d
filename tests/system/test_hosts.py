"""The hosts themselves, before anything of dtd is on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dtd.errors import DtdError
from scripts.cluster.namespaces import Ethernet
from tests.system.host import Host, hierarchies, lan

NAMES = ("left", "right")
# The unit counts as started once the port is open, so whoever calls then is answered.
SERVE = """
import os, socket
port = socket.create_server(("", 5000))
manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
manager.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
print(port.accept()[1][0])
"""
CALL = "import socket; socket.create_connection(('left', 5000), 30).close()"


@pytest.fixture
def network() -> Iterator[Ethernet]:
    made = lan(NAMES)
    yield made
    made.close()


@pytest.fixture
def hosts(network: Ethernet, tmp_path: Path) -> Iterator[list[Host]]:
    made: list[Host] = []
    try:
        for name in NAMES:
            (tmp_path / name).mkdir()
            path, others = network.spaces[name].path, network.neighbours(name)
            made.append(Host(name, directory=tmp_path / name, network=path, neighbours=others))
            made[-1].boot()
        yield made
    finally:
        for host in made:
            host.close()


def address_of(name: str, host: Host) -> str:
    """The address that a host finds; of version 4, since no server knows others."""
    return host.run("getent", "ahostsv4", name).split()[0]


def test_hosts_are_of_their_own(hosts: list[Host], network: Ethernet) -> None:
    for host in hosts:
        assert host.run("hostname").strip() == host.name
        assert host.run("cat", "/proc/1/comm").strip() == "systemd"
        # As on Debian: a host's own name leads to an address that is no use to anybody else.
        assert address_of(host.name, host) == "127.0.1.1"
    left, right = hosts
    assert address_of("left", right) == network.ip("left")
    left.run(
        *("systemd-run", "--unit=serve", "--property=Type=notify", "--property=NotifyAccess=main"),
        *("python3", "-c", SERVE),
    )
    right.run("python3", "-c", CALL)
    assert "rate 1Gbit" in right.run("tc", "qdisc", "show", "dev", "eth0")


def test_what_a_host_writes_survives_reboot_and_power_cut(hosts: list[Host]) -> None:
    host = hosts[0]
    host.write("/srv/kept", "one")
    host.write("/run/lost", "two")
    for way in ([host.reboot], [host.cut_power, host.boot]):
        for step in way:
            step()
        assert host.run("cat", "/srv/kept") == "one"
        assert host.attempt("cat", "/run/lost").returncode != 0
    assert not Path("/srv/kept").exists()


def test_a_command_that_fails_says_why(hosts: list[Host]) -> None:
    with pytest.raises(DtdError, match=r"left: cat /nothing failed with 1: .*No such file"):
        hosts[0].run("cat", "/nothing")
    with pytest.raises(DtdError, match="did not end within"):
        hosts[0].run("sleep", "60", timeout_s=0.1)
    hosts[0].cut_power()
    with pytest.raises(DtdError, match="left is off"):
        hosts[0].run("true")


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    mounts, groups = Path("/proc/self/mounts").read_text(), _groups()
    network = lan(["left"])
    (tmp_path / "left").mkdir()
    host = Host("left", directory=tmp_path / "left", network=network.spaces["left"].path)
    try:
        host.boot()
        assert _groups() > groups
    finally:
        host.close()
        network.close()
    assert _groups() == groups
    assert Path("/proc/self/mounts").read_text() == mounts


def _groups() -> set[Path]:
    return {group for root in hierarchies() for group in root.glob("dtd-systemd-*")}
