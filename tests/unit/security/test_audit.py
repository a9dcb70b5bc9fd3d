"""The chain: whatever is changed, taken out, put in or moved is found."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtd.security.audit import BEGINNING, DONE, ENTERED, TRIMMED, Chain, Entry, Verdict, hash_of

Row = dict[str, Any]


def entry(number: int, **values: Any) -> Entry:
    usual = {"time_s": float(number), "role": "operator", "who": "ann", "what": "CANCEL_JOB"}
    return Entry(**{**usual, "outcome": DONE, "about": {"job": f"digits-{number}"}, **values})


def chained(entries: list[Entry], *, first: int = 1, previous: str = BEGINNING) -> list[Row]:
    rows = []
    for seq, one in enumerate(entries, start=first):
        row = {"seq": seq, **dataclasses.asdict(one), "previous": previous}
        previous = row["hash"] = hash_of(previous, row)
        rows.append(row)
    return rows


def judged(rows: list[Row], newest: int = 0) -> Verdict:
    chain = Chain()
    for row in rows:
        chain.add(row)
    return chain.verdict(newest)


ROWS = chained([entry(number) for number in range(1, 6)])


def test_a_log_of_which_nothing_is_missing() -> None:
    assert judged(ROWS, newest=5) == Verdict(
        entries=5, first=1, last=5, hash=ROWS[-1]["hash"], fault=""
    )
    assert judged([]) == Verdict(entries=0, first=0, last=0, hash=BEGINNING, fault="")


@pytest.mark.parametrize("name", ENTERED)
@pytest.mark.parametrize("at", range(5))
def test_a_field_that_was_changed_is_found(name: str, at: int) -> None:
    rows = [dict(row) for row in ROWS]
    old = rows[at][name]
    rows[at][name] = {"x": 1} if isinstance(old, dict) else old + type(old)(1)
    assert judged(rows).fault


@given(st.data())
def test_whatever_is_done_to_the_rows_is_found(data: st.DataObject) -> None:
    rows = [dict(row) for row in ROWS]
    at = data.draw(st.integers(0, 4))
    match data.draw(st.sampled_from(["remove", "move", "double", "replace", "hash"])):
        case "remove":
            del rows[at]
        case "move":
            rows.insert(data.draw(st.integers(0, 3).filter(lambda to: to != at)), rows.pop(at))
        case "double":
            rows.insert(at, dict(rows[at]))
        case "replace":  # with a hash of its own that fits
            rows[at]["who"] = "bob"
            rows[at]["hash"] = hash_of(rows[at]["previous"], rows[at])
        case "hash":
            rows[at]["hash"] = "f" * 64
    verdict = judged(rows, newest=5)
    assert verdict.fault or verdict.hash != ROWS[-1]["hash"]
    assert verdict.fault or at == 4


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ([*ROWS[:2], *ROWS[3:]], "entries 3 to 3 are missing"),
        (ROWS[:3], "entries 4 to 5 at the end are missing"),
        (ROWS[2:], "entries before 3 are missing, and no entry says that they were removed"),
        ([ROWS[0], ROWS[0]], "entry 1 comes after entry 1"),
        ([], "entries 1 to 5 at the end are missing"),
        (chained([entry(1)], previous="a" * 64), "entries before 1 are missing"),
        (
            [*ROWS[:1], *chained([entry(2)], first=2, previous="b" * 64)],
            "entry 2 does not follow entry 1: one of them was replaced",
        ),
        ([*ROWS[:4], {**ROWS[4], "reason": "other"}], "entry 5 was changed"),
    ],
)
def test_a_fault_is_named(rows: list[Row], fault: str) -> None:
    assert judged(rows, newest=5).fault.startswith(fault)


def test_what_was_removed_and_said_is_not_missing() -> None:
    cut = entry(6, what=TRIMMED, about={"through": 2, "hash": ROWS[1]["hash"]})
    rows = [*ROWS, *chained([cut], first=6, previous=ROWS[-1]["hash"])]
    assert judged(rows[2:]).fault == ""
    assert judged(rows[3:]).fault.startswith("entries before 4 are missing")
    other = entry(6, what=TRIMMED, about={"through": 2, "hash": "f" * 64})
    rows = [*ROWS, *chained([other], first=6, previous=ROWS[-1]["hash"])]
    assert judged(rows[2:]).fault.startswith("entries before 3 are missing")


def test_a_hash_can_be_reckoned_by_others() -> None:
    """protocol.md says how."""
    body = '[1,1.0,"operator","ann","","","CANCEL_JOB",{"job":"digits-1"},"done","",{},0]'
    assert ROWS[0]["hash"] == hashlib.sha256(f"{'0' * 64}\n{body}".encode()).hexdigest()
