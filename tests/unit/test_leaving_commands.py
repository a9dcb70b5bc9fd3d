"""The commands of docs/deploy/leaving, against a server that answers as a cloud's would."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

COMMANDS = Path(__file__).parents[2] / "docs/deploy/leaving"
ACTION = '{"action": "terminate", "time": "2026-08-01T08:22:00Z"}'
AZURE_NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
AZURE_EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
AZURE = """{"DocumentIncarnation": 2, "Events": [
 {"EventId": "A", "EventType": "%s", "ResourceType": "VirtualMachine",
  "Resources": ["other", "%s"], "EventStatus": "Scheduled", "NotBefore": ""},
 {"EventId": "B", "EventType": "Preempt", "ResourceType": "VirtualMachine",
  "Resources": ["other"], "EventStatus": "Scheduled", "NotBefore": ""}]}"""

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


class Metadata(ThreadingHTTPServer):
    """Answers with `answers`, by path, to those who send the header that the cloud asks for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, str] = {}
        self.header = ("", "")


class _Handler(BaseHTTPRequestHandler):
    server: Metadata

    def do_GET(self) -> None:
        name, value = self.server.header
        said = self.server.answers.get(self.path) if self.headers.get(name) == value else None
        self._answer(404 if said is None else 200, said or "")

    def do_PUT(self) -> None:
        lives = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
        self._answer(200 if self.path == "/latest/api/token" and lives else 400, "a token")

    def _answer(self, code: int, text: str) -> None:
        self.send_response(code)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    with Metadata() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def ask(metadata: Metadata) -> Callable[[str], tuple[bool, str]]:
    """Run a command; whether it asks to leave, and its words."""

    def run(name: str) -> tuple[bool, str]:
        at = f"http://127.0.0.1:{metadata.server_port}"
        return asks(name, METADATA=at)

    return run


def asks(name: str, **environ: str) -> tuple[bool, str]:
    done = subprocess.run(
        [COMMANDS / name],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stderr == ""
    return done.returncode == 0, done.stdout


@needs_curl
def test_aws(metadata: Metadata, ask: Callable[[str], tuple[bool, str]]) -> None:
    metadata.header = ("X-aws-ec2-metadata-token", "a token")
    assert not ask("aws")[0]
    metadata.answers["/latest/meta-data/spot/instance-action"] = ACTION
    assert ask("aws") == (True, ACTION)


@needs_curl
def test_gcp(metadata: Metadata, ask: Callable[[str], tuple[bool, str]]) -> None:
    metadata.header = ("Metadata-Flavor", "Google")
    at = "/computeMetadata/v1/instance/preempted"
    metadata.answers[at] = "FALSE"
    assert not ask("gcp")[0]
    metadata.answers[at] = "TRUE"
    assert ask("gcp") == (True, "Compute Engine preempts this instance\n")


@needs_curl
@pytest.mark.parametrize(
    ("kind", "about", "leaves"),
    [
        ("Preempt", "host7", True),
        ("Reboot", "host7", True),
        ("Freeze", "host7", False),
        ("Preempt", "host77", False),
    ],
)
def test_azure(
    metadata: Metadata, ask: Callable[[str], tuple[bool, str]], kind: str, about: str, leaves: bool
) -> None:
    metadata.header = ("Metadata", "true")
    metadata.answers = {AZURE_NAME: "host7", AZURE_EVENTS: AZURE % (kind, about)}
    asked, said = ask("azure")
    assert (asked, kind in said) == (leaves, leaves)


@needs_curl
@pytest.mark.parametrize("name", ["aws", "gcp", "azure"])
def test_a_service_that_is_not_there_asks_for_nothing(name: str) -> None:
    assert asks(name, METADATA="http://127.0.0.1:1") == (False, "")


def test_a_desktop_that_somebody_uses(tmp_path: Path) -> None:
    group = "system.slice/system-dtd.slice"
    files = {
        "proc/self/cgroup": f"0::/{group}/dtd-worker@cpu.service\n",
        "proc/stat": "cpu  100 0 100 9000 0 0 0 0 0 0\n",
        f"sys/fs/cgroup/{group}/cpu.stat": "usage_usec 900000\nuser_usec 0\n",
        "run/systemd/users/1000": "NAME=ann\nSTATE=lingering\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert asks("desktop", ROOT=str(tmp_path)) == (False, "")
    (tmp_path / "run/systemd/users/1000").write_text("NAME=ann\nSTATE=active\n")
    assert asks("desktop", ROOT=str(tmp_path)) == (True, "somebody is logged in\n")
