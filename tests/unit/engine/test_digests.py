"""The digest of a sharded state is computed from what each rank has hashed."""

from __future__ import annotations

import pytest

from dtd.engine.control_word import compare
from dtd.engine.digests import ShardDigests, Shared, Tally, compared
from dtd.engine.digests import combined as tally_of
from dtd.engine.shards import Division, ShardSet
from dtd.errors import ProtocolError, UnreadableWord
from tests.shards import held_segments

COMMON = b"c" * 16


def hashed(rank: int, world_size: int, mirrors: int, **changed: bytes) -> ShardDigests:
    segments = {index: bytes([index]) * 16 for index in held_segments(rank, world_size, mirrors)}
    segments |= {int(name[1:]): value for name, value in changed.items() if name != "common"}
    return ShardDigests(cut=world_size, common=changed.get("common", COMMON), segments=segments)


def combined(words: list[bytes], mirrors: int = 1, servers: int = 0) -> Tally:
    return tally_of(words, Division(world_size=len(words), mirrors=mirrors, servers=servers))


def words(world_size: int, mirrors: int, **changed: bytes) -> list[bytes]:
    return [
        hashed(rank, world_size, mirrors, **(changed if rank == 1 else {})).encode()
        for rank in range(world_size)
    ]


def dissenters(tally: Tally) -> tuple[int, ...]:
    return compare([(5, one) for one in tally.digests]).dissenters


def test_a_word_says_what_was_hashed() -> None:
    one = hashed(2, 5, 1)
    assert ShardDigests.decode(one.encode()) == one


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
    tally = combined(words(world_size, mirrors), mirrors)
    assert len(set(tally.digests)) == 1
    assert len(tally.digests[0]) == 16
    assert tally.disputed is None
    other = [hashed(r, world_size, mirrors, s0=b"x" * 16).encode() for r in range(world_size)]
    if mirrors >= world_size - 1:
        assert combined(other, mirrors).digests != tally.digests


def test_a_rank_with_another_common_part_dissents() -> None:
    assert dissenters(combined(words(4, 1, common=b"d" * 16))) == (1,)


def test_an_owner_and_its_mirror_that_differ_both_dissent() -> None:
    mine, mirrored = (combined(words(5, 1, **{name: b"x" * 16})) for name in ("s2", "s1"))
    assert dissenters(mine) == (1, 2)
    assert mine.disputed == Shared(part=ShardSet.segments([2], 5), holders=(1, 2))
    assert dissenters(mirrored) == (0, 1)
    assert mirrored.disputed == Shared(part=ShardSet.segments([1], 5), holders=(0, 1))


def test_of_three_holders_the_one_that_differs_dissents() -> None:
    for name in ("s2", "s1", "s0"):
        tally = combined(words(4, 2, **{name: b"x" * 16}), 2)
        assert dissenters(tally) == (1,)
        assert tally.disputed is not None
        assert len(tally.disputed.holders) == 3
        assert tally.digests[0] == combined(words(4, 2), 2).digests[0]


def test_one_liar_cannot_dispute_shards_that_it_does_not_hold() -> None:
    """With its vote there would be no majority for any shard, and all ranks would dissent."""
    said = words(4, 0)
    said[1] = hashed(1, 4, 0, **{f"s{index}": b"x" * 16 for index in (0, 1, 3)}).encode()
    with pytest.raises(UnreadableWord, match="it has a hash of segment 0, of another's") as caught:
        combined(said, 0)
    assert caught.value.rank == 1


def test_of_two_ranks_that_differ_nobody_has_a_majority() -> None:
    digests = combined(words(2, 1, s0=b"x" * 16)).digests
    assert len(set(digests)) == 2
    assert not compare([(5, one) for one in digests]).majority


@pytest.mark.parametrize(
    ("word", "why"),
    [
        (hashed(1, 4, 1).encode(), "cut into 4 segments instead of 3"),
        (ShardDigests(cut=3, common=COMMON, segments={}).encode(), "its own segment 2"),
    ],
)
def test_a_word_of_another_world_is_that_ranks_fault(word, why) -> None:
    said = words(3, 1)
    said[1] = word
    with pytest.raises(UnreadableWord, match=why) as caught:
        combined(said)
    assert caught.value.rank == 1


def test_servers_own_the_segments_and_other_ranks_hash_the_common_part_alone() -> None:
    division = Division(world_size=5, mirrors=1, servers=2)
    said = []
    for rank in range(5):
        segments = {index: bytes([index]) * 16 for index in division.held(rank)}
        said.append(ShardDigests(cut=2, common=COMMON, segments=segments))
    assert [len(one.segments) for one in said] == [0, 0, 0, 2, 2]
    assert len(set(combined([one.encode() for one in said], servers=2).digests)) == 1
    said[4] = ShardDigests(cut=2, common=COMMON, segments={**said[4].segments, 0: b"x" * 16})
    tally = combined([one.encode() for one in said], servers=2)
    assert dissenters(tally) == (3, 4)
    assert tally.disputed == Shared(part=ShardSet.segments([0], 2), holders=(3, 4))


# --- what is about to travel ---------------------------------------------------------------------

PARTS = [
    Shared(part=ShardSet.segments([0], 4), holders=(0, 1)),
    Shared(part=ShardSet.segments([1, 2], 4), holders=(0, 1, 3)),
]
RIGHT, WRONG = b"r" * 16, b"w" * 16


def test_parts_that_are_equal_have_no_dissenter() -> None:
    tally = compared(PARTS, [RIGHT + WRONG, RIGHT + WRONG, b"", WRONG])
    assert tally.disputed is None
    assert len(set(tally.digests)) == 1
    assert tally.digests != compared(PARTS, [RIGHT * 2, RIGHT * 2, b"", RIGHT]).digests


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
