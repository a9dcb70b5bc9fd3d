"""Where the daemons of a chaos run live: namespaces, networks, disks, and the logs they write."""

from __future__ import annotations

import contextlib
import json
import select
import socket

import pytest

from dtd.address import SocketPath
from dtd.net.local_socket import bound_socket, call
from scripts.cluster.disks import SmallDisks
from scripts.cluster.log_timeline import LogTail
from scripts.cluster.namespaces import may_make
from scripts.cluster.networks import COORDINATOR, Hosts, Proxied

PATIENCE_S = 60.0
SURELY_S = 0.2
NAMES = ["worker-0", "worker-1"]

as_root = pytest.mark.skipif(not may_make("net"), reason="needs the right to make namespaces")


def option(arguments, name):
    host, _, port = arguments[arguments.index(name) + 1].rpartition(":")
    return host, int(port)


def is_quiet(end):
    return select.select([end], [], [], SURELY_S)[0] == []


def one_way(network, caller_space, target_space):
    """A connection from worker-0 to the data port of worker-1."""
    listen = option(network.arguments("worker-1"), "--listen")
    advertise = option(network.arguments("worker-1"), "--advertise")
    server = target_space(lambda: socket.create_server(listen))
    caller = caller_space(lambda: socket.create_connection(advertise, PATIENCE_S))
    target, _ = server.accept()
    server.close()
    target.settimeout(PATIENCE_S)
    return caller, target


# --- networks ----------------------------------------------------------------------------------


@as_root
@pytest.mark.parametrize("proxied", [False, True])
def test_a_cut_between_namespaces_is_one_way_and_heals(proxied):
    with contextlib.closing(Hosts(NAMES, proxied=proxied)) as network:
        spaces = network.ethernet.spaces
        assert sorted(network.proxies) == (NAMES if proxied else [])
        caller, target = one_way(network, spaces["worker-0"].inside, spaces["worker-1"].inside)
        with caller, target:
            greeting = bytes(64)
            caller.sendall(greeting)
            received = b""
            while len(received) < len(greeting):
                received += target.recv(100)
            network.cut("worker-0", "worker-1")
            caller.sendall(b"not yet")
            assert is_quiet(target)
            network.restore("worker-0", "worker-1")
            assert target.recv(100) == b"not yet"


def test_proxies_cut_one_direction_of_the_control_connection():
    with contextlib.closing(Proxied(NAMES)) as network:
        words = network.arguments("worker-0")
        via = SocketPath.parse(words[words.index("--coordinator") + 1])
        with bound_socket(network.address) as server:
            server.listen()
            caller = call(via, PATIENCE_S)
            server.settimeout(PATIENCE_S)
            end, _ = server.accept()
        with caller, end:
            network.cut("worker-0", COORDINATOR)
            caller.sendall(bytes(64))
            assert is_quiet(end)
            end.sendall(b"heard")
            assert caller.recv(100) == b"heard"
            network.restore("worker-0", COORDINATOR)
            assert end.recv(100)
            network.cut(COORDINATOR, "worker-0")
            end.sendall(b"later")
            assert is_quiet(caller)
            network.restore(COORDINATOR, "worker-0")
            assert caller.recv(100) == b"later"


# --- disks -------------------------------------------------------------------------------------


@pytest.mark.skipif(not may_make("mnt"), reason="needs the right to mount")
def test_small_disks_fill_up_and_turn_read_only_for_those_inside_alone(tmp_path):
    directory = tmp_path / "worker-0"
    with contextlib.closing(SmallDisks([directory])) as disks:
        write = lambda: (directory / "checkpoints/a").write_bytes(bytes(4096))  # noqa: E731
        disks.inside(write)
        assert not (directory / "checkpoints").exists()
        lock = disks.inside(lambda: (directory / "lock").open("w"))  # as a worker has one
        disks.fill(directory)
        with pytest.raises(OSError, match="No space"):
            disks.inside(lambda: (directory / "more").write_bytes(bytes(1 << 20)))
        disks.empty(directory)
        disks.inside(write)
        disks.set_read_only(directory, read_only=True)
        with pytest.raises(OSError, match="Read-only"):
            disks.inside(write)
        disks.set_read_only(directory, read_only=False)
        disks.inside(write)
        lock.close()
        assert disks.wrapped(["a"])[-1] == "a"


# --- logs and load -----------------------------------------------------------------------------


def test_a_log_is_read_as_it_grows_in_order_of_time(tmp_path):
    paths = {name: tmp_path / f"{name}.log" for name in NAMES}
    for path in paths.values():
        path.touch()
    tail = LogTail(paths)
    assert tail.poll() == []

    def write(name: str, text: str) -> None:
        with paths[name].open("a") as log:
            log.write(text)

    def line(second: int, event: str) -> str:
        return json.dumps({"ts": f"2026-01-01T00:00:0{second}.000Z", "event": event, "step": 3})

    write("worker-0", line(2, "second") + "\nTraceback (most recent call last)\n[1]\n")
    write("worker-1", line(1, "first") + "\n" + line(3, "third")[:20])
    assert [(one.daemon, one.event) for one in tail.poll()] == [
        ("worker-1", "first"),
        ("worker-0", "second"),
    ]
    assert [name for name, _text in tail.unread] == ["worker-0", "worker-0"]
    write("worker-1", line(3, "third")[20:] + "\n")
    (third,) = tail.poll()
    assert third.fields == {"step": 3}
    assert third.at_s == 1767225603.0
    tail.close()
