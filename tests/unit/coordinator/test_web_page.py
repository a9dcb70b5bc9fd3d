"""The page over HTTP: who gets in, what each may do, and what stands in the audit log."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import json
import select
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from dtd.address import Address
from dtd.config import CoordinatorConfig
from dtd.host.places import SOCKET_NAME
from dtd.observe.web import server
from dtd.observe.web.backend import SESSIONS_FILE
from dtd.security.token import Token
from dtd.wire import messages as m
from tests.unit.coordinator.conftest import Daemon

PATIENCE_S = 30.0
LOOPBACK = Address("127.0.0.1", 0)


class WebDaemon(Daemon):
    """A coordinator that listens over TCP as well, and serves a page on loopback."""

    def __init__(self, loop_thread: Any, state_dir: Path, **settings: Any) -> None:
        self._settings = settings
        super().__init__(loop_thread, state_dir)

    async def _start(self) -> Any:
        self.config = CoordinatorConfig(
            state_dir=self.config.state_dir,
            socket=self.config.state_dir / SOCKET_NAME,
            heartbeat_timeout_s=600.0,
            **{"web": LOOPBACK, "listen": LOOPBACK, **self._settings},
        )
        return await super()._start()


class Browser:
    """Keeps a cookie and a key, and says where its requests come from."""

    def __init__(self, port: int) -> None:
        self.host = f"127.0.0.1:{port}"
        self.cookie = self.key = ""

    def ask(self, method: str, path: str, given: Any = None, **headers: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(self.host, timeout=PATIENCE_S)
        own = {"Cookie": self.cookie, "X-Dtd-Key": self.key, "Content-Type": "application/json"}
        if method == "POST":
            own["Origin"] = f"http://{self.host}"
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, json.dumps(given), {**own, **named})
        answer = connection.getresponse()
        body = answer.read()
        for name, value in answer.getheaders():
            if name == "Set-Cookie":
                self.cookie, self.flags = value.split(";", 1)
        connection.close()
        return answer.status, json.loads(body) if path.startswith("/api") else body

    def log_in(self, word: str) -> tuple[int, Any]:
        status, told = self.ask("POST", "/api/login", {"word": word})
        self.key = told.get("key", "")
        return status, told

    def act(self, **given: str) -> tuple[int, Any]:
        return self.ask("POST", "/api/act", given)


@pytest.fixture
def served(loop_thread: Any, state_dir: Path) -> Iterator[WebDaemon]:
    made = WebDaemon(loop_thread, state_dir)
    yield made
    made.stop()


@pytest.fixture
def open_browser(served: WebDaemon) -> Callable[[], Browser]:
    port = int(served.ask(m.OpenWeb())["url"].rstrip("/").rpartition(":")[2])
    return lambda: Browser(port)


def audited(daemon: WebDaemon, what: str) -> list[tuple[str, str, str, str]]:
    entries = daemon.ask(m.ReadAudit(what=what))["entries"]
    return [(one["role"], one["who"], one["address"], one["outcome"]) for one in entries]


def test_nothing_is_read_without_logging_in(open_browser: Callable[[], Browser]) -> None:
    browser = open_browser()
    assert browser.ask("GET", "/")[0] == 200
    assert browser.ask("GET", "/static/app.js")[0] == 200
    assert browser.ask("GET", "/static/../server.py")[0] == 404
    for path in ("me", "status", "jobs", "events", "live", "jobs/a/logs", "checkpoints", "sweeps"):
        assert browser.ask("GET", f"/api/{path}")[0] == 401
    assert browser.act(what="cancel", job="a")[0] == 401
    assert browser.log_in("no-such-code")[0] == 401


@pytest.mark.parametrize(
    ("path", "kind"), [("", "text/html"), ("static/charts.js", "text/javascript")]
)
def test_files_are_compressed_and_sent_once(
    open_browser: Callable[[], Browser], path: str, kind: str
) -> None:
    connection = http.client.HTTPConnection(open_browser().host, timeout=PATIENCE_S)
    connection.request("GET", f"/{path}", headers={"Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    assert answer.getheader("Content-Encoding") == "gzip"
    assert str(answer.getheader("Content-Type")).replace("application/j", "text/j") == kind
    assert gzip.decompress(answer.read())
    known = {"Accept-Encoding": "gzip", "If-None-Match": str(answer.getheader("ETag"))}
    for _ in range(2):  # what follows an answer without a body is the next answer
        connection.request("GET", f"/{path}", headers=known)
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (304, b"")
    connection.close()


def test_a_code_logs_its_caller_in_once(
    served: WebDaemon, open_browser: Callable[[], Browser]
) -> None:
    browser, code = open_browser(), served.ask(m.OpenWeb())["code"]
    status, told = browser.log_in(code)
    assert (status, told["role"], told["may_act"]) == (200, "local", True)
    assert "httponly" in browser.flags.lower()
    assert "samesite=strict" in browser.flags.lower()
    assert open_browser().log_in(code)[0] == 401
    assert browser.ask("GET", "/api/status")[1]["workers"] == []
    thief = open_browser()
    thief.cookie = browser.cookie
    assert thief.ask("GET", "/api/status")[0] == 401
    assert browser.ask("POST", "/api/logout", {})[0] == 200
    assert browser.ask("GET", "/api/status")[0] == 401


def test_requests_of_other_sites_are_refused(
    served: WebDaemon, open_browser: Callable[[], Browser]
) -> None:
    browser = open_browser()
    browser.log_in(served.ask(m.OpenWeb())["code"])
    for headers in (
        {"Host": "evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "same-site"},
        {"Content_Type": "text/plain"},
    ):
        assert browser.ask("POST", "/api/act", {"what": "drain"}, **headers)[0] == 421
    assert browser.ask("GET", "/api/status", Host="evil.example")[0] == 421
    assert browser.ask("PUT", "/api/act", {})[0] == 421
    assert browser.ask("GET", "/api/status")[0] == 200


def test_what_is_done_goes_through_the_same_handlers(
    served: WebDaemon, open_browser: Callable[[], Browser], play: Callable[..., Any]
) -> None:
    play(served, "w0")
    browser = open_browser()
    browser.log_in(served.ask(m.OpenWeb())["code"])
    status, told = browser.act(what="drain", worker="w1")
    assert status == 400
    assert "w1" in told["error"]
    assert browser.act(what="kill", worker="w0")[0] == 200
    assert browser.act(what="submit")[0] == 400
    (killed,) = audited(served, "KILL_WORKER")
    assert killed[2:] == ("127.0.0.1 (web)", "done")
    assert [one[2:] for one in audited(served, "DRAIN_WORKER")] == [("127.0.0.1 (web)", "refused")]


def test_a_viewer_reads_with_a_token_until_it_is_revoked(
    served: WebDaemon, open_browser: Callable[[], Browser]
) -> None:
    token = Token.parse(served.ask(m.CreateToken(role="viewer", life_s=600))["token"])
    browser = open_browser()
    status, told = browser.log_in(token.word())
    assert (status, told["role"], told["may_act"]) == (200, "viewer", False)
    assert open_browser().log_in(token.word())[0] == 401
    assert browser.ask("GET", "/api/jobs")[1] == {"jobs": []}
    status, told = browser.act(what="drain", worker="w0")
    assert status == 403
    assert "viewer" in told["error"]
    assert audited(served, "DRAIN_WORKER")[0][3] == "refused"
    assert ("viewer", f"token-{token.id}", "127.0.0.1 (web)", "done") in audited(served, "OPEN_WEB")
    served.ask(m.RevokeToken(id=token.id))
    assert browser.ask("GET", "/api/jobs")[0] == 401


def test_wrong_codes_are_answered_at_a_bounded_rate(
    served: WebDaemon, open_browser: Callable[[], Browser]
) -> None:
    browser = open_browser()
    statuses = [browser.log_in(f"wrong-{place}")[0] for place in range(40)]
    assert statuses[0] == 401
    assert statuses[-1] == 429
    assert browser.log_in(served.ask(m.OpenWeb())["code"])[0] == 200


def token_of(served: WebDaemon, role: str) -> str:
    answer = served.ask(m.CreateToken(role=role, life_s=3600, uses=100))
    return str(answer["token"])


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json; charset=punycode", b"x" * 60_000),
        ("application/json; charset=no-such-codec", b"{"),
        ("application/json", b"[" * 60_000),
        ("application/json", b"\xff\xfe"),
        ("application/json; charset=utf-7", b"+AHs-"),
    ],
)
def test_a_body_is_json_in_utf8_whatever_its_sender_calls_it(
    served: WebDaemon, open_browser: Callable[[], Browser], content_type: str, body: bytes
) -> None:
    host = open_browser().host
    connection = http.client.HTTPConnection(host, timeout=PATIENCE_S)
    headers = {"Content-Type": content_type, "Origin": f"http://{host}"}
    connection.request("POST", "/api/login", body, headers)
    answer = connection.getresponse()
    assert answer.status == 401
    assert "no valid code" in json.loads(answer.read())["error"]
    connection.close()
    assert "internal_error" not in {one["kind"] for one in served.ask(m.ReadEvents())["events"]}


def test_a_browser_that_reads_nothing_is_cut(
    served: WebDaemon, open_browser: Callable[[], Browser], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "UNREAD_S", 0.05)
    browser = open_browser()
    browser.log_in(served.ask(m.OpenWeb())["code"])
    headers = f"Host: {browser.host}\r\nCookie: {browser.cookie}\r\n"
    with socket.socket() as unread:
        unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        unread.connect(("127.0.0.1", int(browser.host.rpartition(":")[2])))
        unread.sendall(f"GET /static/charts.js HTTP/1.1\r\n{headers}\r\n".encode())
        poll = select.poll()
        poll.register(unread, 0)  # tells of its end only
        assert poll.poll(1000 * PATIENCE_S)


def test_what_is_no_http_is_logged_in_a_few_lines_without_a_traceback(
    open_browser: Callable[[], Browser], capfd: pytest.CaptureFixture[str]
) -> None:
    address = ("127.0.0.1", int(open_browser().host.rpartition(":")[2]))
    with structlog.testing.capture_logs() as lines:
        for _ in range(50):
            for wrong in (b"GET / HTTP/9.9", b"\0\xff", b"POST / HTTP/1.1\r\nContent-Length: zz"):
                with socket.create_connection(address, PATIENCE_S) as caller:
                    caller.sendall(wrong + b"\r\n\r\n")
                    while caller.recv(4096):
                        pass
    assert 0 < len(lines) < 20
    assert "Traceback" not in capfd.readouterr().err


def test_sessions_outlive_the_coordinator_but_not_what_they_were_given_for(
    loop_thread: Any, state_dir: Path
) -> None:
    first = WebDaemon(loop_thread, state_dir)
    port = int(first.ask(m.OpenWeb())["url"].rstrip("/").rpartition(":")[2])
    local, left, viewer = Browser(port), Browser(port), Browser(port)
    assert local.log_in(first.ask(m.OpenWeb())["code"])[0] == 200
    assert left.log_in(first.ask(m.OpenWeb())["code"])[0] == 200
    assert left.ask("POST", "/api/logout")[0] == 200
    assert viewer.log_in(token_of(first, "viewer"))[0] == 200
    first.stop()
    assert (state_dir / SESSIONS_FILE).stat().st_mode & 0o777 == 0o600
    assert local.key not in (state_dir / SESSIONS_FILE).read_text()

    address = Address("127.0.0.1", port)
    second = WebDaemon(loop_thread, state_dir, web=address)
    assert [one.ask("GET", "/api/me")[0] for one in (local, left, viewer)] == [200, 401, 200]
    (token,) = second.ask(m.ListTokens())["tokens"][-1:]
    second.ask(m.RevokeToken(id=token["id"]))
    assert viewer.ask("GET", "/api/me")[0] == 401
    second.stop()

    third = WebDaemon(loop_thread, state_dir, web=address, local_viewers=("nobody",))
    assert local.ask("GET", "/api/me")[0] == 401  # who has which role may have changed
    third.stop()
    (state_dir / SESSIONS_FILE).write_text("[{}]")
    fourth = WebDaemon(loop_thread, state_dir, web=address)
    assert local.ask("GET", "/api/me")[0] == 401
    fourth.stop()


def test_beyond_this_host_it_is_https_with_the_clusters_certificate(
    loop_thread: Any, state_dir: Path
) -> None:
    served = WebDaemon(loop_thread, state_dir, web=Address("0.0.0.0", 0))
    told = served.ask(m.OpenWeb())
    port = int(told["url"].rstrip("/").rpartition(":")[2])
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    secured = http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE_S, context=context)
    own = {"Origin": f"https://127.0.0.1:{port}", "Content-Type": "application/json"}
    secured.request("POST", "/api/login", json.dumps({"word": told["code"]}), own)
    shown = secured.sock.getpeercert(binary_form=True)
    assert hashlib.sha256(shown).hexdigest() == told["certificate_sha256"]
    answer = secured.getresponse()
    cookie = str(answer.getheader("Set-Cookie"))
    assert answer.status == 200
    assert cookie.startswith("__Host-dtd_session_")
    assert "secure" in cookie.lower()
    plain = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    plain.request("GET", "/")
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        plain.getresponse()
    secured.close()
    plain.close()
    served.stop()


def test_live_data_is_sent_to_those_who_are_logged_in(
    served: WebDaemon, open_browser: Callable[[], Browser]
) -> None:
    browser = open_browser()
    browser.log_in(served.ask(m.OpenWeb())["code"])
    connection = http.client.HTTPConnection(browser.host, timeout=PATIENCE_S)
    headers = {"Cookie": browser.cookie, "X-Dtd-Key": browser.key}
    connection.request("GET", "/api/live", headers=headers)
    answer = connection.getresponse()
    assert answer.getheader("Content-Type") == "text/event-stream"
    assert "default-src 'none'" in str(answer.getheader("Content-Security-Policy"))
    topics = set()
    while not {"status", "figures"} <= topics:
        line = answer.readline().decode()
        if line.startswith("event: "):
            topics.add(line.removeprefix("event: ").strip())
    connection.close()


def test_beyond_this_host_there_is_no_plain_http(loop_thread: Any, state_dir: Path) -> None:
    with pytest.raises(Exception, match="served over TLS"):
        WebDaemon(loop_thread, state_dir, web=Address("0.0.0.0", 0), listen=None)
