"""The coordinator on its own host: who may do what, and who is rejected when it is away.

Real processes.  The tests become other users of this host, which only root can.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dtd import __version__
from dtd.address import Address, SocketPath
from dtd.errors import CoordinatorUnreachable, RequestRefused
from dtd.host.places import SOCKET_NAME
from dtd.job import parse_job, to_mapping
from dtd.net.clients.blocking_link import BlockingLink
from dtd.net.clients.control_client import ControlClient
from dtd.net.clients.join_client import join
from dtd.security.authority import Authority
from dtd.security.token import Token
from dtd.wire import messages as m
from dtd.wire.session import hello
from scripts.cluster.processes import Child, stop_all

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else"),
]

Dial = Callable[[], socket.socket]

PATIENCE_S = 60.0
NOBODY = 65534
OPERATOR, WORKER, VIEWER, VIEWERS = 65401, 65402, 65403, 65410
TRIES = 30
SPEC = to_mapping(
    parse_job(
        '[job]\nname="stolen"\ntask="digits"\nepochs=1\nglobal_batch_size=64\n', source="test"
    )
)


@contextlib.contextmanager
def user(uid: int, *groups: int) -> Iterator[None]:
    """This process is somebody else, as far as the kernel tells others."""
    before = os.getgroups()
    os.setgroups(groups)
    os.setegid(uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(before)


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory that everybody may enter, below root's alone; pytest's own are closed."""
    made = Path(tempfile.mkdtemp(prefix="dtd-socket-", dir="/var/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def coordinator_at(place: Path, name: str, *options: str) -> Child:
    command = [sys.executable, "-m", "dtd.coordinator.main", "--state-dir", str(place / name)]
    return Child(name, [*command, *options], place / f"{name}.log", {"HOME": str(place)})


@pytest.fixture(scope="module")
def served(place: Path) -> Iterator[SocketPath]:
    """A coordinator that names some users; its socket."""
    at = SocketPath(str(place / SOCKET_NAME))
    child = coordinator_at(
        place,
        "served",
        *("--socket", at.path),
        *("--local-operators", str(OPERATOR)),
        *("--local-workers", str(WORKER)),
        *("--local-viewers", f"{VIEWER},@{VIEWERS}"),
        *("--listen", "127.0.0.1:0"),
    )
    child.start()
    try:
        await_address(child, place / "served")
        yield at
    finally:
        stop_all([child])
    assert not Path(at.path).exists(), "whoever stops takes the socket away"


def await_address(child: Child, state: Path) -> None:
    while not (state / "address").exists():
        assert child.wait(0.05) is None, child.log_tail()


def ask(at: SocketPath, message: m.Message) -> dict[str, object]:
    with ControlClient(at, timeout_s=PATIENCE_S) as client:
        return client.request(message)


def test_the_own_user_may_do_everything(served: SocketPath) -> None:
    assert ask(served, m.GetStatus())["workers"] == []


def test_a_worker_that_is_not_named_is_refused_and_told_whom_it_belongs_to(
    served: SocketPath,
) -> None:
    with user(NOBODY), pytest.raises(RequestRefused) as caught:
        ask(served, m.GetStatus())
    assert caught.value.message == "uid 65534 may not open a connection of role ctl here"
    assert caught.value.remedy.startswith("the coordinator belongs to uid 0, and accepts only")
    assert "local_viewers" in caught.value.remedy
    diagnostics = ask(served, m.GetStatus())["troubles"]
    assert [one["where"] for one in diagnostics] == ["uid 65534"]


@pytest.fixture(params=["socket", "tcp"])
def dial(request: pytest.FixtureRequest, place: Path, served: SocketPath) -> Dial:
    """Connects without a credential."""
    if request.param == "socket":

        def connect() -> socket.socket:
            made = socket.socket(socket.AF_UNIX)
            made.connect(served.path)
            return made

        return connect
    at = tcp_address(place)

    def connect_tcp() -> socket.socket:
        made = socket.socket()
        made.connect((at.host, at.port))
        return made

    return connect_tcp


def tcp_address(place: Path) -> Address:
    return Address.parse((place / "served" / "address").read_text())


def test_frames_that_come_together_with_the_end_are_not_heard(
    served: SocketPath, dial: Dial
) -> None:
    """The row of a loopback connection that was closed at once said uid 0."""
    frames = b"".join(
        m.message_bytes(one)
        for one in (hello(m.Role.CTL, "dtdctl"), m.SubmitJob(spec=SPEC), m.ListTokens())
    )
    with user(NOBODY):
        for _ in range(TRIES):
            with contextlib.suppress(ConnectionError), dial() as calling:
                calling.sendall(frames)
        heard = b""  # once this one is dealt with, those before it are
        with contextlib.suppress(ConnectionError), dial() as calling:
            calling.settimeout(PATIENCE_S)
            calling.sendall(frames)
            while piece := calling.recv(4096):
                heard += piece
    assert b"DTDF" not in heard or b"may not open" in heard
    assert ask(served, m.ListJobs()) == {"jobs": []}


def test_plain_tcp_is_refused_in_words_on_loopback_too(place: Path, served: SocketPath) -> None:
    at = tcp_address(place)
    environment = {**os.environ, "HOME": str(place), "XDG_CONFIG_HOME": str(place)}
    told = [
        subprocess.run(
            [sys.executable, "-m", *program],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
            env=environment,
        )
        for program in (
            ("dtd.ctl.main", "--coordinator", str(at), "status"),
            ("dtd.worker", "--coordinator", str(at), "--name", "w"),
        )
    ]
    assert [one.returncode for one in told] == [2, 78]
    for one in told:
        assert f"no credential for {at}" in one.stderr
        assert (
            "on the coordinator's own host, give no address, and its socket is used" in one.stderr
        )


def test_a_worker_that_takes_the_port_first_is_not_followed(place: Path) -> None:
    """A worker with a credential, while the coordinator is away."""
    with socket.create_server(("127.0.0.1", 0)) as posing:
        at = Address(*posing.getsockname())
        posing.settimeout(PATIENCE_S)
        credential = place / "w.credential"
        Authority.create(place / "pki").enrol(credential, "worker", "w", coordinators=(at,))
        worker = [sys.executable, "-m", "dtd.worker", "--credential", str(credential)]
        worker += ["--name", "w", "--state-dir", str(place / "state-w"), "--log-format", "json"]
        child = Child("w", worker, place / "posed.log", {"HOME": str(place)})
        child.start()
        try:
            with posing.accept()[0] as called:
                called.settimeout(PATIENCE_S)
                assert called.recv(1) == b"\x16", "a handshake of TLS"
                # What a coordinator says first, to one that would listen.
                called.sendall(m.message_bytes(m.Goodbye(reason="follow me")))
                while called.recv(4096):
                    pass
            with posing.accept()[0]:
                pass
        finally:
            stop_all([child])
        assert any("no TLS connection to the coordinator" in line for line in child.log_tail())


@pytest.mark.parametrize(("uid", "groups"), [(VIEWER, ()), (NOBODY, (VIEWERS,))])
def test_a_viewer_looks_and_changes_nothing(
    served: SocketPath, uid: int, groups: tuple[int, ...]
) -> None:
    with user(uid, *groups):
        assert "workers" in ask(served, m.GetStatus())
        with pytest.raises(RequestRefused, match=f"uid {uid} is a viewer and may not ask SUBMIT"):
            ask(served, m.SubmitJob(spec=SPEC))


def test_a_worker_registers_and_asks_nothing(served: SocketPath) -> None:
    with user(WORKER):
        with pytest.raises(RequestRefused, match="uid 65402 has the role worker here and may"):
            ask(served, m.SubmitJob(spec=SPEC))
        link = BlockingLink(served, role=m.Role.WORKER, name="w", timeout_s=PATIENCE_S)
    link.send(registering("w"))
    assert isinstance(link.receive(timeout_s=PATIENCE_S)[0], m.Registered)
    link.close()
    with user(OPERATOR), pytest.raises(RequestRefused, match="has the role operator here and may"):
        BlockingLink(served, role=m.Role.WORKER, name="w", timeout_s=PATIENCE_S)


def test_a_worker_here_takes_no_name_of_another_host(served: SocketPath, place: Path) -> None:
    token = ask(served, m.CreateToken(role="worker", life_s=60))["token"]
    join(Token.parse(str(token)), name="host7", path=place / "host7.credential")
    with user(WORKER):
        link = BlockingLink(served, role=m.Role.WORKER, name="host7-cpu", timeout_s=PATIENCE_S)
    link.send(registering("host7-cpu"))
    with pytest.raises(RequestRefused, match="host7-cpu belongs to the credential worker/host7"):
        link.receive(timeout_s=PATIENCE_S)
    link.close()


def registering(name: str) -> m.Register:
    return m.Register(
        name=name, incarnation=1, pid=1, host="h", device="cpu", data_host="", data_port=1,
        version=__version__,
    )  # fmt: skip


def test_an_operator_submits(served: SocketPath) -> None:
    with user(OPERATOR):
        job = ask(served, m.SubmitJob(spec=SPEC))["job"]
        ask(served, m.CancelJob(job=str(job)))


def test_a_closed_directory_lets_nobody_in(place: Path, served: SocketPath) -> None:
    state = place / "served"  # where the socket lies unless it is put elsewhere
    assert state.stat().st_mode & 0o777 == 0o700
    with user(NOBODY), pytest.raises(CoordinatorUnreachable) as caught:
        ask(SocketPath(str(state / SOCKET_NAME)), m.GetStatus())
    assert caught.value.message.startswith("uid 65534 may not open the coordinator's socket unix:")
    assert "local_workers" in caught.value.remedy


def test_one_that_was_killed_leaves_a_socket_that_the_next_one_replaces(place: Path) -> None:
    state = place / "again"
    at = SocketPath(str(state / SOCKET_NAME))
    for _ in range(2):
        child = coordinator_at(place, "again")
        child.start()
        try:
            await_address(child, state)
            ask(at, m.GetStatus())
            (state / "address").unlink()
            second = coordinator_at(place, "second", "--socket", at.path)
            second.start()
            assert second.wait(PATIENCE_S) == 78
            assert any(f"another process listens at {at}" in line for line in second.log_tail())
            ask(at, m.GetStatus())
        finally:
            child.signal_group(signal.SIGKILL)
            child.wait(PATIENCE_S)
    assert Path(at.path).is_socket()


def test_a_worker_that_took_the_coordinators_place_is_not_followed(place: Path) -> None:
    """Whoever can put a socket there first would command workers, and see what people submit."""
    taken = place / "taken"
    taken.mkdir()
    os.chown(taken, NOBODY, NOBODY)  # as a directory in /tmp that he made
    at = SocketPath(str(taken / SOCKET_NAME))
    with socket.socket(socket.AF_UNIX) as posing:
        with user(NOBODY):
            posing.bind(at.path)
        posing.settimeout(PATIENCE_S)
        with user(NOBODY):
            posing.listen()
        with pytest.raises(CoordinatorUnreachable) as caught:
            ask(at, m.SubmitJob(spec=SPEC))
        assert caught.value.message == (
            f"the coordinator at {at} is rejected: uid 65534 listens at {at}, which may be"
            " any user: other users can write to /var/tmp"
        )
        worker = [sys.executable, "-m", "dtd.worker", "--coordinator", str(at)]
        worker += ["--name", "w", "--state-dir", str(place / "w"), "--log-format", "json"]
        child = Child("w", worker, place / "w.log", {"HOME": str(place)})
        child.start()
        try:
            posing.accept()[0].close()  # that was us
            for _ in range(2):
                with posing.accept()[0] as called:
                    called.settimeout(PATIENCE_S)
                    assert called.recv(1) == b"", "nothing is said to him"
        finally:
            stop_all([child])
        assert any("is rejected" in line for line in child.log_tail())
