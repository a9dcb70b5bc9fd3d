"""A worker's credential: its settings with and without one, and its renewal."""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import replace
from pathlib import Path

import pytest

from dtd.address import Address
from dtd.config import load_worker_config
from dtd.errors import ConfigError
from dtd.security import admission
from dtd.security.authority import Authority
from dtd.security.credential import Credential
from dtd.security.identity import Identity
from dtd.wire import messages as m
from dtd.worker.cluster_access import (
    CredentialRenewal,
    load_credential,
    settled,
)

NOWHERE = Path("/nonexistent/dtd.toml")
HERE = Address("10.0.0.1", 7117)


def config_of(**flags: object):
    return load_worker_config(flags, {}, default_file=NOWHERE, hostname="host7")


@pytest.fixture
def credential(tmp_path: Path) -> Credential:
    return made_credential(tmp_path, "worker")


def made_credential(directory: Path, role: str) -> Credential:
    authority = Authority.create(directory / "pki")
    path = directory / "worker.credential"
    authority.enrol(path, role, "host7", coordinators=(HERE,))
    return Credential.load(path)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("host8", "or join with --name host8"),
        (
            "host7-b",
            (
                "or ask for a token of `dtdctl token create --name host7 --replace` and join"
                " with --instances b"
            ),
        ),
    ],
)
def test_it_cannot_be_called_otherwise(credential: Credential, name: str, remedy: str) -> None:
    why = f"name: {name} is not a name that the credential"
    with pytest.raises(ConfigError, match=why) as caught:
        settled(config_of(name=name), credential)
    words = "use a name that it permits (host7, host7-cpu, host7-cuda0, ...), "
    assert caught.value.remedy == words + remedy


def test_a_credential_that_a_job_puts_into_the_units_home_is_none(
    credential: Credential, tmp_path: Path
) -> None:
    """On the coordinator's host a unit may have none, and its home is a cache of the job's."""
    handed, home = tmp_path / "handed", tmp_path / "home"
    handed.mkdir()
    (handed / "worker.credential").write_text("# none")
    planted = home / ".config/dtd/worker.credential"
    planted.parent.mkdir(parents=True)
    credential.path.rename(planted)
    assert load_credential(config_of(), {"HOME": str(home)})[0] is not None
    environ = {"HOME": str(home), "CREDENTIALS_DIRECTORY": str(handed)}
    assert load_credential(config_of(), environ) == (None, ())


DAY_S = 86400.0


class Talk:
    """A worker's renewal, and an authority for which three weeks have gone by."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority.create(directory / "pki")
        path = directory / "worker.credential"
        self.authority.enrol(path, "worker", "host7", coordinators=(HERE,))
        self.credential = Credential.load(path)
        self.sent: asyncio.Queue[m.Message] = asyncio.Queue()
        self.renewed: list[Credential] = []
        self.renewal = CredentialRenewal(
            self.credential,
            directory,
            send=self.sent.put_nowait,
            renewed=self.renewed.append,
        )

    def answer(self, request: m.Renew) -> m.Renewed:
        record = self.authority.credentials.record(self.credential.serial)
        assert record is not None
        who = Identity(
            role="worker",
            name="host7",
            where="certificate",
            serial=record.serial,
            credential=record.credential,
            workers=record.workers,
            issued_s=record.issued_s - 21 * DAY_S,
            expires_s=record.expires_s,
            fingerprint=record.fingerprint,
        )
        made = admission.renew(self.authority, who, request.request_pem)
        return replace(made, coordinators=str(HERE))


@pytest.fixture
def talk(tmp_path: Path) -> Talk:
    return Talk(tmp_path)


async def next_sent(talk: Talk) -> m.Renew:
    async with asyncio.timeout(30):
        message = await talk.sent.get()
    assert isinstance(message, m.Renew)
    return message


async def test_what_is_no_good_changes_nothing_and_is_asked_for_again(talk: Talk) -> None:
    before = talk.credential.path.read_bytes()
    talk.renewal.received(m.Renewed())
    answer = talk.answer(await next_sent(talk))
    talk.renewal.received(dataclasses.replace(answer, certificate_pem="nonsense"))
    talk.renewal.received(m.Renewed(reason="it is not time"))
    talk.renewal.received(answer)  # nothing was asked for any more
    talk.renewal.received(m.Renewed())
    await next_sent(talk)
    assert talk.credential.path.read_bytes() == before
    assert talk.renewed == []
