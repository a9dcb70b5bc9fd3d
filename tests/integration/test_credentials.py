"""Credentials at a real coordinator: who gets which name, how often, and what counts no more."""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from dtd.config import load_worker_config
from dtd.coordinator.store.backup import back_up, restore
from dtd.errors import RequestRefused
from dtd.net.clients.blocking_link import BlockingLink
from dtd.net.clients.join_client import join, pending_key
from dtd.security import certificates, identity
from dtd.security.authority import Authority
from dtd.security.credential import Credential, write_credential
from dtd.security.token import Token
from dtd.wire import messages as m
from dtd.worker.cluster_access import load_credential, run_join
from tests.integration.beyond import Beyond, registering

pytestmark = pytest.mark.integration

PATIENCE_S = 60.0


class Coordinator(Beyond):
    def register(self, credential: Credential, name: str, instance: str = "") -> BlockingLink:
        """A connection on which a worker of this name has registered.

        Raises:
            RequestRefused: it cannot.
        """
        link = self.link(m.Role.WORKER, credential)
        try:
            incarnation = hash((name, instance)) & 0xFFFF
            link.send(registering(name, instance=instance, incarnation=incarnation))
            answer, _payload = link.receive(timeout_s=PATIENCE_S)
            assert isinstance(answer, m.Registered)
        except BaseException:
            link.close()
            raise
        return link


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    made = Coordinator(tmp_path_factory.mktemp("credentials"))
    yield made
    made.stop()


def test_a_credential_reaches_no_name_of_another_host(coordinator: Coordinator) -> None:
    """host7 registered as host7-b-cpu, which is a worker of the host host7-b."""
    first = coordinator.join("host7")
    second = coordinator.join("host7-b")
    coordinator.register(second, "host7-b-cpu").close()
    coordinator.register(first, "host7-cuda3").close()
    for name in ("host7-b-cpu", "host7-b", "host7-anything"):
        with pytest.raises(RequestRefused, match=f"is not valid for a worker named {name}"):
            coordinator.register(first, name)
    with pytest.raises(RequestRefused, match="host7-cpu belongs to the credential worker/host7"):
        coordinator.join("host7-cpu")
    with pytest.raises(RequestRefused, match="host8 cannot be given the name 'host7-x'"):
        coordinator.join("host8", workers=("host8", "host7-x"))


def test_a_name_has_one_living_registration(coordinator: Coordinator) -> None:
    credential = coordinator.join("single")
    living = coordinator.register(credential, "single-cpu", "here")
    with pytest.raises(RequestRefused, match="single-cpu"):
        coordinator.register(credential, "single-cpu", "elsewhere")
    living.close()


def test_a_token_is_good_once_also_for_two_at_a_time(coordinator: Coordinator) -> None:
    token = coordinator.token()
    results: list[str] = []

    def try_it(name: str) -> None:
        try:
            coordinator.join(name, token=token)
            results.append("joined")
        except RequestRefused as refused:
            results.append(refused.message)

    threads = [threading.Thread(target=try_it, args=(f"twin-{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results.count("joined") == 1, results
    assert {one for one in results if one != "joined"} == {
        f"the token {token.id} is used up: it could be used once"
    }


def test_the_first_token_is_used_up_by_its_first_use(coordinator: Coordinator) -> None:
    first = Token.parse((coordinator.state / "pki" / "worker.token").read_text())
    coordinator.join("first", token=first)
    with pytest.raises(RequestRefused, match="is used up"):
        coordinator.join("second", token=first)


def test_the_worker_finds_the_credential_where_joining_has_put_it(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = coordinator.directory / "elsewhere" / "credential"
    path.parent.mkdir()
    monkeypatch.setenv("DTD_CREDENTIAL", str(path))
    assert run_join([coordinator.token().word(), "--name", "placed"]) == 0
    config = load_worker_config({}, os.environ, hostname="placed")
    credential, _ignored = load_credential(config, os.environ)
    assert credential is not None
    assert (credential.name, credential.path) == ("placed", path)


def test_a_token_for_a_name_gives_no_other(coordinator: Coordinator) -> None:
    token = coordinator.token(names="bound")
    with pytest.raises(RequestRefused, match="is for bound, not elsewhere"):
        coordinator.join("elsewhere", token=token)
    coordinator.join("bound", token=token)


def test_a_join_whose_answer_got_lost_is_repeated(coordinator: Coordinator) -> None:
    token = coordinator.token()
    key = pending_key(coordinator.directory / "lost.credential", token.id)
    coordinator.join("lost", token=token, file="answered")  # another key: that is the use
    with pytest.raises(RequestRefused, match="is used up"):
        coordinator.join("lost", token=token)
    token = coordinator.token()
    key = pending_key(coordinator.directory / "again.credential", token.id)
    again = pending_key(coordinator.directory / "again-too.credential", token.id)
    assert certificates.key_pem(key) != certificates.key_pem(again)
    (coordinator.directory / ".again-too.credential.joining").write_bytes(
        (coordinator.directory / ".again.credential.joining").read_bytes()
    )
    coordinator.join("again", token=token)
    repeated = coordinator.join("again", token=token, file="again-too")
    coordinator.register(repeated, "again-cpu").close()


def test_a_living_name_is_not_given_twice(coordinator: Coordinator) -> None:
    """Whoever held a token became any host, beside the one that it is."""
    credential = coordinator.join("host9")
    link = coordinator.register(credential, "host9-cpu")
    with pytest.raises(RequestRefused, match="worker/host9 already has a valid credential"):
        coordinator.join("host9", file="thief")
    replacing = coordinator.token(names="host9", replaces=True)
    successor = coordinator.join("host9", token=replacing, file="successor")
    with pytest.raises(RequestRefused, match=r"was replaced|is revoked"):
        link.receive(timeout_s=PATIENCE_S)
    link.close()
    with pytest.raises(RequestRefused, match="the credential of worker/host9 is revoked"):
        coordinator.link(m.Role.WORKER, credential)
    coordinator.register(successor, "host9-cpu").close()


@pytest.mark.parametrize("is_of_an_issued_one", [False, True])
def test_a_certificate_that_was_not_issued_here_does_not_count(
    coordinator: Coordinator, is_of_an_issued_one: bool
) -> None:
    """Signed with the authority's key, from a copy of its directory, say."""
    authority = Authority(coordinator.state / "pki")
    key = certificates.new_key()
    serial = x509.random_serial_number()
    if is_of_an_issued_one:
        serial = int(coordinator.join("honest").serial, 16)
    made = certificates.member_certificate(
        authority.certificate,
        authority.key,
        key.public_key(),
        uris=[identity.identity_uri(authority.cluster, "operator", "mallory")],
        role="operator",
        serial=serial,
        now=dt.datetime.now(dt.UTC),
        life_days=30,
    )
    path = coordinator.directory / "mallory.credential"
    write_credential(
        path,
        role="operator",
        name="mallory",
        coordinators=(coordinator.address,),
        key_pem=certificates.key_pem(key),
        certificate_pem=certificates.certificate_pem(made),
        facts=certificates.facts_of(certificates.certificate_pem(made)),
        authority_pem=authority.certificate_pem,
    )
    with pytest.raises(RequestRefused, match="was not issued by this coordinator"):
        coordinator.ask(m.GetStatus(), Credential.load(path))


def test_a_revocation_is_carried_out_when_all_that_asked_has_left(coordinator: Coordinator) -> None:
    credential = coordinator.join("leaver")
    link = coordinator.register(credential, "leaver-cpu")
    client = coordinator.client()
    client.ask(m.RevokeCredential(name="leaver"))
    client.close()
    with pytest.raises(RequestRefused, match="was revoked"):
        link.receive(timeout_s=PATIENCE_S)
    link.close()


def test_a_restored_coordinator_knows_hosts_of_the_backup_and_no_token(tmp_path: Path) -> None:
    first = Coordinator(tmp_path)
    backup, elsewhere = tmp_path / "backup.tar", tmp_path / "elsewhere"
    elsewhere.mkdir()
    try:
        stays, goes = (first.join(name) for name in ("stays", "goes"))
        token = first.token()
        back_up(first.state, backup)
        first.join("late", token=token)
        first.ask(m.RevokeCredential(name="goes"))
    finally:
        first.stop()
    restore(backup, elsewhere / "coordinator")
    second = Coordinator(elsewhere)
    try:
        attacker = second.register(at(second, goes), "goes-cpu")  # revoked after the backup
        with pytest.raises(RequestRefused, match="the token is not known here"):
            join(
                dataclasses.replace(token, coordinators=(second.address,)),
                name="thief",
                path=tmp_path / "thief.credential",
            )
        late = Credential.load(tmp_path / "late.credential")
        with pytest.raises(RequestRefused, match="was not issued by this coordinator") as who:
            second.link(m.Role.WORKER, at(second, late))
        assert "join again with a new token" in who.value.remedy
        second.register(at(second, stays), "stays-cpu").close()
        second.ask(m.RevokeCredential(name="goes"))
        with pytest.raises(RequestRefused, match="was revoked"):
            attacker.receive(timeout_s=PATIENCE_S)
        attacker.close()
        with pytest.raises(RequestRefused, match="the credential of worker/goes is revoked"):
            second.link(m.Role.WORKER, at(second, goes))
    finally:
        second.stop()


def at(coordinator: Coordinator, credential: Credential) -> Credential:
    """The credential, for a coordinator that has moved."""
    return dataclasses.replace(credential, coordinators=(coordinator.address,))
