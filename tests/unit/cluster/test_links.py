import pytest

from dtd.cluster import links
from dtd.cluster.links import (
    AGAIN_WITHIN_S,
    MOST_PROBE_EVERY_S,
    Links,
)

ALIVE = {"a", "b", "c"}
PAIR = ("a", "b")


def bad_link(now: float = 0.0) -> Links:
    known = Links()
    known.accuse("a", "b", "silent")
    known.judge(ALIVE, now)
    return known


def mutual_reset(known: Links, now: float) -> list[tuple[links.Pair, str]]:
    known.accuse("a", "b", "reset")
    known.accuse("b", "a", "reset")
    return known.judge(ALIVE, now)


# --- evidence --------------------------------------------------------------------------------


@pytest.mark.parametrize("evidence", ["silent", "unreachable"])
def test_dead_link_is_bad_at_once_even_if_only_one_end_knows(evidence: str) -> None:
    known = Links()
    known.accuse("b", "a", evidence)
    assert known.judge(ALIVE, 0.0) == [(PAIR, evidence)]
    assert known.bad == {PAIR}
    assert (known.unreachable_from("a"), known.unreachable_from("c")) == (["b"], [])


def test_link_that_was_reset_may_be_tried_once_more() -> None:
    known = Links()
    assert mutual_reset(known, 0.0) == []
    assert mutual_reset(known, AGAIN_WITHIN_S - 1) == [(PAIR, "reset")]


# --- probing ---------------------------------------------------------------------------------


def test_link_is_good_again_when_it_works_both_ways() -> None:
    known = bad_link()
    assert not known.answered("a", "b", 0.0, reachable=True)
    assert not known.answered("a", "b", 0.0, reachable=True)
    assert not known.answered("b", "a", 0.0, reachable=False)
    assert known.bad == {PAIR}
    assert known.answered("b", "a", 0.0, reachable=True)
    assert known.bad == frozenset()


# --- again and again ---------------------------------------------------------------------------


def passes(known: Links, now: float) -> bool:
    known.answered("a", "b", now, reachable=True, greeted=True)
    return known.answered("b", "a", now, reachable=True, greeted=True)


def falls_silent(known: Links, now: float) -> None:
    known.accuse("a", "b", "silent")
    assert known.judge(ALIVE, now) == [(PAIR, "silent")]


def test_a_link_that_passes_probes_and_fails_in_training_is_tried_ever_more_seldom() -> None:
    known, now, waits = bad_link(), 0.0, []
    for _ in range(9):
        assert passes(known, now)
        falls_silent(known, now + 1.0)
        assert known.due(ALIVE, now + 1.0) == []
        deadline = known.next_deadline()
        assert deadline is not None
        waits.append(deadline - now - 1.0)
        assert waits[-1] == known.probed_every_s(PAIR)
        now = deadline
        assert known.due(ALIVE, now) == [("a", "b"), ("b", "a")]
        assert known.next_deadline() == now + waits[-1]
    assert waits == [4.0, 8.0, 16.0, 32.0, 64.0, *[MOST_PROBE_EVERY_S] * 4]


def test_a_link_that_lets_only_small_frames_through_is_narrow() -> None:
    known = bad_link()
    assert not known.is_narrow(PAIR)
    known.answered("b", "a", 0.0, reachable=False, greeted=True)
    assert known.is_narrow(PAIR)
    known.answered("a", "b", 0.0, reachable=True, greeted=True)
    assert known.is_narrow(PAIR)
    known.answered("b", "a", 2.0, reachable=False)
    assert not known.is_narrow(PAIR)
