"""The actions due before and after a step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtd.engine.agenda import (
    AfterStep,
    BeforeStep,
    after_commit,
    before_step,
    checkpoint_writers,
)
from dtd.engine.control_word import ControlEntry, ControlWord, Flags, encode_entry, reduce_entries


def due(*, divides: bool | None = None, **facts: bool) -> set[str]:
    given = dict.fromkeys(("met", "last", "evaluates", "awaits_digest"), False) | facts
    found = before_step(**given, divides=divides)
    return {name for name in BeforeStep.__slots__ if getattr(found, name)}


def test_a_generation_begins_with_an_agreement() -> None:
    assert due() == {"agree", "catch_up", "announce_start"}
    assert due(evaluates=True) == {"agree", "catch_up", "announce_start", "evaluate"}


def test_what_is_to_be_saved_is_agreed_on_before_it_is_evaluated() -> None:
    assert due(met=True, evaluates=True) == {"evaluate"}
    assert due(met=True, evaluates=True, awaits_digest=True) == {"agree", "evaluate"}


def test_rows_are_divided_anew_in_time_and_by_a_new_generation() -> None:
    assert "divide" in due(divides=False)
    assert due(met=True, divides=True) == {"divide"}
    assert due(met=True, divides=False) == set()
    assert "divide" not in due(met=True, last=True, divides=True)


def word(*flags: Flags) -> ControlWord:
    return reduce_entries([encode_entry(ControlEntry(flags=one)) for one in flags])


def after(said: Flags, other: Flags | None = None, **facts: bool) -> AfterStep:
    given = dict.fromkeys(("checkpoint_due", "digest_due", "last"), False) | facts
    return after_commit(word(said, other or Flags()), said, **given)


@pytest.mark.parametrize("fact", ["checkpoint_due", "last"])
def test_a_checkpoint_that_is_merely_due_waits_for_no_other(fact: str) -> None:
    found = after(Flags(), **{fact: True})
    assert (found.checkpoint, found.waits) == (True, False)


@pytest.mark.parametrize(
    ("other", "ending", "agree"),
    [
        (Flags(checkpoint=True), None, False),
        (Flags(stop=True), "stopped", True),
        (Flags(leave=True), "yielded", True),
    ],
)
def test_a_checkpoint_that_is_asked_for_is_waited_for(
    other: Flags, ending: str | None, agree: bool
) -> None:
    assert after(Flags(), other) == AfterStep(
        checkpoint=True, waits=True, digest=False, ending=ending, agree=agree
    )


def test_a_yield_ends_the_generation_and_saves_nothing() -> None:
    found = after(Flags(), Flags(yield_=True))
    assert (found.ending, found.checkpoint, found.agree) == ("yielded", False, False)


@pytest.mark.parametrize(
    ("hosts", "copies", "writers"),
    [
        ("a", 1, {0}),
        ("a", 3, {0}),
        ("aabb", 1, {0}),
        ("aabb", 2, {0, 2}),
        ("aabb", 3, {0, 1, 2}),
        ("aaab", 2, {0, 3}),
        ("abcd", 2, {0, 1}),
        ("abab", 9, {0, 1, 2, 3}),
    ],
)
def test_writers(hosts: str, copies: int, writers: set[int]) -> None:
    assert checkpoint_writers(list(hosts), copies) == writers
    assert checkpoint_writers(list(hosts), copies, sharded=True) == {*range(len(hosts))}


@given(
    hosts=st.lists(st.sampled_from("abcde"), min_size=1, max_size=12),
    copies=st.integers(1, 14),
)
def test_as_many_hosts_as_possible(hosts: list[str], copies: int) -> None:
    writers = checkpoint_writers(hosts, copies)
    assert 0 in writers
    assert len(writers) == min(copies, len(hosts))
    assert len({hosts[rank] for rank in writers}) == min(copies, len(set(hosts)))
