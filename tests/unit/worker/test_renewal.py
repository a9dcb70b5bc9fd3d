"""A worker renews its credential when it is told to, and says so when it has it."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
from pathlib import Path

import pytest

from dtd.address import Address
from dtd.security import admission
from dtd.security.authority import Authority
from dtd.security.credential import Credential
from dtd.security.identity import Identity
from dtd.wire import messages as m
from dtd.worker.cluster_access import CredentialRenewal

HERE = Address("10.0.0.1", 7117)
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
        return m.Renewed(
            certificate_pem=made.certificate_pem.decode(),
            coordinators=str(HERE),
            reason=made.reason,
        )


@pytest.fixture
def talk(tmp_path: Path) -> Talk:
    return Talk(tmp_path)


async def next_sent(talk: Talk) -> m.Renew:
    async with asyncio.timeout(30):
        message = await talk.sent.get()
    assert isinstance(message, m.Renew)
    return message


async def test_it_asks_takes_over_and_confirms(talk: Talk) -> None:
    talk.renewal.received(m.Renewed())
    request = await next_sent(talk)
    talk.renewal.received(talk.answer(request))
    confirmed = await next_sent(talk)
    [made] = talk.renewed
    assert made == Credential.load(talk.credential.path)
    assert (confirmed.taken, confirmed.request_pem) == (made.serial, "")
    assert (made.id, made.workers) == (talk.credential.id, talk.credential.workers)
    assert made.serial != talk.credential.serial
    assert made.expires - dt.datetime.now(dt.UTC) > dt.timedelta(days=29)


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
