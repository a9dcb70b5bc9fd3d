"""The audit log in the store: entries are only added, and what is removed is said."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from dtd.coordinator.store import audit_table
from dtd.coordinator.store.audit_table import AuditTable
from dtd.coordinator.store.store import Store
from dtd.security.audit import TRIMMED, Chain, Entry, Verdict


def entry(number: int, **values: Any) -> Entry:
    usual = {"role": "operator", "who": "ann", "serial": "1f", "what": "CANCEL_JOB"}
    return Entry(**{"time_s": number + 0.25, **usual, "outcome": "done", **values})


def judged(table: AuditTable) -> Verdict:
    chain, after = Chain(), 0
    while True:
        page = table.page(after)
        for one in page["entries"]:
            chain.add(one)
        if not page["entries"]:
            return chain.verdict(page["newest"])
        after = page["next"]


@pytest.fixture
def table(store: Store) -> AuditTable:
    return store.audit


def fill(table: AuditTable, count: int, **values: Any) -> list[tuple[int, str]]:
    return [table.add(entry(number, **values), synced=False) for number in range(1, count + 1)]


def tampered(state_dir, statement: str) -> None:
    database = sqlite3.connect(state_dir / "coordinator.sqlite3")
    with database:
        database.execute(statement)
    database.close()


def test_entries_come_back_as_they_went_in(table: AuditTable) -> None:
    made = table.add(entry(7, about={"job": "digits-1", "b": 1}, reason="no\x00"), synced=True)
    (found,) = table.page(0)["entries"]
    assert made == (found["seq"], found["hash"]) == (1, judged(table).hash)
    assert (found["about"], found["time_s"], found["reason"]) == (
        {"b": 1, "job": "digits-1"},
        7.25,
        "no\x00",
    )


def test_pages_are_read_from_cursor_to_cursor(table: AuditTable, monkeypatch) -> None:
    monkeypatch.setattr(audit_table, "PAGE_ENTRIES", 2)
    fill(table, 5)
    page = table.page(0)
    assert ([one["seq"] for one in page["entries"]], page["next"], page["newest"]) == ([1, 2], 2, 5)
    assert table.page(5) == {"entries": [], "next": 5, "newest": 5}
    assert judged(table).entries == 5


@pytest.mark.parametrize(
    ("wanted", "seqs"),
    [
        ({"who": "bob"}, [2]),
        ({"who": "viewer/eve"}, [3]),
        ({"who": "operator/eve"}, []),
        ({"who": "2e"}, [2]),
        ({"what": "revoke"}, [2, 3]),
        ({"what": "%"}, []),
        ({"since_s": 2.0, "what": "token"}, [2]),
    ],
)
def test_entries_are_looked_for(table: AuditTable, wanted: dict[str, Any], seqs: list[int]) -> None:
    table.add(entry(1), synced=False)
    table.add(entry(2, who="bob", serial="2e", what="REVOKE_TOKEN"), synced=False)
    table.add(entry(3, who="eve", role="viewer", what="REVOKE_CREDENTIAL"), synced=False)
    assert [one["seq"] for one in table.page(0, **wanted)["entries"]] == seqs


def test_the_oldest_are_removed_and_an_entry_says_so(table: AuditTable, monkeypatch) -> None:
    monkeypatch.setattr(audit_table, "MAX_ENTRIES", 10)
    monkeypatch.setattr(audit_table, "TRIMMED_AT_ONCE", 4)
    made = fill(table, 30)
    entries = table.page(0)["entries"]
    assert len(entries) <= 10
    assert judged(table).fault == ""
    cut = [one for one in entries if one["what"] == TRIMMED][-1]
    assert cut["about"]["through"] == entries[0]["seq"] - 1
    assert len({hashed for _, hashed in made}) == 30


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("UPDATE audit SET who = 'bob' WHERE seq = 3", "entry 3 was changed"),
        ('UPDATE audit SET about = \'{"job":"x"}\' WHERE seq = 3', "entry 3 was changed"),
        ("DELETE FROM audit WHERE seq = 3", "entries 3 to 3 are missing"),
        ("DELETE FROM audit WHERE seq <= 2", "entries before 3 are missing"),
        ("DELETE FROM audit WHERE seq >= 4", "entries 4 to 5 at the end are missing"),
        ("DELETE FROM audit", "entries 1 to 5 at the end are missing"),
    ],
)
def test_what_somebody_does_to_the_file_is_found(
    table: AuditTable, state_dir, statement: str, fault: str
) -> None:
    fill(table, 5)
    tampered(state_dir, statement)
    assert judged(table).fault.startswith(fault)


def test_a_log_that_was_cut_goes_on_with_a_gap(table: AuditTable, state_dir) -> None:
    fill(table, 5)
    tampered(state_dir, "DELETE FROM audit WHERE seq >= 4")
    assert fill(table, 1)[0][0] == 6
    assert judged(table).fault == "entries 4 to 5 are missing"


def test_somebody_else_may_add_an_entry_meanwhile(table: AuditTable, state_dir) -> None:
    fill(table, 2)
    database = sqlite3.connect(state_dir / "coordinator.sqlite3", isolation_level=None)
    cursor = database.cursor()
    cursor.execute("BEGIN IMMEDIATE")
    audit_table.append(cursor, entry(3, what="BACKUP"))
    cursor.execute("COMMIT")
    database.close()
    fill(table, 2)
    assert judged(table) == Verdict(
        entries=5, first=1, last=5, hash=table.page(0)["entries"][-1]["hash"], fault=""
    )
