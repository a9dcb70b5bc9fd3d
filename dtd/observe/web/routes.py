"""The page's URLs: files, logging in, data, actions.

Data and actions go to the coordinator as the same messages that `dtdctl` sends, in the name of
the person who is logged in, and fields are checked as those are.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

from aiohttp import web

from dtd.errors import RequestRefused
from dtd.observe.report.document import document_of
from dtd.observe.report.facts import facts_of, records_of
from dtd.observe.report.render import to_html
from dtd.observe.web.backend import Backend
from dtd.observe.web.http import HTTP_LOGIN, INDEX, JSON, encoded, file_answer, refused
from dtd.observe.web.live import Live
from dtd.observe.web.logins import Logins, Session, caller, holder_of
from dtd.rules import did_you_mean
from dtd.text import figures
from dtd.text.json_reader import read_json
from dtd.wire import messages as m

MOST_POINTS: Final = 1000
_LARGEST: Final = 2**53
"""The largest integer that a browser's numbers can count to."""

_MOST_VERSIONS: Final = 2**32

Query = Mapping[str, str]


def metrics(job: str, query: Query) -> m.GetMetrics:
    """Curves of a job."""
    return m.GetMetrics(
        job=job,
        names=words(query, "names"),
        workers=query.get("workers", "") == "1",
        from_step=number(query, "from", 0),
        to_step=number(query, "to", 0),
        points=min(MOST_POINTS, max(1, number(query, "points", 400))),
        after=number(query, "after", 0),
    )


def words(query: Query, name: str) -> tuple[str, ...]:
    """Words of a query with commas between."""
    return tuple(word for word in query.get(name, "").split(",") if word)


def number(query: Query, name: str, otherwise: int) -> int:
    """A whole number of a query; `RequestRefused` if it is none, or too large."""
    text = query.get(name, "")
    if not text:
        return otherwise
    if not (text.isascii() and text.isdigit() and len(text) <= 16 and int(text) <= _LARGEST):
        raise RequestRefused(f"{name}: must be a whole number from 0 to {_LARGEST}")
    return int(text)


ACTIONS: Final[Mapping[str, Callable[[Mapping[str, Any]], m.Message]]] = {
    "cancel": lambda given: m.CancelJob(job=_text(given, "job")),
    "cancel-sweep": lambda given: m.CancelSweep(sweep=_text(given, "sweep")),
    "drain": lambda given: m.DrainWorker(name=_text(given, "worker")),
    "alias": lambda given: m.AliasModel(
        name=_text(given, "model"), alias=_text(given, "alias"), version=_version(given)
    ),
    "kill": lambda given: m.KillWorker(name=_text(given, "worker"), signal="KILL"),
}


def action(given: Any) -> m.Message:
    """Read the action that a browser requests."""
    if not isinstance(given, dict):
        raise RequestRefused("an action is a JSON object")
    what = _text(given, "what")
    if what not in ACTIONS:
        raise RequestRefused(f"{what[:40]!r} is no action{did_you_mean(what, sorted(ACTIONS))}")
    return ACTIONS[what](given)


def _text(given: Mapping[str, Any], name: str) -> str:
    found = given.get(name)
    if not isinstance(found, str) or not found:
        raise RequestRefused(f"{name}: must be a text")
    return found


def _version(given: Mapping[str, Any]) -> int:
    found = given.get("version")
    if not isinstance(found, int) or isinstance(found, bool) or not 0 < found < _MOST_VERSIONS:
        raise RequestRefused("version: must be a number")
    return found


MAX_BODY_BYTES: Final = 64 * 1024
SMALL_BYTES: Final = 1024
"""Answers up to here are not compressed."""

ANSWERS_UNDER_WAY: Final = 8
"""Most at a time for one token or credential, however often logged in; more wait."""

LINES_AT_ONCE: Final = 500
PAGES_AT_ONCE: Final = 20
"""Pages of a job's output that one search looks through; the cursor of its answer goes on."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
OfSession = Callable[[web.Request, Session], Awaitable[web.StreamResponse]]


class Routes:
    """The handlers of the page's URLs."""

    def __init__(
        self,
        backend: Backend,
        logins: Logins,
        live: Live,
        files: Mapping[str, Path],
    ) -> None:
        self._backend = backend
        self._logins = logins
        self._live = live
        self._files = files
        self._under_way: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/", self._file)
        app.router.add_get("/static/{path:.+}", self._file)
        app.router.add_post("/api/login", self._log_in)
        asks: dict[str, Callable[[web.Request], m.Message]] = {
            "/api/status": lambda _: m.GetStatus(),
            "/api/jobs": lambda _: m.ListJobs(),
            "/api/jobs/{job}": lambda request: m.ShowJob(job=_job(request)),
            "/api/jobs/{job}/metrics": lambda request: metrics(_job(request), request.query),
            "/api/events": lambda request: m.ReadEvents(after=number(request.query, "after", 0)),
            "/api/models": lambda _: m.ListModels(),
            "/api/sweeps": lambda _: m.ListSweeps(),
            "/api/sweeps/{sweep}": lambda request: m.ShowSweep(sweep=request.match_info["sweep"]),
            "/api/compare": lambda request: m.CompareJobs(jobs=words(request.query, "jobs")),
            "/api/checkpoints": lambda request: m.ListCheckpoints(job=request.query.get("job", "")),
        }
        for path, made in asks.items():
            app.router.add_get(path, self._for_session(self._in_turn(self._asks(made))))
        for path, answer in (
            ("/api/me", self._me),
            ("/api/jobs/{job}/logs", self._in_turn(self._logs)),
            ("/api/jobs/{job}/report", self._in_turn(self._report)),
            ("/api/live", self._live.watch),
        ):
            app.router.add_get(path, self._for_session(answer))
        app.router.add_post("/api/act", self._for_session(self._in_turn(self._act)))
        app.router.add_post("/api/logout", self._for_session(self._logins.log_out))

    # --- without a session ---------------------------------------------------------------------

    async def _file(self, request: web.Request) -> web.StreamResponse:
        return file_answer(request.match_info.get("path", INDEX), self._files)

    async def _log_in(self, request: web.Request) -> web.StreamResponse:
        given = await _json(request)
        word = given.get("word") if isinstance(given, dict) else None
        if not isinstance(word, str):
            word = ""  # an attempt as any other that is wrong
        return await self._logins.log_in(word, request.remote or "?")

    # --- with a session --------------------------------------------------------------------------

    def _for_session(self, answer: OfSession) -> Handler:
        @functools.wraps(answer)
        async def handler(request: web.Request) -> web.StreamResponse:
            session = self._logins.find(request)
            if session is None:
                return refused(HTTP_LOGIN, "nobody is logged in here", "log in")
            return await answer(request, session)

        return handler

    def _in_turn(self, answer: OfSession) -> OfSession:
        """Answer a few requests of one holder at a time."""

        async def answered(request: web.Request, session: Session) -> web.StreamResponse:
            holder, fresh = holder_of(session), asyncio.Semaphore(ANSWERS_UNDER_WAY)
            async with self._under_way.setdefault(holder, fresh):
                return await answer(request, session)

        return answered

    def _asks(self, made: Callable[[web.Request], m.Message]) -> OfSession:
        async def answer(request: web.Request, session: Session) -> web.StreamResponse:
            return await _json_answer(
                await self._backend.ask(caller(session, request), made(request))
            )

        return answer

    async def _me(self, _request: web.Request, session: Session) -> web.StreamResponse:
        return await _json_answer({**self._logins.shown(session), **self._backend.tells()})

    async def _logs(self, request: web.Request, session: Session) -> web.StreamResponse:
        """Return lines of a job's output that contain a text, and the next cursor."""
        query = request.query
        after = number(query, "after", 0)
        text, worker = query.get("text", "").casefold(), query.get("worker", "")
        found: list[dict[str, Any]] = []
        at_end = False
        for _ in range(PAGES_AT_ONCE):
            message = m.ReadLogs(job=_job(request), after=after)
            page = await self._backend.ask(caller(session, request), message)
            found += [
                line
                for line in page["lines"]
                if text in line["text"].casefold() and worker in ("", line["worker"])
            ]
            at_end, after = not page["lines"], page["next"]
            if at_end or len(found) >= LINES_AT_ONCE:
                break
        return await _json_answer({"lines": found, "next": after, "at_end": at_end})

    async def _report(self, request: web.Request, session: Session) -> web.StreamResponse:
        records = await records_of(
            functools.partial(self._backend.ask, caller(session, request)), _job(request)
        )
        made = figures.moment(time.time())

        def write() -> str:
            return to_html(document_of(facts_of(*records), None, made=made))

        text = await asyncio.to_thread(write)
        headers = {"Content-Disposition": "attachment"}
        return web.Response(text=text, content_type="text/html", charset="utf-8", headers=headers)

    async def _act(self, request: web.Request, session: Session) -> web.StreamResponse:
        order = action(await _json(request))
        return await _json_answer(await self._backend.ask(caller(session, request), order))


def _job(request: web.Request) -> str:
    return request.match_info["job"]


async def _json_answer(value: Any) -> web.Response:
    """An answer as JSON; what is large is encoded and compressed in threads."""
    body = await encoded(value)
    made = web.Response(body=body, content_type=JSON, zlib_executor_size=SMALL_BYTES)
    if len(body) > SMALL_BYTES:
        made.enable_compression()
    return made


async def _json(request: web.Request) -> Any:
    """Return the body as JSON, None if it is none; the charset that the caller names is ignored."""
    try:
        return read_json(await request.read(), max_bytes=MAX_BODY_BYTES)
    except ValueError:
        return None
