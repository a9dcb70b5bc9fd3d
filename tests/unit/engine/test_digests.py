"""The digest of a sharded state is computed from what each rank has hashed."""

from __future__ import annotations

import struct

import pytest

from dtd.engine.control_word import compare
from dtd.engine.digests import (
    DeferredDigest,
    PendingDigest,
    ShardDigests,
    Shared,
    Tally,
    combined,
    compared,
    search,
)
from dtd.engine.shards import Division, ShardSet
from dtd.engine.step_protocol import StateKey
from dtd.errors import ErrorCode, ProtocolError, UnreadableWord
from tests.shards import held_segments

COMMON = b"c" * 16


def hashed(rank: int, world_size: int, mirrors: int, **changed: bytes) -> ShardDigests:
    segments = {index: bytes([index]) * 16 for index in held_segments(rank, world_size, mirrors)}
    segments |= {int(name[1:]): value for name, value in changed.items() if name != "common"}
    return ShardDigests(cut=world_size, common=changed.get("common", COMMON), segments=segments)


def words(world_size: int, mirrors: int, **changed: bytes) -> list[bytes]:
    return [
        hashed(rank, world_size, mirrors, **(changed if rank == 1 else {})).encode()
        for rank in range(world_size)
    ]


def dissenters(tally: Tally) -> tuple[int, ...]:
    return compare([(5, one) for one in tally.digests]).dissenters


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 19,
        hashed(0, 3, 1).encode()[:-1],
        hashed(0, 3, 1).encode() + b"\0",
        ShardDigests(cut=2, common=COMMON, segments={2: COMMON}).encode(),
        b"\3\0\2\0" + COMMON + 2 * (b"\1\0" + COMMON),
    ],
    ids=["empty", "short", "cut off", "longer", "no such segment", "twice"],
)
def test_a_word_that_says_nothing_is_refused(data) -> None:
    with pytest.raises(ProtocolError, match="hashes of shards are described by"):
        ShardDigests.decode(data)


@pytest.mark.parametrize(("world_size", "mirrors"), [(1, 0), (2, 1), (4, 0), (4, 1), (5, 4)])
def test_equal_parts_have_one_digest_that_depends_on_all_of_them(world_size, mirrors) -> None:
    tally = combined(words(world_size, mirrors), world_size)
    assert len(set(tally.digests)) == 1
    assert len(tally.digests[0]) == 16
    assert tally.disputed is None
    other = [hashed(r, world_size, mirrors, s0=b"x" * 16).encode() for r in range(world_size)]
    if mirrors >= world_size - 1:
        assert combined(other, world_size).digests != tally.digests


def test_an_owner_and_its_mirror_that_differ_both_dissent() -> None:
    mine, mirrored = (combined(words(5, 1, **{name: b"x" * 16}), 5) for name in ("s2", "s1"))
    assert dissenters(mine) == (1, 2)
    assert mine.disputed == Shared(part=ShardSet.segments([2], 5), holders=(1, 2))
    assert dissenters(mirrored) == (0, 1)
    assert mirrored.disputed == Shared(part=ShardSet.segments([1], 5), holders=(0, 1))


def test_of_three_holders_the_one_that_differs_dissents() -> None:
    for name in ("s2", "s1", "s0"):
        tally = combined(words(4, 2, **{name: b"x" * 16}), 4)
        assert dissenters(tally) == (1,)
        assert tally.disputed is not None
        assert len(tally.disputed.holders) == 3
        assert tally.digests[0] == combined(words(4, 2), 4).digests[0]


def test_a_word_of_another_world_is_that_ranks_fault() -> None:
    said = words(3, 1)
    said[1] = hashed(1, 4, 1).encode()
    with pytest.raises(UnreadableWord, match="cut into 4 segments instead of 3") as caught:
        combined(said, 3)
    assert caught.value.rank == 1


def test_servers_own_the_segments_and_other_ranks_hash_the_common_part_alone() -> None:
    division = Division(world_size=5, mirrors=1, servers=2)
    said = []
    for rank in range(5):
        segments = {index: bytes([index]) * 16 for index in division.held(rank)}
        said.append(ShardDigests(cut=2, common=COMMON, segments=segments))
    assert [len(one.segments) for one in said] == [0, 0, 0, 2, 2]
    assert len(set(combined([one.encode() for one in said], 2).digests)) == 1
    said[4] = ShardDigests(cut=2, common=COMMON, segments={**said[4].segments, 0: b"x" * 16})
    tally = combined([one.encode() for one in said], 2)
    assert dissenters(tally) == (3, 4)
    assert tally.disputed == Shared(part=ShardSet.segments([0], 2), holders=(3, 4))


# --- what is about to travel ---------------------------------------------------------------------

PARTS = [
    Shared(part=ShardSet.segments([0], 4), holders=(0, 1)),
    Shared(part=ShardSet.segments([1, 2], 4), holders=(0, 1, 3)),
]
RIGHT, WRONG = b"r" * 16, b"w" * 16


def test_two_holders_that_differ_both_dissent_and_the_part_is_named() -> None:
    tally = compared(PARTS, [RIGHT * 2, WRONG + RIGHT, b"", RIGHT])
    assert tally.disputed == PARTS[0]
    assert dissenters(tally) == (0, 1)
    assert tally.digests[2] == tally.digests[3]
    assert len(set(tally.digests)) == 3


def test_of_three_holders_of_a_moving_part_the_majority_is_right() -> None:
    tally = compared(PARTS, [RIGHT * 2, RIGHT + WRONG, b"", RIGHT])
    assert tally.disputed == PARTS[1]
    assert dissenters(tally) == (1,)


@pytest.mark.parametrize("word", [b"", RIGHT, RIGHT * 3, RIGHT + b"x"])
def test_a_rank_that_has_not_hashed_what_it_holds_is_named(word) -> None:
    with pytest.raises(UnreadableWord, match="no hashes of 2 parts") as caught:
        compared(PARTS, [RIGHT * 2, word, b"", RIGHT])
    assert caught.value.rank == 1


# --- the digest that waits for the next exchange ------------------------------------------------

DIGEST = bytes(range(16))
OTHER = bytes(16)


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


def test_the_digest_of_a_sharded_state_is_known_once_all_hashes_are_exchanged() -> None:
    deferred = DeferredDigest()
    assert deferred.uncombined is None
    hashed = ShardDigests(cut=1, common=OTHER, segments={0: OTHER})
    deferred.take(5, hashed, StateKey(1, 5))
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
    deferred.take(5, hashed)
    deferred.combine(4, hashed, DIGEST)
    deferred.combine(5, ShardDigests(cut=2, common=OTHER, segments={}), DIGEST)
    assert deferred.uncombined == (5, hashed)
    deferred.take(6, DIGEST)
    assert deferred.uncombined is None


# --- the first entry in which ranks differ --------------------------------------------------------


def together(*ranks: list[bytes]) -> tuple[list[int | None], int]:
    """The ranks' common finding, and after how many rounds."""
    lookings = [search(rank) for rank in ranks]
    words = [next(looking) for looking in lookings]
    rounds, found = 1, []
    while not found:
        assert max(map(len, words)) <= 256
        answers, rounds = [], rounds + 1
        for looking in lookings:
            try:
                answers.append(looking.send(words))
            except StopIteration as end:
                found.append(end.value)
        words = answers
    assert not words
    return found, rounds


def hashes(count: int) -> list[bytes]:
    return [struct.pack("!Q", number) for number in range(count)]


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 100, 1024, 1025, 40_000])
@pytest.mark.parametrize("where", [0.0, 0.3, 0.99])
def test_finds_the_first_that_differs(count: int, where: float) -> None:
    at = int(count * where)
    other = hashes(count)
    other[at] = other[-1] = b"otherwise"
    found, rounds = together(hashes(count), other, hashes(count))
    assert found == [at] * 3
    assert rounds <= 6


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_word_of_another_size_is_refused(rounds: int) -> None:
    looking = search(hashes(3))
    word = next(looking)
    if rounds:
        word = looking.send([word])
    with pytest.raises(ProtocolError, match="in a search") as error:
        looking.send([word, word + b"x"])
    assert error.value.code is ErrorCode.BAD_PAYLOAD
