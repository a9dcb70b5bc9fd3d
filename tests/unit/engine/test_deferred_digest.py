"""The digest that waits for the next exchange."""

from __future__ import annotations

from dtd.engine.control_word import NO_DIGEST_STEP
from dtd.engine.digests import DeferredDigest, PendingDigest, ShardDigests
from dtd.engine.step_protocol import StateKey

DIGEST = bytes(range(16))
OTHER = bytes(16)


def test_nothing_waits_at_first() -> None:
    deferred = DeferredDigest()
    assert deferred.said == (NO_DIGEST_STEP, b"")
    assert not deferred.awaits(0)
    assert deferred.known(0) is None
    assert not deferred.matches(NO_DIGEST_STEP, b"")
    assert deferred.settled() is None


def test_what_is_taken_is_said_until_it_is_settled() -> None:
    deferred, key = DeferredDigest(), StateKey(2, 5)
    deferred.take(5, DIGEST, key)
    assert deferred.said == (5, DIGEST)
    assert deferred.awaits(5)
    assert not deferred.awaits(4)
    assert (deferred.known(5), deferred.known(4)) == (DIGEST, None)
    assert deferred.settled() == PendingDigest(step=5, digest=DIGEST, key=key)
    assert deferred.pending is None


def test_only_the_same_digest_after_the_same_step_matches() -> None:
    deferred = DeferredDigest()
    deferred.take(5, DIGEST)
    assert deferred.matches(5, DIGEST)
    assert not deferred.matches(4, DIGEST)
    assert not deferred.matches(5, OTHER)


def test_a_later_digest_takes_the_place_of_an_earlier_one() -> None:
    deferred = DeferredDigest()
    deferred.take(5, DIGEST)
    deferred.take(6, OTHER)
    assert deferred.said == (6, OTHER)


def test_what_is_dropped_is_said_no_more() -> None:
    deferred = DeferredDigest()
    deferred.take(5, DIGEST)
    deferred.drop()
    assert deferred.pending is None


def test_the_digest_of_a_sharded_state_is_known_once_all_hashes_are_exchanged() -> None:
    deferred = DeferredDigest()
    assert deferred.uncombined is None
    hashed = ShardDigests(cut=1, common=OTHER, segments={0: OTHER})
    deferred.take_shards(5, hashed, StateKey(1, 5))
    assert deferred.awaits(5)
    assert deferred.known(5) is None
    assert deferred.uncombined == (5, hashed)
    deferred.combine(5, hashed, DIGEST)
    assert deferred.uncombined is None
    assert deferred.said == (5, DIGEST)
    assert deferred.matches(5, DIGEST)


def test_hashes_of_another_cut_or_step_say_nothing_about_the_pending_digest() -> None:
    deferred = DeferredDigest()
    hashed = ShardDigests(cut=1, common=OTHER, segments={0: OTHER})
    deferred.combine(5, hashed, DIGEST)
    assert deferred.pending is None
    deferred.take_shards(5, hashed)
    deferred.combine(4, hashed, DIGEST)
    deferred.combine(5, ShardDigests(cut=2, common=OTHER, segments={}), DIGEST)
    assert deferred.uncombined == (5, hashed)
    deferred.take(6, DIGEST)
    assert deferred.uncombined is None
