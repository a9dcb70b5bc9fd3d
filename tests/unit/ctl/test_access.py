"""The commands about tokens, credentials and the audit log, against a scripted coordinator."""

from __future__ import annotations

import dataclasses
import json

import pytest

from dtd.coordinator.audit import Entry
from dtd.ctl.access import since_s
from dtd.wire import messages as m

MADE_S = 1_700_000_000.0
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


def test_tokens_are_listed_without_secrets(dtdctl, server, result):
    common = {"role": "worker", "created_s": MADE_S, "replaces": False}
    open_to_all = {"uses": 8, "used": ["a", "b"], "names": []}
    named = {"uses": 1, "used": [], "names": ["host7"]}
    tokens = [
        {"id": "t1", "expires_s": 0, "expired": False, **common, **open_to_all},
        {"id": "t2", "expires_s": MADE_S + 1, "expired": True, **common, **named},
    ]
    server.script = lambda _message: result({"tokens": tokens})
    assert [line.split() for line in dtdctl("token", "list")[1].splitlines()] == [
        ["TOKEN", "ROLE", "USED", "NAMES", "MADE", "EXPIRES"],
        ["t1", "worker", "2", "of", "8", "-", "2023-11-14", "22:13:20", "never"],
        ["t2", "worker", "0", "of", "1", "host7", "2023-11-14", "22:13:20", "expired"],
    ]


def test_credentials_are_listed_with_their_state(dtdctl, server, result):
    common = {"role": "worker", "issued_s": MADE_S, "expires_s": EXPIRES_S}
    credentials = [
        {"name": "w-0", "serial": "ab12", "revoked_s": 0, **common},
        {"name": "w-1", "serial": "cd34", "revoked_s": MADE_S, **common},
    ]
    server.script = lambda _message: result({"credentials": credentials})
    dates = ["2023-11-14", "22:13:20", "2027-01-15", "08:00:00"]
    assert [line.split() for line in dtdctl("credentials")[1].splitlines()[1:]] == [
        ["w-0", "worker", "valid", *dates, "ab12"],
        ["w-1", "worker", "revoked", *dates, "cd34"],
    ]


REVOKED = {"role": "worker", "name": "w-0", "serial": "ab12"}


@pytest.mark.parametrize(
    ("words", "request_", "answer", "told"),
    [
        (
            ("revoke", "w-0"),
            m.RevokeCredential(name="w-0"),
            {"revoked": [REVOKED], "evicted": ["w-0", "w-1"]},
            "worker/w-0 (ab12) is revoked\nevicted: w-0, w-1\n",
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


@pytest.fixture
def rows(server, result):
    """Serves three entries, a page each."""
    common = {"time_s": EXPIRES_S}
    cancelled = {"about": {"job": "digits-1"}, "result": {"state": "stopping"}}
    revoked = {"revoked": [{"role": "worker", "name": "w-0"}], "evicted": ["w-0", "w-1"]}
    ann = {"role": "operator", "who": "ann", "serial": "1f", "address": "10.0.0.7"}
    eve = {"role": "viewer", "who": "eve", "reason": "eve is a viewer", "skipped": 7}
    root = {"role": "local", "who": "uid 0", "about": {"name": "w-0"}, "result": revoked}
    entries = [
        Entry(what="CANCEL_JOB", outcome="done", **common, **ann, **cancelled),
        Entry(what="REVOKE_CREDENTIAL", outcome="refused", **common, **eve),
        Entry(what="REVOKE_CREDENTIAL", outcome="done", **common, **root),
    ]
    rows = [{"seq": n, **dataclasses.asdict(one)} for n, one in enumerate(entries, start=1)]

    def script(message):
        rest = [row for row in rows if row["seq"] > message.after][:1]
        return result({"entries": rest, "next": rest[0]["seq"] if rest else message.after})

    server.script = script
    return rows


def test_entries_are_listed(dtdctl, rows, check_output):
    lines = dtdctl("audit")[1].splitlines()
    assert lines[0].split() == ["TIME", "WHO", "FROM", "WHAT", "ABOUT", "OUTCOME", "RESULT"]
    assert "operator/ann  10.0.0.7  CANCEL_JOB" in lines[1]
    assert lines[1].endswith("job=digits-1  done     state=stopping")
    assert lines[2].endswith("refused  eve is a viewer (7 more refusals before it)")
    assert lines[3].endswith("name=w-0      done     revoked=worker/w-0 evicted=w-0,w-1")
    out = dtdctl("audit", "-o", "json")[1]
    assert [json.loads(line) for line in out.splitlines()] == rows
    check_output(["audit"], out)


def test_they_are_narrowed_down_by_the_coordinator(dtdctl, rows, server):
    assert dtdctl("audit", "--who", "ann", "--what", "cancel", "--since", "2d")[0] == 0
    asked = server.received
    assert {(one.who, one.what, one.since_s > 0) for one in asked} == {("ann", "cancel", True)}
    assert [one.after for one in asked] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("text", "meant_s"),
    [
        ("", 0.0),
        ("90s", EXPIRES_S - 90),
        ("3d", EXPIRES_S - 3 * 86400),
        ("9999999d", 0.0),
        ("2026-11-22T14:00:00+00:00", 1795356000.0),
    ],
)
def test_since_when(text, meant_s):
    assert since_s(text, now_s=EXPIRES_S) == meant_s
