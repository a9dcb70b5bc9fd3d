"""The commands about tokens and credentials."""

from __future__ import annotations

import json
import os
import time

import pytest

from dtd.ctl import access as commands
from dtd.wire import messages as m

MADE_S = 1_700_000_000.0
EXPIRES_S = 1_800_000_000.0
REVOKED = {"role": "worker", "name": "w-0", "serial": "ab12"}


@pytest.fixture(autouse=True)
def _utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_a_user_who_is_in_no_list_has_a_name(monkeypatch):
    monkeypatch.setattr(commands.getpass, "getuser", {}.popitem)
    monkeypatch.setattr(commands.platform, "node", lambda: "host7")
    assert commands._own_name() == f"user{os.getuid()}-host7"


@pytest.mark.parametrize(("role", "program"), [("worker", "dtd-worker"), ("viewer", "dtdctl")])
def test_a_token_is_printed_alone_and_explained_beside_it(dtdctl, server, result, role, program):
    token = {"id": "t1", "token": "dtd1-secret", "expires_s": EXPIRES_S, "uses": 1, "names": []}
    server.script = lambda _message: result(token)
    words = f"token t1: valid once until 2027-01-15 08:00; to use it: {program} join TOKEN\n"
    assert dtdctl("token", "create", "--role", role, "--ttl", "1h") == (0, "dtd1-secret\n", words)
    assert server.received == [m.CreateToken(role=role, life_s=3600.0)]
    exit_code, out, err = dtdctl("token", "create", "-o", "json")
    assert (exit_code, json.loads(out), err) == (0, token, "")


def test_a_token_that_never_expires(dtdctl, server, result):
    token = {"id": "t1", "token": "x", "expires_s": 0, "uses": 2, "names": ["a", "b"]}
    server.script = lambda _message: result(token)
    _, _, err = dtdctl("token", "create", "--ttl", "never")
    words = "valid 2 times until revoked, for a, b; to use it: dtd-worker join TOKEN"
    assert err == f"token t1: {words}\n"


def test_a_token_says_how_often_and_for_whom_it_is_good(dtdctl, server, result):
    token = {"id": "t1", "token": "x", "expires_s": 0, "uses": 8, "names": []}
    server.script = lambda _message: result(token)
    dtdctl("token", "create", "--uses", "8")
    dtdctl("token", "create", "--name", "host7", "--name", "host8", "--replace")
    assert server.received == [
        m.CreateToken(role="worker", life_s=86400, uses=8),
        m.CreateToken(role="worker", life_s=86400, names="host7,host8", replaces=True),
    ]


def test_a_role_that_there_is_not(dtdctl, server):
    exit_code, out, err = dtdctl("token", "create", "--role", "king")
    assert (exit_code, out) == (2, "")
    assert "'king' is not a role" in err
    assert server.received == []


def test_tokens_are_listed_without_secrets(dtdctl, server, result):
    common = {"role": "worker", "created_s": MADE_S, "replaces": False}
    open_to_all = {"uses": 8, "used": ["a", "b"], "names": []}
    named = {"uses": 1, "used": [], "names": ["host7"]}
    tokens = [
        {"id": "t1", "expires_s": 0, "expired": False, **common, **open_to_all},
        {"id": "t2", "expires_s": MADE_S + 1, "expired": True, **common, **named},
    ]
    server.script = lambda _message: result({"tokens": tokens})
    exit_code, out, err = dtdctl("token", "list")
    assert (exit_code, err) == (0, "")
    assert [line.split() for line in out.splitlines()] == [
        ["TOKEN", "ROLE", "USED", "NAMES", "MADE", "EXPIRES"],
        ["t1", "worker", "2", "of", "8", "-", "2023-11-14", "22:13", "never"],
        ["t2", "worker", "0", "of", "1", "host7", "2023-11-14", "22:13", "expired"],
    ]
    assert json.loads(dtdctl("token", "list", "-o", "json")[1]) == {"tokens": tokens}


def test_a_token_is_revoked(dtdctl, server, result):
    server.script = lambda message: result({"id": message.id})
    words = "token t1 can no longer be used to join; members that joined with it remain\n"
    assert dtdctl("token", "revoke", "t1") == (0, "", words)
    assert dtdctl("token", "revoke", "t1", "-o", "json") == (0, '{"id": "t1"}\n', "")


def test_credentials_are_listed_with_their_state(dtdctl, server, result):
    common = {"role": "worker", "issued_s": MADE_S, "expires_s": EXPIRES_S}
    credentials = [
        {"name": "w-0", "serial": "ab12", "revoked_s": 0, **common},
        {"name": "w-1", "serial": "cd34", "revoked_s": MADE_S, **common},
    ]
    server.script = lambda _message: result({"credentials": credentials})
    exit_code, out, err = dtdctl("credentials")
    assert (exit_code, err) == (0, "")
    dates = ["2023-11-14", "22:13", "2027-01-15", "08:00"]
    assert [line.split() for line in out.splitlines()] == [
        ["NAME", "ROLE", "STATE", "ISSUED", "EXPIRES", "SERIAL"],
        ["w-0", "worker", "valid", *dates, "ab12"],
        ["w-1", "worker", "revoked", *dates, "cd34"],
    ]
    assert json.loads(dtdctl("credentials", "-o", "json")[1]) == {"credentials": credentials}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            {"revoked": [REVOKED], "evicted": ["w-0", "w-1"]},
            "worker/w-0 (ab12) is revoked\nevicted: w-0, w-1\n",
        ),
        ({"revoked": [], "evicted": []}, "w-0 was already revoked\n"),
    ],
)
def test_a_credential_is_taken_back(dtdctl, server, result, answer, words):
    server.script = lambda _message: result(answer)
    assert dtdctl("revoke", "w-0") == (0, "", words)
    assert server.received == [m.RevokeCredential(name="w-0")]
    assert json.loads(dtdctl("revoke", "w-0", "-o", "json")[1]) == answer


def test_the_authority_is_shown(dtdctl, server, result):
    answer = {"sha256": "ab" * 32, "expires_s": EXPIRES_S}
    server.script = lambda _message: result(answer)
    assert dtdctl("authority", "show")[2] == "authority abababababababab, until 2027-01-15 08:00\n"
    assert server.received == [m.ShowAuthority()]
