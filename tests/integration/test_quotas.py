"""Nobody who is in, and nobody who is not, takes the coordinator from those who operate it.

Each of these attacks took it away once: seconds or hundreds of MiB at a coordinator without bounds.
No job trains here: a job waits for workers, and hostile callers are played.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from dtd import __version__
from dtd.coordinator.handlers import credentials
from dtd.job import parse_job, to_mapping
from dtd.net.clients.blocking_link import BlockingLink
from dtd.security.credential import Credential, bare_client_context
from dtd.wire import messages as m
from dtd.wire.session import hello
from scripts.cluster.cluster import Cluster

pytestmark = pytest.mark.integration

PROMPT_S = 10.0
"""Of the coordinator's processor time, however busy the machine is: answers to operators take
milliseconds of it; under these attacks it once took up to 36 s."""

PATIENCE_S = 30.0
MIB = 1024 * 1024
ANSWER_BYTES = 1200
"""An authority's certificate, roughly."""

DESCRIPTORS = 160
"""With so few, 96 connections are all there are."""

JOB = '[job]\nname = "digits"\ntask = "digits"\nepochs = 1\nglobal_batch_size = 64\n'
VICTIMS = ("v-output", "v-viewers", "v-calls", "v-joiners")
MEMBERS = ("m-output", "m-notices", "m-pages", "m-unread")
CALLERS = [("viewer", name) for name in ("idler", "idler-2", *VICTIMS)]
CALLERS += [("worker", name) for name in MEMBERS]


class Attacked:
    """The coordinator, a job that waits for workers, and what is measured of both."""

    def __init__(self, coordinator: Cluster) -> None:
        self.coordinator = coordinator
        self.operator = coordinator.client()
        self.ask = self.operator.request
        spec = to_mapping(parse_job(JOB, source="test"))
        self.job = str(self.ask(m.SubmitJob(spec=spec))["job"])

    @contextlib.contextmanager
    def member(self, name: str) -> Iterator[BlockingLink]:
        """A worker that warms up for the job, as it seems, and says what the test wants."""
        link = self.link(m.Role.WORKER, name, "127.0.2.1")
        link.send(
            m.Register(
                name=name,
                incarnation=1,
                pid=1,
                host="here",
                device="cpu",
                data_host="127.0.0.1",
                data_port=4000,
                version=__version__,
            )
        )
        try:
            while not isinstance(link.receive(timeout_s=PATIENCE_S)[0], m.Prepare):
                pass
            yield link
        finally:
            link.close()

    def link(self, role: m.Role, name: str, source: str) -> BlockingLink:
        """A caller's connection, from an address of this machine."""
        credential = Credential.load(self.coordinator.credential_path(name))
        return self.coordinator.link(role, credential, source=source)

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.ask(m.ReadEvents())["events"] if event["kind"] == kind]

    def await_event(self, kind: str, containing: str) -> dict[str, Any]:
        seen = 0
        while True:
            page = self.ask(m.ReadEvents(after=seen, follow=True))
            seen = page["next"]
            for event in page["events"]:
                if event["kind"] == kind and containing in event["message"]:
                    return dict(event)

    def viewer(self, name: str = "idler") -> BlockingLink:
        """A viewer's connection, from an address of its own."""
        return self.link(m.Role.CTL, name, "127.0.3.1")

    def lines(self) -> Iterator[list[str]]:
        """The job's output, page by page."""
        after = 0
        while (page := self.ask(m.ReadLogs(job=self.job, after=after)))["lines"]:
            yield [line["text"] for line in page["lines"]]
            after = page["next"]

    def await_lines(self, begin: str) -> None:
        while not any(text.startswith(begin) for page in self.lines() for text in page):
            pass

    def revokes(self, name: str) -> None:
        """Revocation is what must never wait."""
        with self.promptly():
            answer = self.coordinator.ask(m.RevokeCredential(name=name))
        assert [one["name"] for one in answer["revoked"]] == [name]

    def answers(self) -> None:
        """An operator who calls is let in, and answered."""
        with self.promptly():
            assert self.coordinator.ask(m.GetStatus())["schema"] == 1

    @contextlib.contextmanager
    def promptly(self) -> Iterator[None]:
        begun_s = self._processor_s()
        yield
        assert self._processor_s() - begun_s < PROMPT_S

    def _processor_s(self) -> float:
        used = psutil.Process(self.coordinator.children["coordinator"].pid).cpu_times()
        return float(used.user + used.system)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    directory = tmp_path_factory.mktemp("attacked")
    coordinator = Cluster(directory, environment={"HOME": str(directory)})
    coordinator.enrol(CALLERS)
    try:
        coordinator.start_coordinator(wrapper=("/usr/bin/prlimit", f"--nofile={DESCRIPTORS}"))
        made = Attacked(coordinator)
        yield made
        made.operator.close()
        assert "Traceback" not in coordinator.log_path("coordinator").read_text()
    finally:
        coordinator.stop()


def test_answers_that_nobody_reads_do_not_pile_up(attacked):
    line = b"y" * 4_000 + b"\n"
    with attacked.member("m-unread") as member:
        member.send_payload(m.JobOutput(job=attacked.job, rank=0), line * 250)
        attacked.await_lines("yy")
    before = attacked.coordinator.resident_bytes()
    idlers = [attacked.viewer() for _ in range(8)]
    for idler in idlers:
        idler.send(*[m.ReadLogs(job=attacked.job, after=0)] * 60)
    for _ in range(20):
        attacked.ask(m.ListJobs())
    attacked.answers()
    grown = attacked.coordinator.resident_bytes() - before
    for idler in idlers:
        idler.close()
    assert grown < 32 * MIB


def test_a_flood_of_output_does_not_delay_a_revocation(attacked):
    with attacked.member("m-output") as member:
        for _ in range(5):
            member.send_payload(m.JobOutput(job=attacked.job, rank=0), b"\n" * MIB)
        attacked.revokes("v-output")
        told = attacked.await_event("share_exceeded", "lines")
    assert (told["worker"], told["details"]["lines"] > MIB // 2) == ("m-output", True)
    texts = [text for page in attacked.lines() for text in page]
    assert any("lines dropped: more than 1000 a second" in text for text in texts)
    assert len(texts) < MIB // 8


def test_a_flood_of_notices_is_a_handful_of_events(attacked):
    notice = m.Notice(job=attacked.job, event="row_retried", message="again")
    with attacked.member("m-notices") as member:
        member.send(*[notice] * 400)
        attacked.await_event("share_exceeded", "notices")
        attacked.answers()
    assert len(attacked.events("row_retried")) < 100


def test_a_page_is_bounded_by_bytes(attacked):
    line = b"x" * 16_000 + b"\n"
    with attacked.member("m-pages") as member:
        member.send_payload(m.JobOutput(job=attacked.job, rank=0), line * 60)
        attacked.await_lines("xx")
    assert max(sum(map(len, page)) for page in attacked.lines()) <= MIB // 2


def test_a_strangers_questions_do_not_slow_an_operator(attacked):
    """One stranger on a few connections asks for the authority as fast as it can."""
    over = threading.Event()
    answered: list[int] = []
    flooded_s = time.monotonic()
    flooding = [threading.Thread(target=flood, args=(attacked, over, answered)) for _ in range(3)]
    with attacked.coordinator.client() as operator:
        for one in flooding:
            one.start()
        try:
            for _ in range(10):
                with attacked.promptly():
                    operator.request(m.GetStatus())
            operator.request(m.RevokeCredential(name="v-joiners"))
        finally:
            over.set()
            for one in flooding:
                one.join(PATIENCE_S)
    answers = credentials.ANSWERS_AT_ONCE + credentials.ANSWERS_PER_S * (
        time.monotonic() - flooded_s
    )
    assert sum(answered) < 1.5 * answers * ANSWER_BYTES


def flood(attacked: Attacked, over: threading.Event, answered: list[int]) -> None:
    """Ask without end, on a new connection whenever one is closed; count what is answered."""
    questions = m.message_bytes(m.GetAuthority()) * 2000
    where = attacked.coordinator.address
    while not over.is_set():
        with contextlib.suppress(OSError):
            plain = socket.create_connection((where.host, where.port), PATIENCE_S, ("127.0.4.1", 0))
            with bare_client_context().wrap_socket(plain) as calling:
                calling.settimeout(0.2)
                calling.sendall(m.message_bytes(hello(m.Role.JOIN, "stranger")))
                while not over.is_set():
                    calling.sendall(questions)
                    with contextlib.suppress(TimeoutError):
                        while count := len(calling.recv(MIB)):
                            answered.append(count)


def test_half_open_connections_keep_nobody_out(attacked):
    """From 2,000 addresses, each with half of a TLS greeting: more than there are connections."""
    where = attacked.coordinator.address.host, attacked.coordinator.address.port
    attacked.answers()  # the operator's address is known
    calling: list[socket.socket] = []
    try:
        for number in range(2000):
            one = socket.socket()
            calling.append(one)
            one.settimeout(PATIENCE_S)
            one.bind((f"127.1.{number // 250}.{number % 250 + 1}", 0))
            with contextlib.suppress(OSError):
                one.connect(where)
                one.send(b"\x16\x03\x01\x02\x00\x01")
            if number % 250 == 0:
                attacked.answers()
        attacked.revokes("v-calls")
    finally:
        for one in calling:
            one.close()
