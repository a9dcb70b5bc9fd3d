"""Faults that keep hosts from working together: each is named where people look.

Real daemons.  A worker's STATUS is read as systemd would, from its NOTIFY_SOCKET; what the
coordinator knows is in `dtdctl status`.  The words come from `dtd.diagnostics`; here stand the
golden beginnings of each.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from dtd.address import Address, Endpoint, SocketPath
from dtd.errors import CoordinatorUnreachable, RequestRefused
from dtd.host.places import SOCKET_NAME
from dtd.job import parse_job, to_mapping
from dtd.net.clients.control_client import ControlClient
from dtd.net.clients.join_client import join
from dtd.net.local_socket import call
from dtd.security import certificates, identity
from dtd.security.authority import Authority
from dtd.security.credential import Credential, write_credential
from dtd.security.token import Token
from dtd.wire import messages as m
from dtd.wire.frames import PROTOCOL_VERSION
from scripts.cluster.processes import Child, stop_all
from tests.integration.moved_clock import MovedClock

pytestmark = pytest.mark.integration

TODAY = f"{dt.datetime.now(dt.UTC):%Y-%m-}"  # and the day, which may change while this runs
PATIENCE_S = 100.0
LOOK_AGAIN_S = 0.05
OTHER_VERSION = (
    "import sys, dtd; dtd.__version__ = '9.9.0'; from dtd.worker.main import main; sys.exit(main())"
)


class Statuses:
    """The messages that a daemon sends to the service manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))

    def await_words(self, words: str) -> str:
        """The first STATUS with these words."""
        deadline, seen = time.monotonic() + PATIENCE_S, ""
        while (left_s := deadline - time.monotonic()) > 0:
            self._socket.settimeout(left_s)
            with contextlib.suppress(TimeoutError):
                text = self._socket.recv(65536).decode()
                if text.startswith("STATUS="):
                    seen = text.removeprefix("STATUS=")
                if words in seen:
                    return seen
        raise AssertionError(f"no STATUS said {words!r}; the last: {seen!r}")

    def close(self) -> None:
        self._socket.close()


class Place:
    """Daemons in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.children: list[Child] = []
        self.statuses: list[Statuses] = []

    def start(self, name: str, *command: str, **environment: str) -> tuple[Child, Statuses]:
        listening = Statuses(self.directory / f"{len(self.statuses)}.notify")
        self.statuses.append(listening)
        variables = {
            "HOME": str(self.directory),
            "NOTIFY_SOCKET": str(listening.path),
            **environment,
        }
        log = self.directory / f"{name}-{len(self.children)}.log"
        child = Child(name, [sys.executable, *command], log, variables)
        self.children.append(child)
        child.start()
        return child, listening

    def worker(self, name: str, *arguments: str, code: str = "", **environment: str):
        program = ["-c", code] if code else ["-m", "dtd.worker"]
        state = self.directory / f"state-{len(self.children)}"
        return self.start(
            name,
            *program,
            *("--name", name, "--state-dir", str(state), "--log-format", "json", *arguments),
            **environment,
        )

    def stray(self, coordinator: Address) -> tuple[str, str]:
        """Options of a worker named w with a credential of a cluster that is not here."""
        path = self.directory / "w.credential"
        made = Authority.create(self.directory / "pki")
        made.enrol(path, identity.WORKER, "w", coordinators=(coordinator,))
        return "--credential", str(path)

    def close(self) -> None:
        stop_all(self.children)
        for one in self.statuses:
            one.close()


class Cluster(Place):
    """With a coordinator, which is called over TCP, or on its own host."""

    def __init__(self, directory: Path, *, secure: bool = True) -> None:
        super().__init__(directory)
        self.secure = secure
        self.state = directory / "coordinator"
        beyond = ["--listen", "0.0.0.0:0", "--advertise", "127.0.0.1"]
        listen = beyond if secure else []
        command = ["-m", "dtd.coordinator.main", *listen, "--state-dir", str(self.state)]
        coordinator, self.status = self.start("coordinator", *command, "--log-format", "json")
        file = self.state / "address"
        deadline = time.monotonic() + PATIENCE_S
        while not file.exists():
            assert time.monotonic() < deadline
            assert coordinator.wait(LOOK_AGAIN_S) is None, coordinator.log_tail()
        self.address: Endpoint = SocketPath(str(self.state / SOCKET_NAME))
        if secure:
            self.address = Address("127.0.0.1", Address.parse(file.read_text()).port)
            self.operator = Credential.load(self.state / "pki" / "operator.credential")

    def ask(self, message: m.Message) -> dict[str, Any]:
        context = self.operator.client_context() if self.secure else None
        with ControlClient(self.address, timeout_s=PATIENCE_S, context=context) as client:
            return client.request(message)

    def await_diagnostic(self, kind: str, words: str) -> dict[str, Any]:
        """The diagnostic of this kind in `dtdctl status`, with these words."""
        deadline = time.monotonic() + PATIENCE_S
        found: list[dict[str, Any]] = []
        while time.monotonic() < deadline:
            found = self.ask(m.GetStatus())["troubles"]
            for one in found:
                if one["kind"] == kind and words in one["message"]:
                    assert one["remedy"]
                    return one
            self.children[0].wait(LOOK_AGAIN_S)
        raise AssertionError(f"no diagnostic {kind!r} with {words!r} among {found}")

    def diagnostics(self) -> set[str]:
        return {one["kind"] for one in self.ask(m.GetStatus())["troubles"]}

    def token(self, role: str = "worker") -> Token:
        return Token.parse(self.ask(m.CreateToken(role=role, life_s=3600))["token"])

    def joined(self, name: str, file: str = "") -> Credential:
        return join(self.token(), name=name, path=self.directory / (file or f"{name}.credential"))

    def made(self, name: str, *, from_day: int, days: int) -> Path:
        """A credential of this cluster with a life of our choosing."""
        authority = Authority(self.state / "pki")
        path = self.directory / f"{name}-made.credential"
        key = certificates.new_key()
        start = dt.datetime.now(dt.UTC) + dt.timedelta(days=from_day)
        certificate = living(authority, key.public_key(), "worker", name, start, days)
        write_credential(
            path,
            role="worker",
            name=name,
            workers=(name,),
            coordinators=(self.address,),
            key_pem=certificates.key_pem(key),
            certificate_pem=certificates.certificate_pem(certificate),
            facts=certificates.Facts(
                serial="",
                credential="",
                issued=dt.datetime.now(dt.UTC),
                expires=dt.datetime.now(dt.UTC) + dt.timedelta(days=90),
            ),
            authority_pem=authority.certificate_pem,
        )
        return path


def living(authority: Authority, key: Any, role: str, name: str, start: dt.datetime, days: int):
    """A certificate of this authority that lives from `start` for so many days."""
    return certificates.member_certificate(
        authority.certificate,
        authority.key,
        key,
        uris=[identity.identity_uri(authority.cluster, role, name)],
        role=role,
        serial=x509.random_serial_number(),
        now=start,
        life_days=days,
    )


@pytest.fixture(scope="module")
def secure(tmp_path_factory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("secure"))
    yield made
    made.close()


@pytest.fixture
def plain(tmp_path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, secure=False)
    yield made
    made.close()


@pytest.fixture
def place(tmp_path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()


@pytest.fixture
def full_port() -> Iterator[Address]:
    """A port whose queue is full: the kernel drops what is sent to it, as a firewall would."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            caller = stack.enter_context(socket.socket())
            caller.settimeout(0)
            caller.connect_ex(listener.getsockname())
        yield Address(*listener.getsockname())


def logged(child: Child, event: str) -> list[dict[str, Any]]:
    lines = child.log_path.read_text().splitlines()
    parsed = [json.loads(line) for line in lines if line.startswith("{")]
    return [one for one in parsed if one["event"] == event]


# --- the way to the coordinator ----------------------------------------------------------------


def test_a_blocked_port(place, full_port):
    child, status = place.worker("w", *place.stray(full_port))
    text = status.await_words(
        f"no answer within 5 s from the coordinator at {full_port}: check that its host is up,"
        f" and let TCP port {full_port.port} through its firewall",
    )
    assert text.startswith("waits for a job; ")
    (line,) = logged(child, "coordinator_unreachable")
    assert (line["kind"], line["address"]) == ("no-answer", str(full_port))


def test_nobody_listens(place):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        free = Address(*held.getsockname())
        child, status = place.worker("w", *place.stray(free))
        status.await_words(f"nothing listens at the coordinator's address {free}: start")
    (line,) = logged(child, "coordinator_unreachable")
    assert line["kind"] == "nobody-listens"


def test_a_listener_that_never_answers(place):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        silent = Address(*listener.getsockname())
        _child, status = place.worker("w", *place.stray(silent))
        status.await_words(f"no answer within 5 s from the coordinator at {silent}")


def test_a_refused_bind(place):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = Address(*listener.getsockname())
        child, status = place.worker("w", "--listen", str(taken))
        status.await_words(f"listen address {taken} is in use (choose another with")
        assert child.wait(PATIENCE_S) == 78


# --- credentials -------------------------------------------------------------------------------


def test_a_wrong_token(secure, tmp_path):
    token = dataclasses.replace(secure.token(), secret="x" * 32)
    with pytest.raises(RequestRefused) as caught:
        join(token, name="h", path=tmp_path / "c")
    assert "token" in caught.value.message
    secure.await_diagnostic("turned-away", "127.0.0.1 was rejected: it asked to join")


def test_no_credential(secure):
    child, status = secure.worker("bare", "--coordinator", str(secure.address))
    status.await_words(
        f"no credential for {secure.address} (on the coordinator's own host, give no address",
    )
    assert child.wait(PATIENCE_S) == 78
    with socket.create_connection((secure.address.host, secure.address.port), PATIENCE_S) as caller:
        caller.sendall(m.message_bytes(m.Goodbye()))
        with contextlib.suppress(ConnectionResetError):
            assert caller.recv(1) == b"", "nothing is answered without TLS"
    secure.await_diagnostic("no-tls", "127.0.0.1 was rejected: it does not speak TLS")


def test_an_expired_credential(secure):
    path = secure.made("old", from_day=-30, days=10)
    child, status = secure.worker("old", "--credential", str(path))
    text = status.await_words(
        "closed the connection without a reason: it does not accept this host's credential"
    )
    credential = Credential.load(path)
    valid = f"valid from {credential.issued:%Y-%m-%d %H:%M} to {credential.expires:%Y-%m-%d %H:%M}"
    assert f"expired by its clock ({valid} UTC; this host's clock shows {TODAY}" in text
    (line,) = logged(child, "coordinator_unreachable")
    assert valid in line["message"]
    words = "has expired by the coordinator's clock (the coordinator's clock shows"
    secure.await_diagnostic("credential-expired", f"{words} {TODAY}")
    found = logged(secure.children[0], "connection_refused")
    assert "its certificate has expired by this host's clock (" in found[-1]["reason"]
    assert "synchronize both clocks" in found[-1]["remedy"]


def test_a_credential_file_that_has_expired(secure):
    path = secure.made("late", from_day=-30, days=10)
    text = path.read_text()
    line = next(one for one in text.splitlines() if one.startswith("# expires"))
    path.write_text(text.replace(line, "# expires: 2020-01-01T00:00:00+00:00"))
    child, status = secure.worker("late", "--credential", str(path))
    status.await_words(f"the credential {path} has expired on 2020-01-01 (get a new")
    assert child.wait(PATIENCE_S) == 78


def test_a_revoked_credential(secure):
    credential = secure.joined("gone")
    _child, status = secure.worker("gone", "--credential", str(credential.path))
    status.await_words("waits for a job")
    secure.ask(m.RevokeCredential(name="gone"))
    status.await_words("is revoked: ask the operator for a new token")
    secure.await_diagnostic("turned-away", "gone is revoked")


def test_a_workers_clock_that_is_behind(secure, tmp_path):
    clock = MovedClock(tmp_path)
    clock.jumps(-3)
    behind = ("--credential", str(secure.joined("behind").path))
    child, status = secure.worker("behind", *behind, **clock.environment)
    text = status.await_words(
        f"no TLS connection to the coordinator at {secure.address}: its certificate is not valid"
        f" yet by this host's clock (valid from {TODAY}",
    )
    shown = dt.datetime.now(dt.UTC) - dt.timedelta(days=3)
    assert f" UTC; this host's clock shows {shown:%Y-%m-%d} " in text
    assert "): compare `date -u` on both hosts" in text
    (line,) = logged(child, "coordinator_unreachable")
    assert line["kind"] == "clock"


def test_a_clock_that_is_behind_is_named_by_dtdctl_and_join(secure, tmp_path):
    clock = MovedClock(tmp_path)
    clock.jumps(-3)
    operator = ("-m", "dtd.ctl.main", "--credential", str(secure.operator.path), "status")
    join_with = (
        "-m",
        "dtd.worker",
        "join",
        secure.token().word(),
        "--credential",
        "/dev/null",
    )
    for command in (operator, join_with):
        done = subprocess.run(
            [sys.executable, *command],
            env={**os.environ, "HOME": str(tmp_path), **clock.environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert done.returncode != 0
        said = " ".join(done.stderr.split())
        assert f"is not valid yet by this host's clock (valid from {TODAY}" in said
        assert "synchronize both clocks" in said


def test_a_coordinators_clock_that_is_behind(secure):
    path = secure.made("soon", from_day=3, days=825)
    _child, status = secure.worker("soon", "--credential", str(path))
    status.await_words(
        "closed the connection without a reason: it does not accept this host's credential"
    )
    secure.await_diagnostic(
        "clock", "its certificate is not valid yet by the coordinator's clock ("
    )


def test_the_own_certificate_is_named_to_a_dtdctl_that_a_coordinator_rejects(secure):
    """As when the coordinator's clock is behind, or ahead."""
    for name, from_day in (("later", 3), ("earlier", -30)):
        credential = Credential.load(secure.made(name, from_day=from_day, days=10))
        with pytest.raises(CoordinatorUnreachable) as caught:
            ControlClient(
                secure.address, context=credential.client_context(), credential=credential
            ).request(m.GetStatus())
        assert "not accept this host's credential" in caught.value.message
        assert f"(valid from {credential.issued:%Y-%m-%d %H:%M} to" in caught.value.message
        assert "synchronize both clocks" in caught.value.remedy


# --- versions, names, code ---------------------------------------------------------------------


def test_another_protocol(plain):
    hello = m.Hello(
        role="worker",
        name="w",
        protocol_min=PROTOCOL_VERSION + 1,
        protocol_max=PROTOCOL_VERSION + 1,
        version="9.9.0",
        max_payload_bytes=1024,
    )
    with call(plain.address, PATIENCE_S) as caller:
        caller.sendall(m.message_bytes(hello))
        caller.recv(4096)
    diagnostic = plain.await_diagnostic("protocol", "it uses another version of the protocol")
    assert diagnostic["remedy"].startswith("install the same dtd version there as on")


def test_another_version_of_dtd(plain):
    arguments = ["--coordinator", str(plain.address)]
    _child, status = plain.worker("newer", *arguments, code=OTHER_VERSION)
    words = f"newer on {socket.gethostname()} runs dtd 9.9.0, the coordinator on"
    status.await_words(f"is refused: {words}")
    diagnostic = plain.await_diagnostic("version", words)
    assert diagnostic["remedy"].startswith("install dtd ")


def test_a_name_taken_twice(plain):
    arguments = ["--coordinator", str(plain.address)]
    one, status = plain.worker("twin", *arguments)
    status.await_words("waits for a job")
    later, status = plain.worker("twin", *arguments)
    status.await_words("two workers use the name twin: one on")
    diagnostic = plain.await_diagnostic("name-taken", "two workers use the name twin: one on")
    assert diagnostic["remedy"].startswith("give each worker its own name")
    one.signal_group(signal.SIGTERM)
    while not logged(later, "coordinator_connected"):  # it has asked again and again
        assert later.wait(LOOK_AGAIN_S) is None
    (line,) = logged(later, "registration_refused")
    assert (line["level"], line["worker"]) == ("warning", "twin")
    assert "two workers use the name twin: one on" in line["message"]
    assert line["remedy"] == diagnostic["remedy"]


TASK = """
from dtd.tasks.synthetic import Synthetic as Task
# {note}
"""
JOB = """
[job]
name = "j"
task = "{task}"
epochs = 1
global_batch_size = 64
[elastic]
min_workers = 2
settle_s = 0.0
"""


def submit(cluster: Cluster, task: str) -> None:
    spec = to_mapping(parse_job(JOB.format(task=task), source="test"))
    cluster.ask(m.SubmitJob(spec=spec))


def test_other_code_of_the_task(plain):
    for name, note in (("w-0", "one"), ("w-1", "another")):
        code = plain.directory / f"code-{name}"
        code.mkdir()
        (code / "own_task.py").write_text(TASK.format(note=note))
        _child, status = plain.worker(
            name, "--coordinator", str(plain.address), PYTHONPATH=os.pathsep.join([str(code), "."])
        )
        status.await_words("waits for a job")
    submit(plain, "own_task:Task")
    diagnostic = plain.await_diagnostic("unfit", "w-1 has other code of the task (")
    assert diagnostic["message"].startswith(f"w-1 on {socket.gethostname()} cannot train with")
    assert diagnostic["remedy"].startswith("have `dtdctl submit` ship it")


def test_an_advertised_address_that_others_do_not_reach(plain):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        dead = Address(*held.getsockname())
        arguments = ["--coordinator", str(plain.address)]
        _first, status = plain.worker("w-0", *arguments)
        _second, other = plain.worker("w-1", *arguments, "--advertise", str(dead))
        for one in (status, other):
            one.await_words("waits for a job")
        submit(plain, "synthetic")
        other.await_words("connects to its neighbours")
        diagnostic = plain.await_diagnostic("one-way", f"w-0 does not reach w-1 (data port {dead})")
        assert "one way is closed" in diagnostic["message"]
        assert "correct --advertise of w-1" in diagnostic["remedy"]
        unreached = f"the data port {dead} of w-1 cannot be reached from here"
        status.await_words(unreached)


# --- what people see ---------------------------------------------------------------------------


def test_dtdctl_shows_them_and_they_are_over_when_the_host_succeeds(plain):
    _child, status = plain.worker("w", "--coordinator", str(plain.address), code=OTHER_VERSION)
    status.await_words("is refused")
    plain.await_diagnostic("version", "runs dtd 9.9.0")
    command = [sys.executable, "-m", "dtd.ctl.main", "status"]
    command += ["--coordinator", str(plain.address)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "\ntroubles\n" in shown.stdout
    assert "  try: install dtd " in shown.stdout
    stop_all(plain.children[1:])
    _child, status = plain.worker("w", "--coordinator", str(plain.address))
    status.await_words("waits for a job")
    deadline = time.monotonic() + PATIENCE_S
    while plain.diagnostics() and time.monotonic() < deadline:
        plain.children[0].wait(LOOK_AGAIN_S)
    assert plain.diagnostics() == set()
