import pytest

from dtd.cluster.workers import links
from dtd.cluster.workers.links import (
    AGAIN_WITHIN_S,
    GOOD_FOR_S,
    MAX_LINKS,
    MOST_PROBE_EVERY_S,
    PROBE_EVERY_S,
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


def test_resets_that_are_long_apart_are_accidents() -> None:
    known = Links()
    assert mutual_reset(known, 0.0) == []
    assert mutual_reset(known, AGAIN_WITHIN_S) == []
    assert mutual_reset(known, AGAIN_WITHIN_S + 1) == [(PAIR, "reset")]


def test_reset_that_only_one_end_tells_of_says_nothing() -> None:
    """Whoever freezes first cuts its links: its neighbour sees a reset that has another reason."""
    known = Links()
    for now in (0.0, 1.0, 2.0):
        known.accuse("a", "b", "reset")
        assert known.judge(ALIVE, now) == []


@pytest.mark.parametrize("gone", ["a", "b"])
def test_link_to_a_dead_worker_is_not_bad(gone: str) -> None:
    known = Links()
    known.accuse("a", "b", "silent")
    assert known.judge(ALIVE - {gone}, 0.0) == []
    assert known.judge(ALIVE, 1.0) == []


def test_what_is_remembered_is_bounded() -> None:
    known = Links()
    names = [f"w-{number}" for number in range(MAX_LINKS + 10)]
    for name in names:
        known.accuse("a", name, "silent")
    known.judge({"a", *names}, 0.0)
    assert len(known.bad) == MAX_LINKS


def test_worker_that_starts_afresh_begins_with_a_clean_slate() -> None:
    known = bad_link()
    mutual_reset(known, 0.0)
    known.accuse("c", "b", "silent")
    known.forget("b")
    assert known.bad == frozenset()
    assert known.judge(ALIVE, 0.0) == []
    assert mutual_reset(known, 1.0) == []


# --- probing ---------------------------------------------------------------------------------


def test_both_ends_probe_at_once_and_then_every_few_seconds() -> None:
    known = bad_link(now=7.0)
    assert known.next_deadline() == 7.0
    assert known.due(ALIVE, 7.0) == [("a", "b"), ("b", "a")]
    assert known.due(ALIVE, 7.0) == []
    assert known.next_deadline() == 7.0 + PROBE_EVERY_S
    assert known.due(ALIVE, 7.0 + PROBE_EVERY_S) == [("a", "b"), ("b", "a")]


def test_link_is_good_again_when_it_works_both_ways() -> None:
    known = bad_link()
    assert not known.answered("a", "b", 0.0, reachable=True)
    assert not known.answered("a", "b", 0.0, reachable=True)
    assert not known.answered("b", "a", 0.0, reachable=False)
    assert known.bad == {PAIR}
    assert known.answered("b", "a", 0.0, reachable=True)
    assert known.bad == frozenset()


def test_answer_that_comes_too_late_is_no_news() -> None:
    assert not Links().answered("a", "b", 0.0, reachable=True)


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


@pytest.mark.parametrize("afresh", [False, True])
def test_what_was_long_ago_or_of_another_process_does_not_count(afresh: bool) -> None:
    known = bad_link()
    assert passes(known, 5.0)
    now = 6.0 if afresh else 5.0 + GOOD_FOR_S
    if afresh:
        known.forget("b")
    falls_silent(known, now)
    assert known.due(ALIVE, now) == [("a", "b"), ("b", "a")]
    assert known.probed_every_s(PAIR) == PROBE_EVERY_S


def test_a_link_that_lets_only_small_frames_through_is_narrow() -> None:
    known = bad_link()
    assert not known.is_narrow(PAIR)
    known.answered("b", "a", 0.0, reachable=False, greeted=True)
    assert known.is_narrow(PAIR)
    known.answered("a", "b", 0.0, reachable=True, greeted=True)
    assert known.is_narrow(PAIR)
    known.answered("b", "a", 2.0, reachable=False)
    assert not known.is_narrow(PAIR)
