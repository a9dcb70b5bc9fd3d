"""The actions due before and after a step."""

from __future__ import annotations

import pytest

from dtd.engine.agenda import AfterStep, BeforeStep, after_commit, before_step
from dtd.engine.control_word import ControlEntry, ControlWord, Flags, encode_entry, reduce_entries


def due(**facts: bool) -> set[str]:
    given = dict.fromkeys(("met", "last", "evaluates", "awaits_digest"), False) | facts
    found = before_step(**given)
    return {name for name in BeforeStep.__slots__ if getattr(found, name)}


def test_a_generation_begins_with_an_agreement() -> None:
    assert due() == {"agree", "catch_up", "announce_start"}
    assert due(evaluates=True) == {"agree", "catch_up", "announce_start", "evaluate"}


def test_a_step_in_the_middle_has_nothing_before_it() -> None:
    assert due(met=True) == set()
    assert due(met=True, awaits_digest=True) == set()


def test_what_is_to_be_saved_is_agreed_on_before_it_is_evaluated() -> None:
    assert due(met=True, evaluates=True) == {"evaluate"}
    assert due(met=True, evaluates=True, awaits_digest=True) == {"agree", "evaluate"}


def test_the_end_is_agreed_on_and_saved() -> None:
    assert due(met=True, last=True) == {"agree", "catch_up", "finish"}


def word(*flags: Flags) -> ControlWord:
    return reduce_entries([encode_entry(ControlEntry.saying(one)) for one in flags])


def after(said: Flags, other: Flags | None = None, **facts: bool) -> AfterStep:
    given = dict.fromkeys(("checkpoint_due", "digest_due", "last"), False) | facts
    return after_commit(word(said, other or Flags()), said, **given)


def test_most_steps_are_followed_by_nothing() -> None:
    assert after(Flags()) == AfterStep(
        checkpoint=False, waits=False, digest=False, ending=None, agree=False
    )


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


def test_a_digest_is_taken_once() -> None:
    assert after(Flags(), digest_due=True).digest
    assert not after(Flags(), digest_due=True, checkpoint_due=True).digest


def test_a_yield_ends_the_generation_and_saves_nothing() -> None:
    found = after(Flags(), Flags(yield_=True))
    assert (found.ending, found.checkpoint, found.agree) == ("yielded", False, False)


def test_the_last_step_ends_the_job_and_not_the_generation() -> None:
    assert after(Flags(stop=True), last=True).ending is None
