"""A cluster beyond loopback: joining, training, and everybody who must not get in.

Real processes on this machine's own address; skipped where it has none but loopback.
"""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dtd.address import Address
from dtd.coordinator.connections.control_port import advertised
from dtd.errors import (
    ConfigError,
    CoordinatorUnreachable,
    ProtocolError,
    RequestRefused,
    UsageError,
)
from dtd.job import parse_job, to_mapping
from dtd.net.clients.blocking_link import BlockingLink
from dtd.net.clients.tls import tls_connect
from dtd.security.authority import Authority
from dtd.security.credential import Credential, bare_client_context
from dtd.security.token import Token
from dtd.wire import messages as m
from scripts.cluster.cluster import Cluster
from scripts.cluster.processes import Child
from tests.integration.beyond import Beyond

pytestmark = pytest.mark.integration

PATIENCE_S = 60.0
JOB = """
[job]
name = "beyond"
task = "synthetic"
steps = 8
global_batch_size = 128
[elastic]
min_workers = 2
settle_s = 0.0
"""


def own_host() -> str:
    try:
        return advertised("", Address("0.0.0.0", 1))[0].host
    except ConfigError:
        pytest.skip("this machine has no address but loopback")


class Secured(Beyond):
    """A coordinator beyond loopback, and the hosts that join it."""

    def worker(self, credential: Credential, *options: str) -> Child:
        options = ("--log-format", "json", *options)
        return self.start_worker(f"{credential.name}-cpu", *options, credential=credential.path)

    def states(self) -> dict[str, str]:
        return {one["name"]: one["state"] for one in self.ask(m.GetStatus())["workers"]}

    def await_event(self, kind: str, *, after: int, **fields: str) -> int:
        """The number of the first event of this kind with these fields."""
        while True:
            page = self.ask(m.ReadEvents(after=after, follow=True))
            after = page["next"]
            for event in page["events"]:
                if event["kind"] == kind and fields.items() <= event.items():
                    return int(event["seq"])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("secure"), listen=("--listen", f"{own_host()}:0"))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def tokens(cluster: Secured) -> list[Token]:
    """Two hosts have joined with these, and their workers run."""
    first = Token.parse((cluster.state / "pki" / "worker.token").read_text())
    used = [first, cluster.token()]
    for number, token in enumerate(used):
        cluster.worker(cluster.join(f"host{number}", token=token))
    return used


def trained(cluster: Secured, credential: Credential, *overrides: str) -> str:
    """The id of a job that the two hosts have trained."""
    spec = to_mapping(parse_job(JOB, source="test", overrides=overrides))
    job: str = cluster.ask(m.SubmitJob(spec=spec))["job"]
    ended = cluster.ask(m.WaitJob(job=job), credential)
    tails = [child.log_tail() for child in cluster.children.values()]
    assert ended["state"] == "done", (ended, tails)
    return job


def register(name: str) -> m.Register:
    return m.Register(
        name=name,
        incarnation=7,
        pid=1,
        host="h",
        device="cpu",
        data_host="",
        data_port=1,
        version="0",
    )


def test_hosts_join_and_train_and_no_secret_is_logged(
    cluster: Secured, tokens: list[Token]
) -> None:
    viewer = cluster.join("eve", "viewer")
    trained(cluster, viewer)
    keys = {
        re.sub(r"-----[^-]*-----|\s", "", path.read_text())[:40]
        for path in cluster.directory.glob("*.credential")
    }
    data_key = (cluster.state / "pki" / "data.key").read_bytes()
    secrets = {token.secret for token in tokens} | keys | {data_key.hex()}
    for log in cluster.directory.glob("*.log"):
        text = log.read_text()
        assert not [one for one in secrets if one in text], log
        assert "PRIVATE KEY" not in text
    for path in [*cluster.directory.glob("*.credential"), *(cluster.state / "pki").iterdir()]:
        assert path.stat().st_mode & 0o777 == 0o600, path


def test_an_encrypted_job_is_trained_and_its_weights_are_fetched(
    cluster: Secured, tokens: list[Token], tmp_path: Path
) -> None:
    """A codec's payload has its own arithmetic, and is summed on the ring all the same."""
    assert tokens
    rounds = ("strategy.name=diloco", "strategy.inner_steps=4", "strategy.codec=int8")
    job = trained(cluster, cluster.operator, "sync.encryption=tls", *rounds)
    done = cluster.await_event("job_done", after=0, job=job)
    for holder in ("host0-cpu", "host1-cpu"):  # either may be, and starts afresh after its job
        cluster.await_event("worker_registered", after=done, worker=holder)
    command = [sys.executable, "-m", "dtd.ctl.main", "--credential", str(cluster.operator.path)]
    command += ["--coordinator", str(cluster.address), "fetch", job, str(tmp_path)]
    fetched = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert fetched.returncode == 0, fetched.stderr
    assert (tmp_path / "model.safetensors").stat().st_size > 0


def test_without_a_credential_nobody_is_heard(cluster: Secured) -> None:
    with pytest.raises((ProtocolError, ConnectionError)):
        BlockingLink(cluster.address, role=m.Role.CTL, name="t", timeout_s=PATIENCE_S)
    with pytest.raises((RequestRefused, ssl.SSLError), match="may not open"):
        BlockingLink(
            cluster.address,
            role=m.Role.CTL,
            name="t",
            timeout_s=PATIENCE_S,
            connect=tls_connect(bare_client_context(), ""),
        )


def test_a_credential_of_another_cluster_is_no_credential(cluster: Secured, tmp_path: Path) -> None:
    other = Authority.create(tmp_path / "pki")
    other.equip((cluster.address,))
    foreign = Credential.load(tmp_path / "pki" / "operator.credential")
    with pytest.raises(CoordinatorUnreachable, match="its certificate is from another cluster"):
        Cluster.client(cluster, foreign)  # without patience


def test_a_token_of_another_cluster_is_not_shown_to_this_one(
    cluster: Secured, tmp_path: Path
) -> None:
    other = Authority.create(tmp_path / "pki")
    token, _expires = other.create_token("worker", life_s=0, coordinators=(cluster.address,))
    with pytest.raises(ConfigError, match="is not the coordinator that issued the token"):
        cluster.join("fooled", token=token)
    assert token.secret not in (cluster.directory / "coordinator.log").read_text()


def test_a_token_that_is_not_good_lets_nobody_join(cluster: Secured) -> None:
    good = cluster.token()
    parts = {name: getattr(good, name) for name in ("role", "coordinators", "authority_sha256")}
    with pytest.raises(RequestRefused, match="not known here"):
        cluster.join("n", token=Token(**parts, id=good.id, secret="x" * 32))
    other_role = parts | {"role": "operator"}
    with pytest.raises(RequestRefused, match="is for the role worker, not operator"):
        cluster.join("n", token=Token(**other_role, id=good.id, secret=good.secret))
    with pytest.raises(UsageError, match="is not a name"):
        cluster.join("a/b", token=good)
    cluster.ask(m.RevokeToken(id=good.id))
    with pytest.raises(RequestRefused, match="or was revoked"):
        cluster.join("n", token=good)
    short = cluster.token(life_s=1)
    with cluster.client() as client:
        while short.id not in {
            one["id"] for one in client.request(m.ListTokens())["tokens"] if one["expired"]
        }:
            pass
    with pytest.raises(RequestRefused, match="has expired"):
        cluster.join("n", token=short)


def test_a_worker_is_no_operator_and_has_its_own_name_only(cluster: Secured) -> None:
    credential = cluster.join("host5")
    with pytest.raises(RequestRefused, match="does not open a connection of role ctl"):
        cluster.client(credential)
    link = cluster.link(m.Role.WORKER, credential)
    link.send(m.KillWorker(name="host0-cpu", signal="KILL"))
    with pytest.raises((ProtocolError, ConnectionError)):
        link.receive(timeout_s=PATIENCE_S)
    link.close()
    link = cluster.link(m.Role.WORKER, credential)
    link.send(register("host0-cpu"))
    with pytest.raises(RequestRefused, match="not valid for a worker named host0-cpu"):
        link.receive(timeout_s=PATIENCE_S)
    link.close()


def test_a_viewer_looks_and_changes_nothing(cluster: Secured) -> None:
    viewer = cluster.join("looker", "viewer")
    assert cluster.ask(m.GetStatus(), viewer)["schema"]
    for message in (
        m.KillWorker(name="host0-cpu", signal="KILL"),
        m.CreateToken(role="operator", life_s=0),
        m.ListCredentials(),
    ):
        with pytest.raises(RequestRefused, match="looker is a viewer and may not ask"):
            cluster.ask(message, viewer)
    with pytest.raises(RequestRefused, match="does not open a connection of role worker"):
        cluster.link(m.Role.WORKER, viewer)


def test_a_revoked_worker_is_out_at_once_and_stays_out(cluster: Secured) -> None:
    credential = cluster.join("host9")
    link = cluster.link(m.Role.WORKER, credential)
    link.send(register("host9-cpu"))
    link.receive(timeout_s=PATIENCE_S)
    answer = cluster.ask(m.RevokeCredential(name="host9"))
    assert answer["evicted"] == ["host9-cpu"]
    with pytest.raises(RequestRefused, match="was revoked"):
        link.receive(timeout_s=PATIENCE_S)
    link.close()
    assert cluster.states()["host9-cpu"] == "lost"
    with pytest.raises(RequestRefused, match="the credential of worker/host9 is revoked"):
        cluster.link(m.Role.WORKER, credential)
    listed = cluster.ask(m.ListCredentials())["credentials"]
    assert [one["revoked_s"] > 0 for one in listed if one["name"] == "host9"] == [True]


def test_a_revoked_operator_is_cut_off_in_the_middle(cluster: Secured) -> None:
    operator = cluster.join("ann", "operator")
    with cluster.client(operator) as client:
        client.request(m.GetStatus())
        cluster.ask(m.RevokeCredential(name="ann"))
        with pytest.raises((RequestRefused, CoordinatorUnreachable)):
            client.request(m.GetStatus())


def test_dtdctl_and_the_worker_say_what_is_missing(
    cluster: Secured, tmp_path: Path, check_output: Callable[..., None]
) -> None:
    environ = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}

    def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", f"dtd.{program}", *arguments],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )

    asked = run("ctl.main", "--coordinator", str(cluster.address), "status")
    assert asked.returncode == UsageError.exit_code
    assert f"no credential for {cluster.address}" in asked.stderr
    worker = run("worker", "--coordinator", str(cluster.address), "--state-dir", str(tmp_path))
    assert worker.returncode == ConfigError.exit_code
    assert f"no credential for {cluster.address}" in worker.stderr
    token = cluster.token("operator")
    joined = run("ctl.main", "join", token.word(), "--name", "bob")
    assert joined.returncode == 0, joined.stderr
    seen = run("ctl.main", "-o", "json", "credentials")
    assert "bob" in {one["name"] for one in json.loads(seen.stdout)["credentials"]}
    assert token.secret not in joined.stderr + joined.stdout + seen.stdout
    check_output(("credentials",), seen.stdout)
    made = run("ctl.main", "-o", "json", "token", "create")
    check_output(("token", "create"), made.stdout)
    check_output(("token", "list"), run("ctl.main", "-o", "json", "token", "list").stdout)
    taken = run("ctl.main", "-o", "json", "token", "revoke", json.loads(made.stdout)["id"])
    check_output(("token", "revoke"), taken.stdout)
    revoked = run(
        "ctl.main", "-o", "json", "revoke", "bob"
    ).stdout  # itself: the answer still comes
    check_output(("revoke",), revoked)


def test_init_prints_what_hosts_join_with_and_can_be_repeated(tmp_path: Path) -> None:
    def init() -> str:
        command = [sys.executable, "-m", "dtd.coordinator.main", "init"]
        command += ["--state-dir", str(tmp_path / "s"), "--listen", "10.9.9.9:7117"]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PATIENCE_S
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    printed = init()
    assert printed.startswith("dtd-worker join dtd1/worker/10.9.9.9:7117/")
    assert init() == printed


def test_a_flood_evicts_no_worker(cluster: Secured) -> None:
    """2000 connections that end at once and 200 that say nothing, beside a worker that beats.

    The last test of the cluster: the coordinator is short with this host for a while after it.
    """
    before = cluster.ask(m.ReadEvents())["next"]
    cluster.worker(cluster.join("host8"))
    cluster.await_event("worker_registered", after=before, worker="host8-cpu")
    idle: list[socket.socket] = []
    with cluster.client() as client:
        for number in range(2200):
            try:
                made = socket.create_connection((cluster.address.host, cluster.address.port), 5)
            except OSError:
                continue
            if number % 11 == 0:
                idle.append(made)
                assert client.request(m.GetStatus())
            else:
                made.close()
        status = client.request(m.GetStatus())
        found = client.request(m.ReadEvents(after=before))["events"]
    for one in idle:
        one.close()
    beats = {one["name"]: one["last_heartbeat_s"] for one in status["workers"]}
    assert beats["host8-cpu"] is not None
    assert not {one["kind"] for one in found} & {"worker_lost", "worker_away"}
