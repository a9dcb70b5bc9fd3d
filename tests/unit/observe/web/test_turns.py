"""Requests of one login are answered a few at a time, and those of others meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from dtd.observe.web.backend import WebCaller
from dtd.observe.web.logins import Session
from dtd.observe.web.routes import ANSWERS_UNDER_WAY, Routes
from dtd.security.identity import Identity
from dtd.wire import messages as m


class Coordinator:
    """Answers nothing before it is told to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.more = asyncio.Condition()
        self.go_on = asyncio.Event()

    async def ask(self, caller: WebCaller, _message: m.Message) -> dict[str, Any]:
        async with self.more:
            self.asked.append(caller.identity.name if caller.identity is not None else "")
            self.more.notify_all()
        await self.go_on.wait()
        return {}

    async def asked_by(self, name: str, times: int) -> None:
        async with self.more:
            await self.more.wait_for(lambda: self.asked.count(name) >= times)


class NamedLogins:
    """The session of a request is that of the person whom it names; nobody watches."""

    def find(self, request: web.Request) -> Session:
        holder = Identity(role="viewer", name=request.headers["Name"], where="token")
        return Session(id="s", holder=holder, key_sha256="", expires_s=1e12)

    async def log_out(self, _request: web.Request, _session: Session) -> web.Response:
        return web.Response()

    watch = log_out


async def test_one_login_waits_for_itself_alone() -> None:
    coordinator, app = Coordinator(), web.Application()
    logins = cast("Any", NamedLogins())
    Routes(cast("Any", coordinator), logins, logins, {}).add_to(app)
    async with TestServer(app) as server, ClientSession() as session, asyncio.timeout(60):
        url = server.make_url("/api/jobs")

        async def look(name: str) -> int:
            async with session.get(url, headers={"Name": name}) as answer:
                return answer.status

        many = [asyncio.create_task(look("eve")) for _ in range(2 * ANSWERS_UNDER_WAY)]
        await coordinator.asked_by("eve", ANSWERS_UNDER_WAY)
        other = asyncio.create_task(look("ada"))
        await coordinator.asked_by("ada", 1)
        assert coordinator.asked.count("eve") == ANSWERS_UNDER_WAY
        coordinator.go_on.set()
        assert {await one for one in (*many, other)} == {200}
