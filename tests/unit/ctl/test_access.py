"""The commands about tokens, credentials and the audit log, against a scripted coordinator."""

from __future__ import annotations

import json
import time

import pytest

from dtd.ctl.command_line import since_s
from dtd.wire import messages as m

EXPIRES_S = 1_800_000_000.0


@pytest.mark.parametrize(
    ("words", "request_", "about", "told"),
    [
        (
            ("--role", "viewer", "--ttl", "1h"),
            m.CreateToken(role="viewer", life_s=3600.0),
            {"expires_s": EXPIRES_S, "uses": 1, "names": []},
            "valid once until 2027-01-15 08:00:00; to use it: dtdctl join TOKEN",
        ),
        (
            ("--name", "a", "--name", "b", "--replace", "--ttl", "never"),
            m.CreateToken(role="worker", life_s=0.0, names="a,b", replaces=True),
            {"expires_s": 0, "uses": 2, "names": ["a", "b"]},
            "valid 2 times until revoked, for a, b; to use it: dtd-worker join TOKEN",
        ),
        (
            ("--uses", "8"),
            m.CreateToken(role="worker", life_s=86400.0, uses=8),
            {"expires_s": 0, "uses": 8, "names": []},
            "valid 8 times until revoked; to use it: dtd-worker join TOKEN",
        ),
    ],
)
def test_a_token_is_printed_alone_and_explained_beside_it(
    dtdctl, server, result, words, request_, about, told
):
    token = {"id": "t1", "token": "dtd1-secret", **about}
    server.script = lambda _message: result(token)
    assert dtdctl("token", "create", *words) == (0, "dtd1-secret\n", f"token t1: {told}\n")
    assert server.received == [request_]
    exit_code, out, err = dtdctl("token", "create", "-o", "json")
    assert (exit_code, json.loads(out), err) == (0, token, "")


REVOKED = {"role": "worker", "name": "w-0", "serial": "ab12"}


@pytest.mark.parametrize(
    ("words", "request_", "answer", "told"),
    [
        (
            ("revoke", "w-0"),
            m.RevokeCredential(name="w-0"),
            {"revoked": [REVOKED], "evicted": ["w-0", "w-1"]},
            "worker/w-0 (ab12) revoked\nevicted: w-0, w-1\n",
        ),
        (
            ("revoke", "w-0"),
            m.RevokeCredential(name="w-0"),
            {"revoked": [], "evicted": []},
            "w-0 was already revoked\n",
        ),
        (
            ("token", "revoke", "t1"),
            m.RevokeToken(id="t1"),
            {"id": "t1"},
            "token t1 can no longer be used to join; members that joined with it remain\n",
        ),
        (
            ("authority", "show"),
            m.ShowAuthority(),
            {"sha256": "ab" * 32, "expires_s": EXPIRES_S},
            "authority abababababababab, until 2027-01-15 08:00:00\n",
        ),
    ],
)
def test_short_answers(dtdctl, server, result, words, request_, answer, told):
    server.script = lambda _message: result(answer)
    assert dtdctl(*words) == (0, "", told)
    assert server.received == [request_]
    assert json.loads(dtdctl(*words, "-o", "json")[1]) == answer


# --- the audit log -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "meant_s"),
    [
        ("90s", EXPIRES_S - 90),
        ("3d", EXPIRES_S - 3 * 86400),
        ("9999999d", 0.0),
        ("2026-11-22T14:00:00+00:00", 1795356000.0),
    ],
)
def test_since_when(text, meant_s, monkeypatch):
    monkeypatch.setattr("dtd.ctl.command_line.time.time", lambda: EXPIRES_S)
    assert since_s(text) == meant_s


def test_a_time_of_day_is_the_last_one():
    now_s = time.time()
    assert now_s - 61 < since_s(time.strftime("%H:%M", time.localtime(now_s))) <= time.time()
    ahead = time.strftime("%H:%M:%S", time.localtime(now_s + 300))
    assert since_s(ahead) < now_s
