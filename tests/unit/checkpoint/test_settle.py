"""Parts that differ are left out one after the other until the others go together."""

from __future__ import annotations

import pytest

from dtd.checkpoint.assemble import MOST_TRIES, settled
from dtd.errors import CheckpointError, PartsDiffer


def trying(*wrong: str, needed: int = 2, names: str = "abc") -> tuple[list[str], list[str]]:
    """Which parts were tried together, and which were left out; wrong ones differ from all."""
    tried: list[str] = []

    def merge(without: frozenset[str]) -> str:
        left = [name for name in names if name not in without]
        tried.append("".join(left))
        if len(left) < needed:
            raise CheckpointError("these do not make the whole")
        for one in left:
            for other in left:
                if one < other and (one in wrong or other in wrong):
                    raise PartsDiffer(f"{one} and {other}", holders=(one, other))
        return "".join(left)

    _, without = settled(merge, names.index)
    return tried, sorted(without)


def test_parts_that_agree_are_merged_at_once() -> None:
    assert trying() == (["abc"], [])


def test_the_less_trusted_of_two_is_left_out_first() -> None:
    assert trying("b") == (["abc", "ac"], ["b"])
    assert trying("a") == (["abc", "ac", "bc"], ["a"])
    assert trying("c", names="cab") == (["cab", "cb", "ab"], ["c"])


def test_nothing_that_goes_together_is_told_as_the_first_difference() -> None:
    with pytest.raises(PartsDiffer, match="a and b") as raised:
        trying("a", "b", "c")
    assert raised.value.holders == ("a", "b")


def test_what_has_another_cause_is_told_at_once() -> None:
    with pytest.raises(CheckpointError, match="the whole"):
        trying(needed=4)


def test_tries_are_bounded() -> None:
    tried: list[frozenset[str]] = []

    def merge(without: frozenset[str]) -> None:
        tried.append(without)
        first, second, *_ = (name for name in "abcdefgh" if name not in without)
        raise PartsDiffer("they differ", holders=(first, second))

    with pytest.raises(PartsDiffer):
        settled(merge, "abcdefgh".index)
    assert len(tried) == MOST_TRIES
