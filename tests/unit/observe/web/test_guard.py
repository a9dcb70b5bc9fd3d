"""Names that the page answers to, and requests that come from elsewhere."""

from __future__ import annotations

import pytest
from aiohttp.test_utils import make_mocked_request

from dtd.errors import ErrorCode, ProtocolError, RequestRefused
from dtd.observe.web.http import CONTENT_POLICY, answer_headers, foreign, is_our_name, of_error

NAMES = frozenset({"node1", "train.example.org"})
ORIGIN = {"Host": "127.0.0.1:7118", "Origin": "http://127.0.0.1:7118"}


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1:7118", "127.0.0.1", "localhost:9000", "LOCALHOST", "[::1]:7118", "[::1]"),
        *("node1:7118", "Train.Example.org.", "10.0.0.7:80"),
    ],
)
def test_our_names(host: str) -> None:
    assert is_our_name(host, NAMES)


@pytest.mark.parametrize(
    "host",
    [
        *("", "evil.example", "127.0.0.1.evil.example", "node1.evil.example:7118", "node1:"),
        *("[evil]:80", "::1", "localhost:7118:80", "user@localhost", "localhost/", "[::1"),
        "999.1.1.1",
    ],
)
def test_names_of_others(host: str) -> None:
    assert not is_our_name(host, NAMES)


def why(method: str, *, secured: bool = False, **headers: str) -> str:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    request = make_mocked_request(method, "/api/act", headers=given)
    return foreign(request, secured=secured, names=NAMES)


@pytest.mark.parametrize(
    ("method", "headers", "said"),
    [
        ("GET", {"Host": "evil.example"}, "not served under this name"),
        ("GET", {**ORIGIN, "Sec_Fetch_Site": "cross-site"}, "another site"),
        ("GET", {**ORIGIN, "Sec_Fetch_Site": "same-site"}, "another site"),
        ("POST", {"Host": "127.0.0.1:7118"}, "another site"),
        ("POST", {**ORIGIN, "Origin": "null"}, "another site"),
        ("POST", {**ORIGIN, "Origin": "http://127.0.0.1:8000"}, "another site"),
        ("POST", {**ORIGIN, "Origin": "https://127.0.0.1:7118"}, "another site"),
        ("POST", {**ORIGIN, "Content_Type": "text/plain"}, "must be application/json"),
        ("PUT", ORIGIN, "PUT is not used"),
        ("OPTIONS", ORIGIN, "OPTIONS is not used"),
    ],
)
def test_what_comes_from_elsewhere_is_refused(
    method: str, headers: dict[str, str], said: str
) -> None:
    assert said in why(method, **headers)


def test_the_policy_lets_nothing_inline_run() -> None:
    assert "unsafe" not in CONTENT_POLICY
    assert "default-src 'none'" in CONTENT_POLICY
    assert answer_headers("/api/me")["Cache-Control"] == "no-store"
    assert "Cache-Control" not in answer_headers("/static/app.js")


def test_errors_say_whether_it_was_not_allowed_or_not_possible() -> None:
    forbidden = of_error(ProtocolError(ErrorCode.REFUSED, "a viewer may not", remedy="ask"))
    assert forbidden.status == 403
    assert forbidden.text == '{"error": "a viewer may not", "remedy": "ask"}'
    assert of_error(RequestRefused("no such job\x1b[2J")).text == (
        '{"error": "no such job\\\\x1b[2J", "remedy": ""}'
    )
