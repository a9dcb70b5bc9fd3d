"""Open files that go from one process of this host to another."""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from dtd.net.descriptors import FdMailbox, post
from dtd.net.local_socket import short_name

PATIENCE_S = 60.0
WORDS = b"content"

# Another user, who looks for whatever a worker listens on, and sends it a file.
INTRUDER = """
import os, socket, sys
directory, = sys.argv[1:]
names = [line.split()[-1] for line in open("/proc/net/unix") if len(line.split()) == 8]
paths = [name.replace("@", chr(0)) for name in names if name.startswith("@dtd-")]
paths += [f"{directory}/{os.path.basename(name)}" for name in names if "/box-" in name]
for path in paths:
    for kind in (socket.SOCK_DGRAM, socket.SOCK_SEQPACKET, socket.SOCK_STREAM):
        try:
            with socket.socket(socket.AF_UNIX, kind) as sender:
                sender.connect(path)
                print(path, "connected")
                socket.send_fds(sender, [b"x"], [os.open("/etc/passwd", os.O_RDONLY)])
        except OSError as error:
            print(path, type(error).__name__)
print("over", flush=True)
sys.stdin.read()
"""

LINGERS_S = 100
"""Nobody waits for it where all is well; a loop that is kept is kept for so long."""


class Box:
    """A mailbox whose fd_dir a test can ask for: what is read in each file that comes."""

    def __init__(self, directory):
        self.looked = []
        self.threads = set()
        self.contents = asyncio.Queue()
        self.mailbox = FdMailbox(directory, self._look, self.contents.put_nowait)

    def _look(self, descriptor):
        self.threads.add(threading.current_thread())
        self.looked.append(os.get_inheritable(descriptor))
        try:
            return os.pread(descriptor, 100, 0) or None
        except OSError:
            return None

    async def next(self):
        async with asyncio.timeout(PATIENCE_S):
            return await self.contents.get()

    def close(self):
        self.mailbox.close()


def put_aside():
    """Wait for what was left to threads."""
    for thread in threading.enumerate():
        if thread.name == "descriptors":
            thread.join(PATIENCE_S)


@pytest.fixture
def file():
    descriptor = os.memfd_create("test")
    os.write(descriptor, WORDS)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def empty():
    descriptor = os.memfd_create("empty")
    yield descriptor
    os.close(descriptor)


def send(path, *, files=(), octets=b"\0"):
    """Another program's message to a mailbox."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sender:
        with short_name(path) as name:
            sender.connect(name)
        sender.sendmsg([octets], ancillary)


async def test_nothing_stays_open(fd_dir, file, empty, open_files):
    before = open_files()
    box = Box(fd_dir)
    send(box.mailbox.path, files=[empty])
    send(box.mailbox.path, files=[file, file])  # more than one is too many
    assert await box.next() == WORDS
    put_aside()
    assert open_files() <= before


# --- users of the same host ----------------------------------------------------------------------

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user: needs root")


@contextlib.contextmanager
def nobody_runs(source, *arguments):
    """A program of that user; it is asked to end by closing what it reads."""
    python = shutil.which("python3", path="/usr/bin") or sys.executable
    with subprocess.Popen(
        [python, "-c", source, *arguments],
        user="nobody",
        group="nogroup",
        extra_groups=[],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    ) as program:
        yield program


def heard(program, word):
    """All that a program has printed up to a line with this word."""
    lines = []
    for line in program.stdout:
        lines.append(line)
        if word in line:
            return "".join(lines)
    raise AssertionError(f"it said {lines}")


@pytest.fixture
def open_place():
    """A directory that everybody can enter."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


@needs_root
async def test_another_user_cannot_put_anything_in(open_place, file):
    place = open_place / "fd_dir"
    place.mkdir(mode=0o700)
    box = Box(place)
    with nobody_runs(INTRUDER, str(place)) as intruder:
        said = await asyncio.to_thread(heard, intruder, "over")
        assert f"{box.mailbox.path} PermissionError" in said  # it was found, which is no secret
        assert "connected" not in said
        post(box.mailbox.path, file)
        assert await box.next() == WORDS
    assert len(box.looked) == 1


@needs_root
async def test_what_another_user_sends_is_not_even_received(open_place, file):
    """Where the directory does not keep him out, the kernel's word about him does."""
    box = Box(open_place)
    os.chmod(box.mailbox.path, 0o777)  # noqa: PTH101 - at once
    with nobody_runs(INTRUDER, str(open_place)) as intruder:
        said = await asyncio.to_thread(heard, intruder, "over")
        assert f"{box.mailbox.path} connected" in said
        post(box.mailbox.path, file)
        assert await box.next() == WORDS
    assert len(box.looked) == 1


LISTENER = """
import os, socket, sys
os.umask(0)
made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
made.bind(sys.argv[1])
made.listen(1)
print("ready", flush=True)
caller, _ = made.accept()
print("received", socket.recv_fds(caller, 1, 1)[1], flush=True)
"""


@needs_root
def test_memory_is_not_handed_to_another_user(open_place, file):
    open_place.chmod(0o777)
    path = str(open_place / f"box-{'0' * 32}")
    with nobody_runs(LISTENER, path) as listener:
        heard(listener, "ready")
        with pytest.raises(PermissionError, match="belongs to user"):
            post(path, file)
        assert "received []" in heard(listener, "received")


# --- what takes its time to close ----------------------------------------------------------------


def lingering():
    """A socket that takes LINGERS_S to close, and what has to stay open meanwhile."""
    server = socket.create_server(("127.0.0.1", 0))
    made = socket.create_connection(server.getsockname())
    made.settimeout(0)
    with contextlib.suppress(BlockingIOError):
        while True:
            made.send(bytes(65536))  # nobody reads it
    linger = array.array("i", [1, LINGERS_S]).tobytes()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    return server, made


@pytest.mark.parametrize("accepted", [True, False])
async def test_no_close_keeps_the_event_loop(fd_dir, file, accepted):
    """Whoever may put something in, the loop goes on; when the box is closed, too."""
    box = Box(fd_dir)
    server, parcel = lingering()
    loop = asyncio.get_running_loop()
    send(box.mailbox.path, files=[parcel.fileno()])
    parcel.close()  # not the last one: this does not wait
    begun = loop.time()
    if accepted:
        post(box.mailbox.path, file)
        assert await box.next() == WORDS
    box.close()
    for _ in range(5):
        await asyncio.sleep(0)
    assert loop.time() - begun < LINGERS_S / 2
    server.close()  # resets the connection, for which nobody has to wait any more
