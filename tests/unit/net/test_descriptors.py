"""Open files that go from one process of this host to another."""

from __future__ import annotations

import array
import asyncio
import os
import socket

import pytest

from dtd.net import descriptors
from dtd.net.descriptors import Letterbox, post

PATIENCE_S = 10.0


class Box:
    """A letterbox whose files a test can ask for; those that nobody asked for are closed."""

    def __init__(self):
        self.files = asyncio.Queue()
        self.letterbox = Letterbox(self.files.put_nowait)

    async def next(self):
        async with asyncio.timeout(PATIENCE_S):
            return await self.files.get()

    def close(self):
        self.letterbox.close()
        while not self.files.empty():
            os.close(self.files.get_nowait())


@pytest.fixture
async def box():
    made = Box()
    yield made
    made.close()


@pytest.fixture
def file():
    descriptor = os.memfd_create("test")
    os.write(descriptor, b"content")
    yield descriptor
    os.close(descriptor)


def send(name, *, files=(), octets=b"\0"):
    """What somebody else puts into a letterbox."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect("\0" + name)
        sender.sendmsg([octets], ancillary)


async def test_a_file_arrives_open_and_is_not_inherited(box, file):
    post(box.letterbox.name, file)
    received = await box.next()
    assert received != file
    assert os.pread(received, 100, 0) == b"content"
    assert not os.get_inheritable(received)
    os.close(received)


async def test_several_files_arrive_one_by_one(box, file, open_files):
    before = open_files()
    send(box.letterbox.name, files=[file, file])  # more than one is too many
    post(box.letterbox.name, file)
    for _ in range(2):
        os.close(await box.next())
    assert box.files.empty()
    assert open_files() <= before


async def test_letters_without_a_file_are_passed_over(box, file):
    send(box.letterbox.name, octets=b"hello")
    send(box.letterbox.name, octets=b"")
    post(box.letterbox.name, file)
    os.close(await box.next())


async def test_a_letterbox_takes_a_few_letters_only(box, file):
    for _ in range(descriptors._MAX_LETTERS - 1):
        send(box.letterbox.name)
    post(box.letterbox.name, file)
    os.close(await box.next())
    with pytest.raises(ConnectionRefusedError):
        send(box.letterbox.name)


async def test_a_letterbox_that_is_closed_is_gone(file, open_files):
    box = Box()
    box.close()
    box.close()
    before = open_files()
    post(box.letterbox.name, file)
    assert open_files() <= before
    with pytest.raises(ConnectionRefusedError):
        send(box.letterbox.name)


async def test_what_is_in_a_letterbox_when_it_closes_is_lost(file, open_files):
    before = open_files()
    box = Box()
    post(box.letterbox.name, file)
    box.close()
    assert open_files() <= before
    assert box.files.empty()


@pytest.mark.parametrize("name", ["", "/run/systemd/notify", "dtd-" + "x" * 200, "dtd-nobody"])
def test_a_name_that_is_no_letterbox_gets_nothing(file, name, open_files):
    before = open_files()
    post(name, file)
    assert open_files() <= before


def test_only_letterboxes_get_anything(file):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind("\0other")
        post("other", file)
        with pytest.raises(BlockingIOError):
            other.recv(1, socket.MSG_DONTWAIT)


async def test_a_full_letterbox_does_not_hold_up_whoever_posts(file):
    name = "dtd-full"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as nobody_reads:
        nobody_reads.bind("\0" + name)
        for _ in range(3000):  # far more than the kernel keeps
            post(name, file)


async def test_a_file_that_is_closed_meanwhile_is_not_posted(box, file):
    post(box.letterbox.name, -1)
    post(box.letterbox.name, file)
    os.close(await box.next())
    assert box.files.empty()


async def test_names_cannot_be_guessed(box):
    other = Box()
    assert box.letterbox.name != other.letterbox.name
    assert len(box.letterbox.name) == len("dtd-") + 32
    other.close()


async def test_no_socket_is_left_where_there_can_be_no_letterbox(monkeypatch, open_files):
    before = open_files()
    monkeypatch.setattr(descriptors.secrets, "token_hex", lambda count: "x" * 200)
    with pytest.raises(OSError, match="too long"):
        Letterbox(os.close)
    assert open_files() <= before
