"""Live data: what a browser is sent, and when it is let go."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from dtd.observe.web import live
from dtd.observe.web.backend import WebCaller
from dtd.observe.web.live import Live
from dtd.observe.web.logins import Session
from dtd.security.identity import Identity
from dtd.wire import messages as m

WHO = Identity(role="viewer", name="eve", where="token")
SESSION: Session = Session(id="s", holder=WHO, key_sha256="", expires_s=1e9)
LARGE = "x" * 400_000


class Changing:
    """A coordinator whose status is large and another one each time."""

    def __init__(self) -> None:
        self.looks = 0

    async def ask(self, caller: WebCaller, message: m.Message) -> dict[str, Any]:
        if isinstance(message, m.ReadEvents):
            return {"events": [], "next": 0}
        self.looks += 1
        return {"look": self.looks, "padding": LARGE}


class Served:
    """The live data alone, without logins."""

    def __init__(self) -> None:
        self.is_open = True
        self.session = SESSION
        self.coordinator: Any = Changing()
        house = WebCaller(identity=WHO, host="-")
        self.live = Live(self.coordinator, house, lambda _session: self.is_open)
        app = web.Application()
        app.router.add_get("/live", self._watch)
        self.server = TestServer(app)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        return await self.live.watch(request, self.session)


@pytest.fixture
async def served(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setattr(live, "EVERY_S", 0.001)
    made = Served()
    await made.server.start_server()
    yield made
    made.live.close()
    await made.server.close()


async def test_whose_session_ends_is_told_and_let_go(served: Served) -> None:
    async with ClientSession() as session, session.get(served.server.make_url("/live")) as reader:
        await reader.content.readuntil(b"\n\n")
        served.is_open = False
        assert (await reader.content.read()).endswith(b"event: ended\ndata: {}\n\n")
    assert served.live._watchers == set()


async def test_one_login_leaves_room_for_others(served: Served) -> None:
    async with ClientSession() as session, AsyncExitStack() as open_pages:

        async def watch() -> int:
            answer = session.get(served.server.make_url("/live"))
            return (await open_pages.enter_async_context(answer)).status

        assert {await watch() for _ in range(live.MAX_OF_HOLDER)} == {200}
        assert await watch() == 429
        served.session = replace(SESSION, holder=replace(WHO, name="ada"))
        assert await watch() == 200


class Known(Changing):
    """A coordinator whose status is each of some values in turn, the last one for ever."""

    def __init__(self, *values: Any) -> None:
        self.values = [*values]

    async def ask(self, caller: WebCaller, message: m.Message) -> dict[str, Any]:
        if not isinstance(message, m.GetStatus):
            return {"events": [], "next": 0}
        return dict(self.values.pop(0) if len(self.values) > 1 else self.values[0])


async def test_a_browser_is_sent_what_has_changed(served: Served) -> None:
    first = {"job": None, "workers": [{"name": "a", "step": 1}, {"name": "b", "step": 1}]}
    then = {"job": {"id": "x"}, "workers": [{"name": "a", "step": 1}, {"name": "b", "step": 2}]}
    served.coordinator = served.live._backend = Known(first, then)
    found = []
    async with ClientSession() as session, session.get(served.server.make_url("/live")) as reader:
        assert reader.headers["Content-Encoding"] == "deflate"
        while len(found) < 2:
            block = (await reader.content.readuntil(b"\n\n")).decode()
            if block.startswith("event: status\n"):
                found.append(json.loads(block.split("data: ")[1]))
    assert found == [first, then]
