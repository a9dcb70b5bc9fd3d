"""One ring machine alone: the words that go round beside the buckets."""

from __future__ import annotations

import pytest

from dtd.errors import ErrorCode
from dtd.exchange.ring.events import SendWord, WordOffered, WordsDone
from tests.unit.exchange.ring.one_ring import (
    GENERATION,
    SCATTER,
    deliver_word,
    incoming,
    make,
    open_step,
    refusal,
    word,
    word_refusal,
)


def test_words_go_round_and_complete_the_exchange() -> None:
    ring = make(rank=1, world_size=3)
    open_step(ring)
    (sent,) = ring.handle(WordOffered(), 0.0)
    assert isinstance(sent, SendWord)
    assert (sent.word.origin, sent.word.hop, sent.word.sequence, sent.word.source) == (1, 0, 0, 1)
    (passed_on,) = deliver_word(ring, word(ring, origin=0))
    assert isinstance(passed_on, SendWord)
    assert (passed_on.word.origin, passed_on.word.hop, passed_on.word.source) == (0, 1, 1)
    assert deliver_word(ring, word(ring, origin=2)) == [WordsDone(sequence=0)]


def test_others_words_are_taken_before_ours_is_ready() -> None:
    ring = make(rank=1, world_size=2)
    open_step(ring)
    assert deliver_word(ring, word(ring, origin=0)) == []
    effects = ring.handle(WordOffered(), 0.0)
    assert [type(effect) for effect in effects] == [SendWord, WordsDone]


def test_exchanges_of_a_step_are_numbered_and_every_step_begins_at_zero() -> None:
    ring = make(rank=0, world_size=2)
    for step in (0, 1):
        open_step(ring, step=step)
        for sequence in (0, 1):
            ring.handle(WordOffered(), 0.0)
            done = deliver_word(ring, word(ring, origin=1, sequence=sequence))
            assert done == [WordsDone(sequence=sequence)]


@pytest.mark.parametrize(
    ("origin", "changed", "why"),
    [
        (0, {}, "word of rank 0 at hop 2"),  # our own
        (3, {"hop": 2}, "word of rank 3"),
        (1, {"hop": 0}, "word of rank 1 at hop 0"),
        (2, {"hop": 1}, "word of rank 2 at hop 1"),
        (2, {"sequence": 1}, "expected number 0"),
    ],
)
def test_a_word_that_cannot_come_is_refused(origin: int, changed: dict[str, int], why: str) -> None:
    ring = make(rank=0, world_size=3)
    open_step(ring)
    error = word_refusal(ring, word(ring, origin, **changed))
    assert error.code == ErrorCode.UNEXPECTED_CHUNK
    assert why in error.message


def test_a_word_that_comes_again_is_refused() -> None:
    ring = make(rank=0, world_size=2)
    open_step(ring)
    deliver_word(ring, word(ring, origin=1))
    error = word_refusal(ring, word(ring, origin=1))
    assert "expected number 1" in error.message


def test_a_word_that_answers_one_we_have_not_said_is_refused() -> None:
    ring = make(rank=0, world_size=2)
    open_step(ring)
    deliver_word(ring, word(ring, origin=1))
    early = word(ring, origin=1, sequence=1)
    assert "has not seen our word 0" in word_refusal(ring, early).message
    ring.handle(WordOffered(), 0.0)
    assert ring.accept_word(early) is None


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"generation": GENERATION - 1}, ErrorCode.STALE_GENERATION),
        ({"generation": GENERATION + 1}, ErrorCode.STALE_GENERATION),
        ({"source": 1}, ErrorCode.WRONG_SOURCE),
        ({"step": 2}, ErrorCode.UNEXPECTED_CHUNK),
    ],
)
def test_words_and_chunks_of_elsewhere_are_refused(changed: dict[str, int], code: int) -> None:
    ring = make(rank=0, world_size=3)
    open_step(ring, 3)
    assert word_refusal(ring, word(ring, 2, **changed)).code == code
    assert refusal(ring, incoming(ring, SCATTER, 0, **changed), 4).code == code
