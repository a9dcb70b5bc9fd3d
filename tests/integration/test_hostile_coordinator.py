"""Text of an impostor coordinator reaches neither log, console nor systemd raw.

Real workers and dtdctl call a socket at which the test answers.  No worker trains.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dtd import __version__
from dtd.errors import ErrorCode
from dtd.event_names import EVENTS
from dtd.wire import messages as m
from scripts.cluster.processes import Child, stop_all

pytestmark = pytest.mark.integration

PATIENCE_S = 60.0
HOSTILE = (
    "\x1b[2J\x1b]0;t\x07\x9b2J\x90x\x9c\u202e\u2066\u2028\x85\x00\r\nforged: line\n"
    "2026-01-01T00:00:00.000Z [error] forged level=error worker=w-9\nSTATUS=forged\nMAINPID=1\n"
)
WELCOME = m.Welcome(
    protocol=1, version=__version__, name="coordinator", max_payload_bytes=1024 * 1024
)
ERROR = m.Error(code=ErrorCode.REFUSED, message=f"no {HOSTILE}", remedy=f"do {HOSTILE}")
REFUSES: tuple[m.Message, ...] = (ERROR,)
LETS_IN: tuple[m.Message, ...] = (
    WELCOME,
    m.Registered(heartbeat_interval_s=0.2, heartbeat_timeout_s=5.0, refused=f"because {HOSTILE}"),
)


class Fake:
    """Says the same to whoever calls, and hears nothing."""

    def __init__(self, path: Path) -> None:
        self.path, self.says = path, REFUSES
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._held: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            caller, _ = self._listener.accept()
            first = caller.recv(65536)
            if not first:  # the test's own, to end
                caller.close()
                return
            with contextlib.suppress(OSError):
                caller.sendall(b"".join(map(m.message_bytes, self.says)))
            self._held.append(caller)

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(str(self.path))
        self._thread.join(PATIENCE_S)
        for one in (*self._held, self._listener):
            one.close()


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Fake]:
    made = Fake(tmp_path / "fake.sock")
    yield made
    made.close()


@pytest.fixture
def start_worker(tmp_path: Path, fake: Fake) -> Iterator[Callable[..., Child]]:
    started = []

    def start(form: str, notify: Path) -> Child:
        command = [sys.executable, "-m", "dtd.worker", "--coordinator", f"unix:{fake.path}"]
        command += ["--name", "w-0", "--state-dir", str(tmp_path / "w"), "--log-format", form]
        environment = {"HOME": str(tmp_path), "NOTIFY_SOCKET": str(notify)}
        started.append(Child("w-0", command, tmp_path / "w.log", environment))
        started[-1].start()
        return started[-1]

    yield start
    stop_all(started)


def unsafe(text: str) -> set[str]:
    bidi = set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
    bad = {"Cc", "Zl", "Zp", "Cs"}
    return {c for c in text if (unicodedata.category(c) in bad or c in bidi) and c != "\n"}


@pytest.mark.parametrize("form", ["json", "console"])
@pytest.mark.parametrize("says", [REFUSES, LETS_IN], ids=["refuses", "lets in"])
def test_a_worker_shows_none_of_it_raw(fake, start_worker, tmp_path, form, says) -> None:
    fake.says = says
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE_S)
        child = start_worker(form, tmp_path / "notify")
        heard = [manager.recv(65536).decode()]
        while "forged" not in heard[-1]:
            heard.append(manager.recv(65536).decode())
            assert child.exit_code() is None
    for one in heard:
        assert one.isprintable()  # one line: what systemd reads as an assignment of its own
    assert stop_all([child]) is None
    text = child.log_path.read_text("utf-8")
    assert "forged: line" in text
    assert not unsafe(text)
    assert not [line for line in text.splitlines() if line.startswith(("forged", "2026-01-01"))]
    if form == "json":
        assert {json.loads(line)["event"] for line in text.splitlines()} <= set(EVENTS)


@pytest.mark.parametrize("form", ["table", "json"])
def test_dtdctl_shows_none_of_it_raw(fake, form) -> None:
    command = [sys.executable, "-m", "dtd.ctl.main", "--coordinator", f"unix:{fake.path}"]
    done = subprocess.run(
        [*command, "jobs", "-o", form],
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert (done.returncode != 0, done.stdout) == (True, "")
    assert "forged: line" in done.stderr
    assert not unsafe(done.stderr)
    ours = ("error: ", "try: ") if form == "table" else ("{",)
    assert all(line.startswith((*ours, " ")) for line in done.stderr.splitlines() if line)
