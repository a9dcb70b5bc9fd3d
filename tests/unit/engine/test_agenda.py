"""The actions due before and after a step."""

from __future__ import annotations

import pytest

from dtd.engine.agenda import (
    AfterStep,
    BeforeStep,
    after_commit,
    before_step,
    checkpoint_writers,
)
from dtd.engine.control_word import ControlEntry, ControlWord, Flags, encode_entry, reduce_entries


def due(**facts: bool) -> set[str]:
    given = dict.fromkeys(("met", "last", "evaluates", "awaits_digest"), False) | facts
    found = before_step(**given)
    return {name for name in BeforeStep.__slots__ if getattr(found, name)}


def word(*flags: Flags) -> ControlWord:
    return reduce_entries([encode_entry(ControlEntry.saying(one)) for one in flags])


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
