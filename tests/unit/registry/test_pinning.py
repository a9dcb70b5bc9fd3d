"""Who keeps which version: each decision by itself; tests/property has them all together."""

from __future__ import annotations

from dtd.engine.shards import WHOLE, ShardSet
from dtd.registry.pinning import (
    ANSWER_WITHIN_S,
    LONGEST_RETRY_S,
    MOST_OF_A_WORKER,
    RETRY_S,
    Pin,
    Pinning,
    Unpin,
)


def cluster(*workers: str, hosts: dict[str, str] | None = None) -> Pinning:
    """Connected workers without any copy, each on a host of its own unless said otherwise."""
    made = Pinning()
    for name in workers:
        made.arrived(name, (hosts or {}).get(name, name), ())
    return made


def want(pinning: Pinning, version: str = "v", copies: int = 2, origin: str = "abc") -> None:
    pinning.wanted(version, copies=copies, origin=dict.fromkeys(origin, WHOLE))


def pins(pinning: Pinning, now: float = 0.0) -> list[str]:
    """The workers that are given a copy of "v"; nothing else may be ordered."""
    orders = pinning.decide(now)
    assert all(isinstance(one, Pin) and one.version == "v" for one in orders)
    return [one.worker for one in orders]


def kept(pinning: Pinning, copies: int, workers: str) -> None:
    """Version "v" is kept by these workers."""
    want(pinning, copies=copies)
    while given := pins(pinning):
        for name in given:
            assert pinning.pinned("v", name)
    assert pinning.holders("v") == tuple(workers)


def test_the_first_copy_comes_alone_and_then_the_others() -> None:
    pinning = cluster("a", "b", "c", "d")
    want(pinning, copies=3, origin="b")
    assert not pinning.is_settled("v")
    assert pins(pinning) == ["b"]  # which has the files
    assert pins(pinning) == []
    assert pinning.pinned("v", "b")
    assert pinning.is_settled("v")
    assert pins(pinning) == ["a", "c"]
    assert pinning.explain("v")["copying"] == ["a", "c"]
    assert pinning.pinned("v", "c")
    assert pins(pinning) == []
    told = pinning.explain("v")
    assert (told["copies"], told["holders"], told["connected"]) == (3, ["b", "c"], ["b", "c"])
    assert pinning.held_by("c") == ("v",)
    assert pinning.held_by("d") == ()


def test_nothing_can_be_made_of_nothing() -> None:
    pinning = cluster("a", "b")
    half = ShardSet.segments([0], 2)
    pinning.wanted("v", copies=1, origin={"a": half, "z": WHOLE - half})
    assert pins(pinning) == []
    pinning.arrived("z", "z", ())
    assert pins(pinning) == ["a"]  # parts are fetched by whoever it is


def test_copies_are_on_different_hosts_if_there_are_enough() -> None:
    pinning = cluster("a", "b", "c", hosts={"a": "x", "b": "x", "c": "y"})
    want(pinning, copies=3, origin="ab")
    assert pins(pinning) == ["a"]
    pinning.pinned("v", "a")
    assert pins(pinning) == ["c", "b"]


def test_who_keeps_least_is_taken_first_and_has_one_order_at_a_time() -> None:
    pinning = cluster("a", "b")
    want(pinning, "u", copies=1, origin="a")
    want(pinning, "v", copies=1, origin="a")
    want(pinning, "w", copies=1, origin="a")
    orders = pinning.decide(0.0)
    assert [(one.version, one.worker) for one in orders] == [("u", "a"), ("v", "b")]
    pinning.pinned("u", "a")
    pinning.pinned("v", "b")
    assert [(one.version, one.worker) for one in pinning.decide(0.0)] == [("w", "a")]


def test_a_worker_that_is_full_is_given_nothing() -> None:
    pinning = Pinning()
    names = [f"n{number}" for number in range(MOST_OF_A_WORKER)]
    for name in names:
        pinning.wanted(name, copies=1, origin={})
    pinning.arrived("a", "a", names)
    want(pinning, copies=1, origin="a")
    assert pins(pinning) == []
    pinning.arrived("b", "b", ())
    assert pins(pinning) == ["b"]


def test_a_disconnected_worker_keeps_its_copy_until_an_operator_repairs() -> None:
    pinning = cluster("a", "b", "c")
    kept(pinning, 2, "ab")
    pinning.left("b")
    assert pins(pinning) == []
    assert pinning.next_deadline(0.0) is None
    assert pinning.explain("v")["holders"] == ["a", "b"]
    assert pinning.repair("v", 10.0) == ("b",)
    assert pins(pinning, 10.0) == ["c"]
    assert pinning.repair("v", 10.0) == ()
    assert pins(pinning, 10.0) == []
    pinning.pinned("v", "c")
    assert pinning.holders("v") == ("a", "c")
    pinning.arrived("b", "b", ["v"])  # it is back, with its files
    assert pinning.decide(300.0) == [Unpin(version="v", worker="c")]
    assert pinning.holders("v") == ("a", "b")
    assert pinning.decide(300.0) == []


def test_what_no_connected_worker_keeps_is_not_repaired() -> None:
    pinning = cluster("a", "b", "c")
    kept(pinning, 2, "ab")
    pinning.left("a")
    pinning.left("b")
    assert pinning.repair("v", 0.0) == ()
    assert pinning.holders("v") == ("a", "b")
    assert pins(pinning) == []
    assert pinning.repair("unknown", 0.0) == ()


def test_a_repair_retries_failed_copies_at_once() -> None:
    pinning = cluster("a", "b")
    want(pinning, copies=1, origin="a")
    assert pins(pinning) == ["a"]
    pinning.failed("v", "a", "no room", 0.0)
    assert pins(pinning) == ["b"]
    pinning.failed("v", "b", "neither", 0.0)
    assert pins(pinning) == []
    assert pinning.repair("v", 1.0) == ()
    assert pins(pinning, 1.0) == ["a"]
    assert pinning.explain("v")["failed"] == {"a": "no room", "b": "neither"}


def test_of_too_many_copies_those_on_a_common_host_go_first() -> None:
    pinning = cluster("a", "b", "c", hosts={"a": "x", "b": "x", "c": "y"})
    want(pinning, copies=2)
    for name in "abc":
        pinning.arrived(name, {"c": "y"}.get(name, "x"), ["v"])
    assert pinning.decide(0.0) == [Unpin(version="v", worker="b")]


def test_nothing_is_dropped_while_a_copy_is_being_made() -> None:
    pinning = cluster("a", "b", "c")
    kept(pinning, 2, "ab")
    pinning.left("b")
    pinning.repair("v", 0.0)
    assert pins(pinning) == ["c"]
    pinning.arrived("b", "b", ["v"])
    assert pinning.decide(0.0) == []
    pinning.failed("v", "c", "no room", 0.0)
    assert pinning.decide(0.0) == []  # there are enough


def test_a_worker_that_has_lost_its_files_gets_them_again() -> None:
    pinning = cluster("a", "b")
    kept(pinning, 2, "ab")
    pinning.left("b")
    pinning.arrived("b", "b", ())
    assert pinning.holders("v") == ("a",)
    assert pins(pinning) == ["b"]


def test_what_fails_is_tried_elsewhere_first_and_later_again() -> None:
    pinning = cluster("a", "b")
    want(pinning, copies=1, origin="a")
    assert pins(pinning) == ["a"]
    pinning.failed("v", "a", "no room", 0.0)
    assert pinning.explain("v")["failed"] == {"a": "no room"}
    assert pins(pinning) == ["b"]
    pinning.failed("v", "b", "neither", 1.0)
    assert pins(pinning, 1.0) == []
    assert pinning.next_deadline(1.0) == RETRY_S
    assert pins(pinning, RETRY_S) == ["a"]
    pinning.failed("v", "a", "no room", RETRY_S)
    assert pinning.next_deadline(RETRY_S) == 1.0 + RETRY_S
    assert pins(pinning, 1.0 + RETRY_S) == ["b"]
    assert pinning.pinned("v", "b")
    assert pinning.explain("v")["failed"] == {"a": "no room"}


def test_pauses_double_up_to_a_bound() -> None:
    pinning = cluster("a")
    want(pinning, copies=1, origin="a")
    now, pauses = 0.0, []
    for _ in range(10):
        assert pins(pinning, now) == ["a"]
        pinning.failed("v", "a", "no", now)
        later = pinning.next_deadline(now)
        assert later is not None
        pauses.append(later - now)
        now = later
    assert pauses[:3] == [RETRY_S, 2 * RETRY_S, 4 * RETRY_S]
    assert pauses[-1] == LONGEST_RETRY_S


def test_silence_is_a_failure_and_so_is_the_end_of_a_connection() -> None:
    pinning = cluster("a", "b")
    want(pinning, copies=1, origin="a")
    assert pins(pinning) == ["a"]
    assert pinning.next_deadline(0.0) == ANSWER_WITHIN_S
    assert pins(pinning, ANSWER_WITHIN_S) == ["b"]
    assert pinning.explain("v")["failed"] == {"a": "it did not answer in time"}
    pinning.left("b")
    assert not pinning.pinned("v", "b")
    assert pinning.explain("v")["copying"] == []


def test_what_was_not_ordered_does_not_count() -> None:
    pinning = cluster("a", "b")
    want(pinning, copies=1, origin="a")
    assert not pinning.pinned("v", "b")
    pinning.failed("v", "b", "lie", 0.0)
    pinning.failed("unknown", "b", "lie", 0.0)
    assert pinning.explain("v")["failed"] == {}
    assert not pinning.pinned("unknown", "nobody")
    assert pins(pinning) == ["a"]


def test_a_version_that_is_deleted_goes_from_all_who_are_or_come() -> None:
    pinning = cluster("a", "b", "c")
    kept(pinning, 2, "ab")
    pinning.left("b")
    pinning.forgotten("v")
    assert pinning.decide(0.0) == [Unpin(version="v", worker="a")]
    assert pinning.decide(0.0) == []
    pinning.arrived("b", "b", ["v"])
    assert pinning.decide(0.0) == [Unpin(version="v", worker="b")]
    assert (pinning.holders("v"), pinning.explain("v")["copies"]) == ((), 0)
    pinning.forgotten("v")
    assert pinning.next_deadline(0.0) is None


def test_a_version_that_was_never_known_stays_where_it_is() -> None:
    """It was registered after the backup from which this registry was restored."""
    pinning = cluster("a")
    pinning.forgotten("gone")
    assert pinning.arrived("b", "b", ["later", "gone"]) == ("later",)
    assert pinning.decide(0.0) == [Unpin(version="gone", worker="b")]
    assert pinning.holders("later") == ()


def test_a_version_that_is_deleted_while_it_is_copied() -> None:
    pinning = cluster("a", "b")
    want(pinning, copies=1, origin="a")
    assert pins(pinning) == ["a"]
    pinning.forgotten("v")
    assert not pinning.pinned("v", "a")
    assert pinning.decide(0.0) == [Unpin(version="v", worker="a")]


def test_who_leaves_is_told_nothing_and_does_not_leave_twice() -> None:
    pinning = cluster("a")
    kept(pinning, 1, "a")
    pinning.forgotten("v")
    pinning.left("a")
    pinning.left("a")
    pinning.left("nobody")
    assert pinning.decide(50.0) == []


def test_after_a_restart_holders_are_known_before_they_come_back() -> None:
    pinning = Pinning()
    pinning.wanted("v", copies=2, origin={}, holders=["a", "b"])
    pinning.wanted("w", copies=1, origin={}, holders=["a"])
    pinning.arrived("a", "a", ["v", "w"])
    pinning.arrived("c", "c", ())
    assert pinning.decide(5.0) == []
    assert pinning.next_deadline(5.0) is None
    assert pinning.repair("v", 5.0) == ("b",)
    assert pins(pinning, 5.0) == ["c"]
