"""The search for the first entry in which ranks differ."""

from __future__ import annotations

import struct

import pytest

from dtd.engine.digests import search
from dtd.errors import ErrorCode, ProtocolError


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


def test_nothing_differs() -> None:
    assert together(hashes(100), hashes(100))[0] == [None, None]
    assert together([], [])[0] == [None, None]


def test_a_list_that_is_longer_differs_where_the_other_ends() -> None:
    assert together(hashes(7), hashes(5))[0] == [5, 5]
    assert together([], hashes(3))[0] == [0, 0]


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_word_of_another_size_is_refused(rounds: int) -> None:
    looking = search(hashes(3))
    word = next(looking)
    if rounds:
        word = looking.send([word])
    with pytest.raises(ProtocolError, match="in a search") as error:
        looking.send([word, word + b"x"])
    assert error.value.code is ErrorCode.BAD_PAYLOAD
