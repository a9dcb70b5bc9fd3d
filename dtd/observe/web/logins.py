"""Logins and logouts, and the sessions of requests.

A person logs in with a code of `dtdctl web`, which is good once, or with a token of an operator or
a viewer, which counts as one use of it.  The session acts as that credential, user or token, and
ends with it.  A right code is always accepted, so that others' attempts keep no person out; it
is found by its hash.  A token is looked up in the store, so an attempt with one counts before that,
by address; wrong codes count, too.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog
from aiohttp import web

from dtd.errors import DtdError
from dtd.net.limits import Pacing, origin_of
from dtd.observe.web.backend import Backend, WebCaller
from dtd.observe.web.http import HTTP_LOGIN, HTTP_TOO_MANY, KEY_HEADER, refused
from dtd.observe.web.sessions import SESSION_LIFE_S, Session, WebSessions
from dtd.security.identity import VIEWER, Identity
from dtd.security.token import VERSION

log = structlog.get_logger()

SECRET_BYTES: Final = 32
MAX_WORD_CHARACTERS: Final = 4096
ATTEMPTS_PER_S: Final = 1.0
ATTEMPTS_AT_ONCE: Final = 20.0
WRONG_WORD: Final = "this is no valid code or token"
REMEDY: Final = (
    "run `dtdctl web` for a new code, or ask an operator for a token: `dtdctl token create --role"
    " viewer`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A code that is good once, and when it ends (Unix time)."""

    code: str
    expires_unix_s: float


class Logins:
    """The sessions of one page.

    Args:
        backend: the coordinator.
        clock: monotonic seconds.
    """

    def __init__(self, backend: Backend, clock: Callable[[], float] = time.monotonic) -> None:
        self._backend = backend
        self._clock = clock
        self._sessions: WebSessions = WebSessions()
        self._saving = asyncio.Lock()
        self._attempts = Pacing(rate_per_s=ATTEMPTS_PER_S, burst=ATTEMPTS_AT_ONCE)
        self.cookie = "dtd_session"
        self.secured = False

    def use_address(self, port: int, *, secured: bool) -> None:
        """Set the page's address; a browser sends cookies of one port to others as well."""
        self.secured = secured
        self.cookie = f"{'__Host-' if secured else ''}dtd_session_{port}"

    async def restore(self) -> None:
        """Go on with the sessions of the process before this one."""
        loop = asyncio.get_running_loop()
        kept = await loop.run_in_executor(None, self._backend.sessions.read, self._clock())
        self._sessions.restore(kept)

    async def _save(self) -> None:
        async with self._saving:
            every, clock_s = self._sessions.every(), self._clock()
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, self._backend.sessions.write, every, clock_s)

    def offer(self, identity: Identity) -> Offer:
        """Return a code for an identity that the coordinator knows."""
        code = secrets.token_urlsafe(SECRET_BYTES)
        now_s = self._clock()
        expires_s = self._sessions.offer(code, identity, now_s)
        return Offer(code=code, expires_unix_s=time.time() + expires_s - now_s)

    async def log_in(self, word: str, host: str) -> web.Response:
        """Begin a session for a code or a token."""
        word = word.strip()[:MAX_WORD_CHARACTERS]
        is_token = word.startswith(f"{VERSION}/")
        identity = None if is_token else self._holder_of_code(word)
        if identity is None and self._attempts.wait_s(origin_of(host), self._clock()):
            return refused(HTTP_TOO_MANY, "too many attempts from this address", "wait a while")
        try:
            identity = await self._backend.holder_of_token(word, host) if is_token else identity
        except DtdError as error:
            return self._turned_away(host, error.message, error.remedy)
        if identity is None:
            return self._turned_away(host, WRONG_WORD, REMEDY)
        cookie, key = (secrets.token_urlsafe(SECRET_BYTES) for _ in range(2))
        session = self._sessions.begin(cookie, key, identity, self._clock())
        await self._save()
        log.info("web_login", role=identity.role, who=identity.name, address=host)
        made = web.json_response({"key": key, **self.shown(session)})
        made.set_cookie(
            self.cookie,
            cookie,
            max_age=int(SESSION_LIFE_S),
            path="/",
            secure=self.secured,
            httponly=True,
            samesite="Strict",
        )
        return made

    async def log_out(self, session: Session) -> web.Response:
        """End a session."""
        self._sessions.end(session)
        await self._save()
        made = web.json_response({})
        made.del_cookie(
            self.cookie, path="/", secure=self.secured, httponly=True, samesite="Strict"
        )
        return made

    def find(self, request: web.Request) -> Session | None:
        """The session that a request shows; it ends when its holder may not be here any more."""
        cookie = request.cookies.get(self.cookie, "")
        found = self._sessions.find(cookie, request.headers.get(KEY_HEADER, ""), self._clock())
        if found is not None and self._backend.standing(found.holder):
            self._sessions.end(found)
            return None
        return found

    def knows(self, request: web.Request) -> bool:
        """Whether a request shows the cookie of a session: its connection may stay."""
        return self._sessions.has_cookie(request.cookies.get(self.cookie, ""), self._clock())

    def is_open(self, session: Session) -> bool:
        """Whether a session that was found earlier still counts."""
        return (
            self._clock() < session.expires_s
            and session in self._sessions
            and not self._backend.standing(session.holder)
        )

    def shown(self, session: Session) -> dict[str, object]:
        """Return the page's information about the person who is logged in."""
        identity = session.holder
        return {
            "role": identity.role,
            "name": identity.name,
            "may_act": identity.role != VIEWER,
            "left_s": session.expires_s - self._clock(),
        }

    def _holder_of_code(self, word: str) -> Identity | None:
        identity = self._sessions.redeem(word, self._clock())
        return None if identity is None or self._backend.standing(identity) else identity

    def _turned_away(self, host: str, why: str, remedy: str) -> web.Response:
        self._backend.refused(host, why)
        return refused(HTTP_LOGIN, why, remedy)


def holder_of(session: Session) -> str:
    """Return the token or credential for which a session's use counts; it may have many."""
    identity = session.holder
    return f"{identity.role}/{identity.credential or identity.name}"


def caller(session: Session, request: web.Request) -> WebCaller:
    """Return a request's sender, as the coordinator's handlers know callers."""
    return WebCaller(identity=session.holder, host=request.remote or "?")
