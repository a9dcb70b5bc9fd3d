"""Logins to the web page: codes that are good once, the sessions they begin, and their requests.

A person logs in with a code of `dtdctl web`, which is good once, or with a token of an operator or
a viewer, which counts as one use of it.  The session acts as that credential, user or token, and
ends with it.  A right code is always accepted, so that others' attempts keep no person out; it
is found by its hash.  A token is looked up in the store, so an attempt with one counts before that,
by address; wrong codes count, too.

A session has two secrets.  One is a cookie, which a browser sends to every port of a host, so that
a server on another port there may get to know it.  The other, the key, stays in the page's own
storage, which belongs to one port.  Both must be shown.  Only hashes are kept, also in the file by
which sessions outlive a restart of the coordinator: to read it gives no session.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import structlog
from aiohttp import web

from dtd.errors import ConfigError, DtdError
from dtd.net.limits import origin_of
from dtd.net.rates import Pacing
from dtd.observe.web.backend import Backend, WebCaller
from dtd.observe.web.http import HTTP_LOGIN, HTTP_TOO_MANY, KEY_HEADER, refused
from dtd.security.identity import VIEWER, Identity
from dtd.security.private_files import read_records, write_records
from dtd.security.token import VERSION

log = structlog.get_logger()

CODE_LIFE_S: Final = 3600.0
SESSION_LIFE_S: Final = 12 * 3600.0
MAX_CODES: Final = 64
MAX_SESSIONS: Final = 256
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
class Session:
    """One browser that is logged in; `id` is the hash of its cookie, times are those of Unix."""

    id: str
    holder: Identity
    key_sha256: str
    expires_s: float


class Sessions:
    """All codes and sessions, both bounded; the oldest makes room."""

    def __init__(self) -> None:
        self._codes: OrderedDict[str, tuple[Identity, float]] = OrderedDict()
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def offer(self, code: str, holder: Identity, now_s: float) -> float:
        """Let `holder` log in once with a code; returns when it ends."""
        for sha256 in [key for key, (_, ends_s) in self._codes.items() if ends_s <= now_s]:
            del self._codes[sha256]
        _make_room(self._codes, MAX_CODES)
        ends_s = now_s + CODE_LIFE_S
        self._codes[_sha256(code)] = holder, ends_s
        return ends_s

    def redeem(self, code: str, now_s: float) -> Identity | None:
        """Use up a code and return its holder; None if it is not valid."""
        holder, ends_s = self._codes.pop(_sha256(code), (None, now_s))
        return holder if now_s < ends_s else None

    def begin(self, cookie: str, key: str, holder: Identity, now_s: float) -> Session:
        """Log `holder` in, with two fresh secrets."""
        for session_id in [key for key, one in self._sessions.items() if one.expires_s <= now_s]:
            del self._sessions[session_id]
        _make_room(self._sessions, MAX_SESSIONS)
        made = Session(
            id=_sha256(cookie),
            holder=holder,
            key_sha256=_sha256(key),
            expires_s=now_s + SESSION_LIFE_S,
        )
        self._sessions[made.id] = made
        return made

    def known(self, cookie: str, now_s: float) -> Session | None:
        """Return the session that this cookie belongs to; its key is to be checked, too."""
        found = self._sessions.get(_sha256(cookie))
        return found if found is not None and now_s < found.expires_s else None

    def end(self, session: Session) -> None:
        self._sessions.pop(session.id, None)

    def __contains__(self, session: Session) -> bool:
        return session.id in self._sessions

    def records(self, local: str) -> list[dict[str, Any]]:
        """The sessions for a file.

        Those of users of this host count while the settings by which they have roles are the same.
        """
        own = [local if one.holder.uid is not None else "" for one in self._sessions.values()]
        sessions = map(asdict, self._sessions.values())
        return [{**one, "local": of} for one, of in zip(sessions, own, strict=True)]

    def restore(self, records: Iterable[Mapping[str, Any]], local: str) -> None:
        """Take over the sessions of an earlier process, but those of users under other settings."""
        for record in records:
            workers = record["holder"]["workers"]
            restricted = None if workers is None else tuple(workers)
            holder = Identity(**{**record["holder"], "workers": restricted})
            if holder.uid is None or record["local"] == local:
                self._sessions[str(record["id"])] = Session(
                    id=str(record["id"]),
                    holder=holder,
                    key_sha256=str(record["key_sha256"]),
                    expires_s=float(record["expires_s"]),
                )


def _make_room(held: OrderedDict[str, Any], most: int) -> None:
    if len(held) >= most:
        held.popitem(last=False)


def _sha256(secret: str) -> str:
    """Hash a random, long secret, for which a plain hash will do."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


class Logins:
    """The sessions of one page."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._sessions = Sessions()
        self._saving = asyncio.Lock()
        self._attempts = Pacing(rate_per_s=ATTEMPTS_PER_S, burst=ATTEMPTS_AT_ONCE)
        self.cookie = "dtd_session"
        self.secured = False

    def use_address(self, port: int, *, secured: bool) -> None:
        """Set the page's address; a browser sends cookies of one port to others as well."""
        self.secured = secured
        self.cookie = f"{'__Host-' if secured else ''}dtd_session_{port}"

    async def restore(self) -> None:
        """Restore the sessions of the previous process."""
        try:
            records = await asyncio.to_thread(read_records, self._backend.sessions_file)
            self._sessions.restore(records, self._backend.local_settings)
        except (ConfigError, TypeError, ValueError, KeyError) as error:
            log.warning("web_sessions_not_read", reason=str(error))

    async def _save(self) -> None:
        """Replace the file; if that fails, a later start logs people out."""
        async with self._saving:
            records = self._sessions.records(self._backend.local_settings)
            try:
                await asyncio.to_thread(write_records, self._backend.sessions_file, records)
            except ConfigError as error:
                log.warning("web_sessions_not_written", reason=error.message)

    def offer(self, identity: Identity) -> tuple[str, float]:
        """Return a code for an identity that the coordinator knows, and when it ends."""
        code = secrets.token_urlsafe(SECRET_BYTES)
        return code, self._sessions.offer(code, identity, time.time())

    async def log_in(self, word: str, host: str) -> web.Response:
        """Begin a session for a code or a token."""
        word = word.strip()[:MAX_WORD_CHARACTERS]
        is_token = word.startswith(f"{VERSION}/")
        identity = None if is_token else self._holder_of_code(word)
        if identity is None and self._attempts.wait_s(origin_of(host), time.monotonic()):
            return refused(HTTP_TOO_MANY, "too many attempts from this address", "wait a while")
        try:
            identity = await self._backend.holder_of_token(word, host) if is_token else identity
        except DtdError as error:
            return self._turned_away(host, error.message, error.remedy)
        if identity is None:
            return self._turned_away(host, WRONG_WORD, REMEDY)
        cookie, key = (secrets.token_urlsafe(SECRET_BYTES) for _ in range(2))
        session = self._sessions.begin(cookie, key, identity, time.time())
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

    async def log_out(self, _request: web.Request, session: Session) -> web.Response:
        self._sessions.end(session)
        await self._save()
        made = web.json_response({})
        made.del_cookie(
            self.cookie, path="/", secure=self.secured, httponly=True, samesite="Strict"
        )
        return made

    def find(self, request: web.Request) -> Session | None:
        """The session that a request shows; it ends when its holder may not be here any more."""
        found = self.cookie_holder(request)
        key_sha256 = _sha256(request.headers.get(KEY_HEADER, ""))
        if found is None or not hmac.compare_digest(found.key_sha256, key_sha256):
            return None
        if self._backend.standing(found.holder):
            self._sessions.end(found)
            return None
        return found

    def cookie_holder(self, request: web.Request) -> Session | None:
        """The session whose cookie a request shows: its connection may stay."""
        return self._sessions.known(request.cookies.get(self.cookie, ""), time.time())

    def is_open(self, session: Session) -> bool:
        """Whether a session that was found earlier still counts."""
        return (
            time.time() < session.expires_s
            and session in self._sessions
            and not self._backend.standing(session.holder)
        )

    def shown(self, session: Session) -> dict[str, object]:
        identity = session.holder
        return {
            "role": identity.role,
            "name": identity.name,
            "may_act": identity.role != VIEWER,
            "left_s": session.expires_s - time.time(),
        }

    def _holder_of_code(self, word: str) -> Identity | None:
        identity = self._sessions.redeem(word, time.time())
        return None if identity is None or self._backend.standing(identity) else identity

    def _turned_away(self, host: str, why: str, remedy: str) -> web.Response:
        self._backend.refused(host, why)
        return refused(HTTP_LOGIN, why, remedy)


def holder_of(session: Session) -> str:
    """The token or credential for which a session's use counts; it may have many."""
    identity = session.holder
    return f"{identity.role}/{identity.credential or identity.name}"


def caller(session: Session, request: web.Request) -> WebCaller:
    """Return a request's sender, as the coordinator's handlers know callers."""
    return WebCaller(identity=session.holder, host=request.remote or "?")
