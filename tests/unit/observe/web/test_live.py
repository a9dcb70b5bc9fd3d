"""Live data and answers for everybody: looked up once, soon again, and failures are not kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from dtd.errors import RequestRefused
from dtd.observe.web import live
from dtd.observe.web.backend import WebCaller
from dtd.observe.web.http import in_pieces
from dtd.observe.web.live import Live, SharedAnswers
from dtd.observe.web.logins import Session
from dtd.security.identity import Identity
from dtd.wire import messages as m

WHO = Identity(role="viewer", name="eve", where="token")
SESSION: Session = Session(id="s", holder=WHO, key_sha256="", expires_s=1e9)
LARGE = "x" * 400_000
MIB = 1024 * 1024


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
    assert found == [first, {"job": {"id": "x"}, "workers": {"1": {"step": 2}}}]


def test_changes_of_another_shape_replace_the_old_value() -> None:
    assert live.change([{"a": 1}], [{"a": 1}, {"a": 2}]) == [[{"a": 1}, {"a": 2}]]
    assert live.change({"a": {"b": 1}}, {"a": {"c": 1}}) == {"a": [{"c": 1}]}
    assert live.change({"a": {"b": 1}}, {"a": None}) == {"a": [None]}


def test_fractions_are_rounded_and_times_of_day_keep_milliseconds() -> None:
    assert live.rounded({"loss": 0.123456, "time_s": 1795845013.3924093, "step": 123456}, 4) == {
        "loss": 0.1235,
        "time_s": 1795845013.392,
        "step": 123456,
    }


async def test_a_large_answer_that_nobody_reads_waits_outside_the_connection() -> None:
    held_bytes: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        sent = in_pieces(request, web.Response(body=bytes(64 * MIB)))
        try:
            await asyncio.wait_for(sent, 0.1)
            held_bytes.set_exception(AssertionError("all of it is sent"))
        except TimeoutError:
            held_bytes.set_result(request.transport.get_write_buffer_size())
        request.transport.abort()
        return web.Response()

    app = web.Application()
    app.router.add_get("/", answer)
    async with TestServer(app) as served:
        _, writer = await asyncio.open_connection(served.host, served.port, limit=1)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await held_bytes < MIB
        writer.transport.abort()


class Asked:
    def __init__(self) -> None:
        self.times = 0
        self.fails = False
        self.go_on = asyncio.Event()

    async def look(self, message: m.Message) -> dict[str, Any]:
        self.times += 1
        await self.go_on.wait()
        if self.fails:
            raise RequestRefused("no")
        return {"times": self.times, "what": m.message_name(type(message))}


async def test_many_ask_at_once_and_one_looks() -> None:
    asked = Asked()
    answers = SharedAnswers(asked.look)
    bodies = [asyncio.create_task(answers.body(m.ListJobs())) for _ in range(20)]
    await asyncio.sleep(0)
    asked.go_on.set()
    assert {json.loads(await body)["times"] for body in bodies} == {1}
    assert json.loads(await answers.body(m.ListJobs()))["times"] == 1
    assert json.loads(await answers.body(m.GetStatus()))["times"] == 2
    answers.close()


async def test_a_failure_is_told_and_not_kept() -> None:
    asked = Asked()
    asked.go_on.set()
    asked.fails = True
    answers = SharedAnswers(asked.look)
    for _ in range(2):
        with pytest.raises(RequestRefused):
            await answers.body(m.ListJobs())
    assert asked.times == 2
