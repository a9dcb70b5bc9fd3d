from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from dtd.ctl.access.audit import since_s
from dtd.errors import UsageError
from dtd.security.audit import BEGINNING, Entry, hash_of
from dtd.wire import messages as m

NOW_S = 1_800_000_000.0


@pytest.fixture
def asked() -> list[m.ReadAudit]:
    return []


@pytest.fixture
def rows(server, result, asked) -> list[dict[str, Any]]:
    """Serves three entries, a page each."""
    rows: list[dict[str, Any]] = []
    for entry in (
        Entry(
            time_s=NOW_S,
            role="operator",
            who="ann",
            serial="1f",
            address="10.0.0.7",
            what="CANCEL_JOB",
            about={"job": "digits-1"},
            outcome="done",
            result={"state": "stopping"},
        ),
        Entry(
            time_s=NOW_S,
            role="viewer",
            who="eve",
            what="REVOKE_CREDENTIAL",
            outcome="refused",
            reason="eve is a viewer",
            skipped=7,
        ),
        Entry(
            time_s=NOW_S,
            role="local",
            who="uid 0",
            what="REVOKE_CREDENTIAL",
            about={"name": "w-0"},
            outcome="done",
            result={"revoked": [{"role": "worker", "name": "w-0"}], "evicted": ["w-0", "w-1"]},
        ),
    ):
        row = {"seq": len(rows) + 1, **dataclasses.asdict(entry)}
        row["previous"] = rows[-1]["hash"] if rows else BEGINNING
        row["hash"] = hash_of(row["previous"], row)
        rows.append(row)

    def script(message):
        asked.append(message)
        rest = [row for row in rows if row["seq"] > message.after][:1]
        following = rest[0]["seq"] if rest else message.after
        return result({"entries": rest, "next": following, "newest": 3})

    server.script = script
    return rows


def test_entries_are_listed(dtdctl, rows, check_output):
    exit_code, out, _err = dtdctl("audit")
    lines = out.splitlines()
    assert (exit_code, len(lines)) == (0, 4)
    assert lines[0].split() == ["SEQ", "TIME", "WHO", "FROM", "WHAT", "ABOUT", "OUTCOME", "RESULT"]
    assert "operator/ann  10.0.0.7  CANCEL_JOB" in lines[1]
    assert lines[1].endswith("job=digits-1  done     state=stopping")
    assert lines[2].endswith("refused  eve is a viewer (7 more refusals before it)")
    assert lines[3].endswith("name=w-0      done     revoked=worker/w-0 evicted=w-0,w-1")
    exit_code, out, _err = dtdctl("audit", "-o", "json")
    assert [json.loads(line) for line in out.splitlines()] == rows
    check_output(["audit"], out)


def test_they_are_narrowed_down_by_the_coordinator(dtdctl, rows, asked):
    assert dtdctl("audit", "--who", "ann", "--what", "cancel", "--since", "2d")[0] == 0
    assert {(one.who, one.what, one.since_s > 0) for one in asked} == {("ann", "cancel", True)}
    assert [one.after for one in asked] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("text", "meant_s"),
    [
        ("", 0.0),
        ("90s", NOW_S - 90),
        ("5m", NOW_S - 300),
        ("2h", NOW_S - 7200),
        ("3d", NOW_S - 3 * 86400),
        ("9999999d", 0.0),
        ("2026-11-22T14:00:00+00:00", 1795356000.0),
    ],
)
def test_since_when(text: str, meant_s: float) -> None:
    assert since_s(text, now_s=NOW_S) == meant_s


@pytest.mark.parametrize("text", ["yesterday", "5", "0m", "-1d", "2026-13-01", "5x", "9" * 9 + "d"])
def test_a_time_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match="is not a time"):
        since_s(text, now_s=NOW_S)


def test_the_whole_log_is_verified(dtdctl, rows, check_output):
    exit_code, out, _err = dtdctl("audit", "--verify")
    assert exit_code == 0
    assert out.splitlines() == [
        "3 entries (1 to 3): none is missing or changed",
        f"hash of the last entry: {rows[-1]['hash']}",
    ]
    out = dtdctl("audit", "--verify", "-o", "json")[1]
    assert json.loads(out)["fault"] == ""
    check_output(["audit"], out)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda rows: rows[1].update(who="bob"), "entry 2 was changed"),
        (lambda rows: rows.pop(1), "entries 2 to 2 are missing"),
        (lambda rows: rows.pop(), "entries 3 to 3 at the end are missing"),
        (lambda rows: rows.clear(), "entries 1 to 3 at the end are missing"),
    ],
)
def test_a_log_that_somebody_changed_is_a_failure(dtdctl, rows, change, fault, check_output):
    change(rows)
    exit_code, out, _err = dtdctl("audit", "--verify")
    assert (exit_code, fault in out) == (1, True)
    exit_code, out, _err = dtdctl("audit", "--verify", "-o", "json")
    assert (exit_code, json.loads(out)["fault"]) == (1, fault)
    check_output(["audit"], out)


def test_what_is_no_log_is_said(dtdctl, rows):
    del rows[1]["hash"]
    exit_code, _out, err = dtdctl("audit", "--verify")
    assert (exit_code, "is not an audit log" in err) == (1, True)


def test_a_part_cannot_be_verified(dtdctl):
    exit_code, _out, err = dtdctl("audit", "--verify", "--who", "ann")
    assert (exit_code, "checks all entries" in err) == (2, True)
