"""The order of exchanges in a pass, from the events of one that was watched."""

from __future__ import annotations

from dtd.strategy.sharded.schedule import GATHER, REDUCE, Recorder


def watched(*events: tuple[str, int], unit_of: tuple[int, ...] = (1, 0)):
    recorder = Recorder(unit_of)
    for kind, number in events:
        if kind == "need":
            recorder.need(number)
        elif kind == "end":
            recorder.end(number)
        else:
            recorder.gradient(number, 0)
    return recorder.schedule()


FORWARD = (("need", 0), ("end", 0), ("need", 1), ("end", 1))


def test_the_last_unit_of_forward_is_kept_for_backward() -> None:
    found = watched(*FORWARD, ("need", 1), ("gradient", 0), ("need", 0), ("gradient", 1))
    assert found.gathers == [0, 1, 0]
    assert found.keeps == [False, True]


def test_gathers_are_one_ahead_of_their_use() -> None:
    found = watched(*FORWARD, ("need", 1), ("gradient", 0), ("need", 0), ("gradient", 1))
    gathers = [(GATHER, 0), (GATHER, 1), (GATHER, 2)]
    assert found.exchanges == [*gathers, (REDUCE, 0), (REDUCE, 1)]
    assert found.tail == 1


def test_a_bucket_without_gradients_comes_last() -> None:
    found = watched(*FORWARD, ("need", 1), ("need", 0), ("gradient", 1))
    assert found.exchanges[-2:] == [(REDUCE, 1), (REDUCE, 0)]
    assert found.gradients == [0, 1]


def test_a_unit_is_gathered_once_while_it_is_in_memory() -> None:
    found = watched(("need", 0), ("need", 1), ("need", 0), ("end", 1), ("need", 0))
    assert found.gathers == [0, 1]


def test_a_unit_is_released_after_its_last_gradient() -> None:
    late = watched(*FORWARD, ("gradient", 0), ("need", 1))
    assert late.gathers == [0, 1, 1]


def test_another_order_has_another_digest() -> None:
    one = watched(*FORWARD)
    other = watched(("need", 1), ("end", 1), ("need", 0), ("end", 0))
    assert one.digest() != other.digest()
    assert one.digest() == watched(*FORWARD).digest()
