from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from dtd.coordinator.audit import Entry
from dtd.ctl.access import since_s
from dtd.errors import UsageError
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
        rows.append({"seq": len(rows) + 1, **dataclasses.asdict(entry)})

    def script(message):
        asked.append(message)
        rest = [row for row in rows if row["seq"] > message.after][:1]
        following = rest[0]["seq"] if rest else message.after
        return result({"entries": rest, "next": following})

    server.script = script
    return rows


def test_entries_are_listed(dtdctl, rows, check_output):
    exit_code, out, _err = dtdctl("audit")
    lines = out.splitlines()
    assert (exit_code, len(lines)) == (0, 4)
    assert lines[0].split() == ["TIME", "WHO", "FROM", "WHAT", "ABOUT", "OUTCOME", "RESULT"]
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
