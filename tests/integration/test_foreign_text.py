"""Hostile members' text reaches nobody raw through a real coordinator, and every act is on record.

One coordinator beyond loopback; a worker, a viewer and a stranger that the tests play.  Nothing is
trained: the worker says that the job's code has failed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pty
import subprocess
import sys
import time
import unicodedata
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dtd import __version__
from dtd.coordinator.services.audit import REFUSAL_EVERY_S, REFUSALS_AT_ONCE
from dtd.errors import DtdError, ErrorCode, ProtocolError, RequestRefused
from dtd.event_names import EVENTS, INCIDENTS
from dtd.job import parse_job, to_mapping
from dtd.net.clients.blocking_link import BlockingLink
from dtd.net.clients.join_client import join
from dtd.security.credential import Credential
from dtd.security.token import Token
from dtd.wire import messages as m
from dtd.wire.frames import frame_bytes
from scripts.cluster.networks import reserved_port
from tests.integration.beyond import Beyond, hear, registering

pytestmark = pytest.mark.integration

PATIENCE_S = 60.0
HOSTILE = (
    "\x1b[2J\x1b]0;title\x07\x1b]52;c;cm0gLXJm\x1b\\\x9b2J\x90x\x9c\u202e\u2066\u2028\u2029\x85\x00"
    '\r\nforged: line\n<3>forged journal\n{"event": "forged"}\n'
)
JOB = '[job]\nname = "spoken"\ntask = "digits"\nsteps = 4\nglobal_batch_size = 64\n'


class Coordinator(Beyond):
    def __init__(self, directory: Path) -> None:
        self.metrics = reserved_port()
        super().__init__(directory, "--metrics", f"127.0.0.1:{self.metrics}")

    def worker(self, credential: Credential) -> BlockingLink:
        """A connection on which its worker has registered."""
        link = self.link(m.Role.WORKER, credential)
        link.send(registering(credential.name, version=__version__))
        hear(link, m.Registered)
        return link

    def shown(self, *words: str, terminal: bool = False) -> str:
        """A command's output, on both streams together."""
        command = [sys.executable, "-m", "dtd.ctl.main", *words]
        environ = {**self.ctl_environment(), "PYTHONIOENCODING": "utf-8"}
        reader, writer = pty.openpty() if terminal else os.pipe()
        with subprocess.Popen(command, env=environ, stdout=writer, stderr=writer) as running:
            os.close(writer)
            printed = b""
            while data := read(reader):
                printed += data
            os.close(reader)
            running.wait(PATIENCE_S)
        return printed.decode()

    def log(self) -> list[dict[str, Any]]:
        """Its lines so far: each is one whole JSON object."""
        return [json.loads(line) for line in self.child.log_path.read_text().split("\n")[:-1]]

    def audit(self, **wanted: Any) -> list[dict[str, Any]]:
        return list(self.ask(m.ReadAudit(**wanted))["entries"])


def read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # a terminal whose last writer has gone
        return b""


def unsafe(text: str, but: str = "\n") -> set[str]:
    bidi = set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
    bad = {"Cc", "Zl", "Zp", "Cs"}
    return {c for c in text if (unicodedata.category(c) in bad or c in bidi) and c not in but}


def forged(text: str) -> list[str]:
    """Lines that begin as somebody else wanted."""
    return [line for line in text.splitlines() if line.startswith(("forged", "<3>", '{"event"'))]


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory) -> Iterator[Coordinator]:
    made = Coordinator(tmp_path_factory.mktemp("spoken"))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def worker(coordinator) -> Credential:
    return coordinator.join("w-0")


@pytest.fixture(scope="module")
def viewer(coordinator) -> Credential:
    return coordinator.join("eve", "viewer")


@pytest.fixture(scope="module")
def job(coordinator, worker) -> str:
    """A job of which a worker has said everything that it can in hostile words."""
    spec = to_mapping(parse_job(JOB, source="test"))
    link = coordinator.worker(worker)
    submitted = str(coordinator.ask(m.SubmitJob(spec=spec))["job"])
    hear(link, m.Prepare)
    link.send_payload(m.JobOutput(job=submitted, rank=0), HOSTILE.encode())
    link.send(
        m.Heartbeat(state="warming", job=submitted, where=HOSTILE, waiting=HOSTILE),
        m.Notice(job=submitted, event="row_retried", message=HOSTILE),
        m.Failed(job=submitted, reason=f"E: {HOSTILE}", traceback=HOSTILE),
    )
    assert coordinator.ask(m.WaitJob(job=submitted))["state"] == "failed"
    link.close()
    return submitted


@pytest.mark.parametrize(("form", "terminal"), [("table", False), ("json", False), ("table", True)])
@pytest.mark.parametrize(
    "command", ["status", "jobs", "show JOB", "logs JOB", "events", "audit", "credentials"]
)
def test_no_command_shows_it_raw(coordinator, job, command, form, terminal) -> None:
    words = command.replace("JOB", job).split()
    printed = coordinator.shown(*words, "-o", form, terminal=terminal)
    assert printed
    assert "Traceback (most" not in printed
    assert not unsafe(printed, but="\r\n" if terminal else "\n")
    assert not forged(printed)
    if command in ("show JOB", "logs JOB", "events"):
        assert "forged: line" in printed
    if form == "json":
        assert all(json.loads(line) for line in printed.splitlines())


def test_the_log_has_lines_of_its_own_making_only(coordinator, job) -> None:
    text = coordinator.child.log_path.read_text()
    assert text.isascii()
    assert not unsafe(text)
    lines = coordinator.log()
    assert {line["event"] for line in lines} <= {*EVENTS, *INCIDENTS}
    assert any("forged: line" in str(line.get("message")) for line in lines)


def test_the_metrics_page_has_none_of_it(coordinator, job) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{coordinator.metrics}/metrics") as answer:
        page = answer.read().decode()
    assert 'dtd_incidents_total{kind="row_retried"} 1.0' in page
    assert not unsafe(page)
    assert not forged(page)


@pytest.mark.parametrize("kind", ["job_done", "generation_running", "audit", "x\nforged", ""])
def test_a_worker_reports_nothing_that_is_the_coordinators_to_say(
    coordinator, worker, job, kind
) -> None:
    link = coordinator.worker(worker)
    notice = m.Notice(job=job, event="row_retried", message="")
    header = m.encode_header(notice).replace(b"\xabrow_retried", text_bytes(kind))
    link._socket.sendall(frame_bytes(header))
    with pytest.raises(
        ProtocolError, match=r"not a kind that a worker may report|one line"
    ) as caught:
        hear(link, m.Goodbye)
    assert caught.value.code is ErrorCode.BAD_FIELD
    link.close()
    kinds = {one["kind"] for one in coordinator.ask(m.ReadEvents())["events"]}
    assert kinds <= set(INCIDENTS) - {"job_done", "generation_running"}


def text_bytes(text: str) -> bytes:
    data = text.encode()
    return bytes([0xA0 | len(data)]) + data


@pytest.mark.parametrize("field", ["host", "device", "version", "last_end", "instance"])
def test_a_name_that_is_no_line_ends_the_connection(coordinator, worker, field) -> None:
    link = coordinator.worker(worker)
    good = m.encode_header(registering("w-0", **{field: "Z" * 20}))
    link._socket.sendall(frame_bytes(good.replace(b"Z" * 20, b"Z\x1b[2J\nforged: line \r")))
    with pytest.raises(ProtocolError, match="not one line of printable characters") as caught:
        hear(link, m.Goodbye)
    assert not unsafe(caught.value.message)
    link.close()


# --- the audit log -------------------------------------------------------------------------------


def test_a_worker_that_did_what_is_known(coordinator, worker, viewer, job) -> None:
    entries = coordinator.audit()
    joined = [e for e in entries if e["what"] == "ENROL" and e["about"]["name"] == "w-0"]
    assert [(e["role"], e["outcome"], e["address"]) for e in joined] == [
        ("stranger", "done", "127.0.0.1")
    ]
    begun, done = [e for e in entries if e["what"] == "SUBMIT_JOB"]
    assert (begun["outcome"], done["outcome"]) == ("begun", "done")
    assert done["about"] == {"name": "spoken", "task": "digits"}
    assert done["result"] == {"job": job}
    operator = coordinator.ask(m.ListCredentials())["credentials"][0]["serial"]
    assert (done["role"], done["who"], done["serial"]) == ("operator", "operator", operator)


def test_what_a_viewer_tries_is_on_record(coordinator, viewer, job) -> None:
    for message in (m.CancelJob(job=job), m.RevokeCredential(name="w-0"), m.GetStatus()):
        try:
            coordinator.ask(message, viewer)
        except RequestRefused as error:
            assert "viewer" in error.message  # noqa: PT017
    with pytest.raises(RequestRefused, match="may not ask READ_AUDIT"):
        coordinator.ask(m.ReadAudit(), viewer)
    tried = coordinator.audit(who="viewer/eve")
    assert [(e["what"], e["outcome"]) for e in tried] == [
        ("CANCEL_JOB", "refused"),
        ("REVOKE_CREDENTIAL", "refused"),
    ]
    assert all("eve is a viewer" in e["reason"] and e["serial"] for e in tried)


def test_a_stranger_does_not_fill_it_and_hides_nobody(coordinator, viewer, job) -> None:
    token = coordinator.token("worker")
    before, begun_s = coordinator.audit()[-1]["seq"], time.monotonic()
    for number in range(60):
        guess = dataclasses.replace(token, secret=f"{number:032d}")
        with pytest.raises(DtdError):  # refused, or turned away at the door
            join(guess, name="guesser", path=coordinator.directory / "guess")
    entered = [e for e in coordinator.audit(after=before) if e["what"] == "ENROL"]
    assert 0 < len(entered) <= REFUSALS_AT_ONCE + (time.monotonic() - begun_s) / REFUSAL_EVERY_S
    assert {(e["role"], e["outcome"]) for e in entered} == {("stranger", "refused")}
    with pytest.raises(RequestRefused):
        coordinator.ask(m.DrainWorker(name="w-0"), viewer)
    assert coordinator.audit()[-1]["who"] == "eve"


def test_no_secret_is_in_it(coordinator) -> None:
    made = coordinator.ask(m.CreateToken(role="worker", life_s=60))
    secret = Token.parse(made["token"]).secret
    entry = coordinator.audit(what="create_token")[-1]
    assert (entry["outcome"], entry["result"]["id"]) == ("done", made["id"])
    assert secret not in json.dumps(coordinator.audit())
    assert secret not in coordinator.child.log_path.read_text()
