"""The coordinator's socket: whose place is taken by whom, and who is followed."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import weakref
from pathlib import Path
from typing import Any

import pytest
import uvloop

from dtd.address import SocketPath
from dtd.errors import ConfigError, ErrorCode, ProtocolError
from dtd.net.link import attach
from dtd.net.local_socket import bound_socket, call, check_listener, remove_socket


@pytest.fixture
def at(tmp_path: Path) -> SocketPath:
    return SocketPath(str(tmp_path / "control.sock"))


@pytest.mark.parametrize("length", [107, 108, 200, 3000])
def test_a_long_path_is_reached(tmp_path: Path, open_files: Any, length: int) -> None:
    directory = tmp_path
    while len(str(directory)) + 202 < length:
        directory /= "d" * 200
    directory /= "e" * max(1, length - len(str(directory)) - 1 - len("/control.sock"))
    directory.mkdir(parents=True)
    at = SocketPath(str(directory / "control.sock"))
    assert len(at.path) >= length
    before = open_files()
    with bound_socket(at) as listening:
        listening.listen()
        call(at, 5.0).close()
        with pytest.raises(ConfigError, match="another process listens at unix:"):
            bound_socket(at)
    remove_socket(at)
    assert not Path(at.path).exists()
    assert open_files() <= before


@pytest.fixture
def owners(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[Path, tuple[int, int]]:
    """(owner, mode) of directories, in place of the file system's; else root's and 0755."""
    known: dict[Path, tuple[int, int]] = {}

    class Status:
        def __init__(self, uid: int, mode: int) -> None:
            self.st_uid, self.st_mode = uid, mode

    def look(path: Path) -> Status:
        return Status(*known.get(path, (0, 0o40755)))

    monkeypatch.setattr(Path, "stat", look)
    monkeypatch.setattr(Path, "lstat", look)
    monkeypatch.setattr(Path, "resolve", lambda path: LINKS.get(path, path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    return known


LINKS = {
    Path("/tmp/x"): Path("/home/eve/s"),
    Path("/var/run/dtd/coordinator"): Path("/run/dtd/coordinator"),
}


@pytest.mark.parametrize(
    ("path", "link", "why"),
    [
        ("/tmp/x", {"/tmp": (0, 0o41777), "/tmp/x": (990, 0o120777)}, "/tmp/x belongs to uid 990"),
        (
            "/tmp/x",
            {"/tmp": (0, 0o41777), "/tmp/x": (0, 0o120777)},
            "other users can write to /tmp",
        ),
        ("/var/run/dtd/coordinator", {"/var/run": (0, 0o120777)}, ""),
    ],
)
def test_a_link_is_followed_where_nobody_else_could_have_put_it(owners, path, link, why) -> None:
    owners[LINKS[Path(path)]] = (990, 0o40750)
    owners |= {Path(place): status for place, status in link.items()}
    at = SocketPath(f"{path}/control.sock")
    if not why:
        check_listener(at, 990)
        return
    with pytest.raises(ProtocolError, match=why):
        check_listener(at, 990)


def test_what_another_user_has_put_there_meanwhile_is_not_opened_to_all(
    at: SocketPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = Path(at.path).with_name("secret")
    secret.write_text("x")
    secret.chmod(0o600)

    class Replaced(socket.socket):
        def bind(self, name: str) -> None:
            Path(name).symlink_to(secret)

    monkeypatch.setattr(socket, "socket", Replaced)
    with pytest.raises(ConfigError, match="another user's file has taken its place"):
        bound_socket(at)
    assert secret.stat().st_mode & 0o777 == 0o600


RUN = SocketPath("/run/dtd/coordinator/control.sock")


@pytest.mark.parametrize(
    ("uid", "own", "parent", "why"),
    [
        (0, (7, 0o777), (7, 0o777), ""),
        (1000, (7, 0o777), (7, 0o777), ""),
        (990, (990, 0o750), (0, 0o755), ""),
        (990, (990, 0o750), (990, 0o755), ""),
        (990, (990, 0o750), (1000, 0o755), ""),
        (991, (990, 0o750), (0, 0o755), "/run/dtd/coordinator does not belong to that user"),
        (990, (990, 0o770), (0, 0o755), "other users can write to /run/dtd/coordinator"),
        (990, (990, 0o755), (0, 0o1777), "other users can write to /run/dtd"),
        (990, (990, 0o755), (991, 0o755), "/run/dtd belongs to uid 991"),
    ],
)
def test_a_peer_that_listens_is_followed_where_nobody_else_could_have_put_the_socket(
    owners, uid, own, parent, why
) -> None:
    owners[Path("/run/dtd/coordinator")] = own
    owners[Path("/run/dtd")] = parent
    if not why:
        check_listener(RUN, uid)
        return
    with pytest.raises(ProtocolError) as caught:
        check_listener(RUN, uid)
    assert caught.value.code is ErrorCode.REFUSED
    said = f"uid {uid} listens at {RUN}, which may be any user: {why}"
    assert caught.value.message == said
    assert caught.value.remedy


class _Speaks(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        transport.write(b"hello")


def test_a_connection_that_ends_at_once_closes_nobody_elses_descriptor() -> None:
    async def attach_one() -> None:
        ours, theirs = socket.socketpair()
        theirs.close()
        number = ours.fileno()
        await attach(ours, _Speaks)
        while True:  # until the number is free, and is given to somebody else
            other = os.open("/dev/null", os.O_RDONLY)
            if other == number:
                break
            os.close(other)
            await asyncio.sleep(0)
        alive = weakref.ref(ours)
        del ours
        while alive() is not None:
            gc.collect()
            await asyncio.sleep(0)
        os.fstat(other)
        os.close(other)

    uvloop.run(asyncio.wait_for(attach_one(), 10))


def test_what_is_no_socket_is_not_touched(at: SocketPath) -> None:
    Path(at.path).write_text("precious")
    with pytest.raises(ConfigError, match=r"control\.sock is not a socket"):
        bound_socket(at)
    assert Path(at.path).read_text() == "precious"
