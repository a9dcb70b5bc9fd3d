"""Renewing what is the coordinator's own, on a disk that fails."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

import dtd.coordinator.handlers.renewal as renewal_module
from dtd.coordinator.handlers.renewal import RenewalHandler
from dtd.errors import ConfigError, ProtocolError
from dtd.security.admission import Renewal
from dtd.wire import messages as m

PATIENCE_S = 60.0
FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("error", [FULL, ConfigError("ca.key cannot be written")])
async def test_what_fails_on_the_disk_is_logged_and_keeps_nothing_else_from_being_done(
    error, monkeypatch
):
    monkeypatch.setattr(renewal_module, "LOOK_S", 0.0)
    asked, enough = [], asyncio.Event()

    async def in_store(function, *_arguments):
        asked.append(getattr(function, "func", function).__name__)
        if asked.count("equip") == 2:
            enough.set()
        raise error

    def equip(): ...

    def keep_time(): ...

    authority = SimpleNamespace(own_are_due=lambda: True, equip=equip, keep_time=keep_time)
    port = SimpleNamespace(authority=authority, coordinators=(), links=list)
    handler = RenewalHandler(
        port, in_store, lambda _s: None, list, lambda *_: contextlib.nullcontext()
    )
    with capture_logs() as lines:
        keeping = asyncio.create_task(handler.keep())
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait(
                [keeping, asyncio.ensure_future(enough.wait())],
                return_when=asyncio.FIRST_COMPLETED,
            )
        assert not keeping.done()
        keeping.cancel()
    assert asked[:3] == ["equip", "keep_time", "equip"]
    told = [line["error"] for line in lines if line["event"] == "own_credential_not_renewed"]
    assert told == [getattr(error, "message", str(error))]  # of five failures in a moment


async def test_a_renewal_that_the_disk_fails_is_answered_and_may_be_asked_for_again():
    answers, sent = [FULL, Renewal(reason="it is not time")], []

    async def in_store(_function, *_arguments):
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    class Link:
        identity = SimpleNamespace()

        def send(self, message):
            sent.append(message)

    link = Link()
    port = SimpleNamespace(authority=SimpleNamespace(), coordinators=())
    handler = RenewalHandler(
        port, in_store, lambda _s: None, list, lambda *_: contextlib.nullcontext()
    )
    for _ in range(2):
        handler.ask(link, m.Renew())
        with pytest.raises(ProtocolError, match="is unanswered"):
            handler.ask(link, m.Renew())
        await handler._answering[link]
    assert [one.reason for one in sent] == [
        f"the coordinator's disk failed: {FULL}",
        "it is not time",
    ]
