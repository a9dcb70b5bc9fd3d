from dataclasses import replace
from typing import Any

import pytest

from dtd.cluster import roster
from dtd.cluster.records import Holdings, Job, Worker
from dtd.wire import messages as m
from tests.registrations import registration

WARMED = m.Warmed(
    job="j",
    dataset_rows=100,
    dataset_fingerprint="d",
    plan_digest="p",
    numerics_fingerprint="n",
    parameters=1,
    steps_total=10,
    held=(),
)


def worker(name: str, generation: int = 0, step: int = 0, where: str = "none") -> Worker:
    held = m.Held(job="j", generation=generation, step=step, digest="", where=where)
    return Worker(
        registration=registration(
            name=name,
            incarnation=1,
            pid=1,
            host="h",
            device="cpu",
            data_host="h",
            data_port=1,
            version="0",
        ),
        holdings=Holdings(held=held),
    )


def left(one: Worker, generation: int) -> Worker:
    """It has reported FROZEN in this generation."""
    one.holdings.frozen_in = generation
    return one


def names(workers: list[Worker]) -> list[str]:
    return [one.name for one in workers]


def test_worker_10_comes_after_worker_9() -> None:
    given = ["worker-10", "b2", "worker-9", "10", "worker", "9"]
    expected = ["9", "10", "b2", "worker", "worker-9", "worker-10"]
    assert sorted(given, key=roster.natural_key) == expected


# --- who is in it ----------------------------------------------------------------------------


def chosen(
    workers: list[Worker], *, start: roster.Key = (0, 0), max_workers: int = 64, bad: Any = ()
) -> roster.Choice:
    return roster.choose(
        workers, start=start, max_workers=max_workers, bad_links={pair: pair for pair in bad}
    )


def test_ranks_are_by_name_all_that_came_first() -> None:
    given = [worker("w-3"), worker("w-10"), worker("w-1")]
    assert names(chosen(given).members) == ["w-1", "w-3", "w-10"]


def test_holders_of_the_state_are_chosen_first() -> None:
    given = [worker("w-1"), worker("w-2"), memory("w-3", 2, 7), memory("w-4", 2, 6, (2, 7))]
    start = (2, 7)
    assert names(chosen(given, start=start, max_workers=3).members) == ["w-1", "w-3", "w-4"]
    assert names(chosen(given, start=start, max_workers=2).members) == ["w-3", "w-4"]


def test_nobody_is_chosen_from_nobody() -> None:
    assert chosen([], max_workers=4) == roster.Choice(members=[], barred=[])


def test_leavers_do_not_count() -> None:
    given = [replace(worker("a"), leaving=True), worker("b"), worker("c")]
    assert names(chosen(given, max_workers=1).members) == ["a", "b"]


def test_with_four_a_bad_link_is_walked_round() -> None:
    given = [worker(name) for name in "abcd"]
    picked = chosen(given, bad=[("a", "b")])
    assert names(picked.members) == ["a", "c", "b", "d"]
    assert picked.barred == []


def test_in_a_ring_of_three_all_are_neighbours_and_the_last_of_a_bad_pair_stays_out() -> None:
    picked = chosen([worker(name) for name in "abc"], bad=[("a", "b")])
    assert (names(picked.members), names(picked.barred)) == (["a", "c"], ["b"])


def test_the_most_accused_stays_out() -> None:
    picked = chosen([worker(name) for name in "abc"], bad=[("a", "b"), ("a", "c")])
    assert (names(picked.members), names(picked.barred)) == (["b", "c"], ["a"])


def test_no_holder_stays_out_while_somebody_with_a_bad_link_holds_nothing() -> None:
    """Even the most accused holder: the state must not stay out with it."""
    given = [memory("z", 2, 7), worker("a"), worker("b")]
    picked = chosen(given, start=(2, 7), bad=[("a", "z"), ("b", "z")])
    assert (names(picked.members), names(picked.barred)) == (["z"], ["b", "a"])


def test_a_worker_that_lacks_the_state_but_has_good_links_is_no_reason_to_keep_a_bad_link() -> None:
    given = [memory("a", 2, 7), memory("b", 2, 7), worker("c")]
    picked = chosen(given, start=(2, 7), bad=[("a", "b")])
    assert (names(picked.members), names(picked.barred)) == (["a", "c"], ["b"])


def test_a_place_that_one_that_is_barred_leaves_goes_to_the_next() -> None:
    picked = chosen([worker(name) for name in "abcd"], max_workers=3, bad=[("a", "b")])
    assert (names(picked.members), names(picked.barred)) == (["a", "c", "d"], ["b"])


# --- the order -------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [[], [("b", "d")], [("a", "c"), ("b", "d")]])
def test_order_by_name_stays_unless_neighbours_cannot_reach_each_other(
    bad: list[tuple[str, str]],
) -> None:
    assert roster.ring_order("abcd", bad) == ["a", "b", "c", "d"]


def test_the_last_is_a_neighbour_of_the_first() -> None:
    assert roster.ring_order("abcd", [("a", "d")]) == ["a", "b", "d", "c"]


def test_one_alone_needs_no_link() -> None:
    assert roster.ring_order("a", []) == ["a"]
    assert roster.ring_order("ab", [("a", "b")]) is None


def test_search_goes_back_as_far_as_it_must() -> None:
    bad = [("a", "b"), ("a", "c"), ("b", "d")]
    order = roster.ring_order("abcde", bad)
    assert order is not None
    assert sorted(order) == list("abcde")
    ends = zip(order, order[1:] + order[:1], strict=True)
    assert all(roster.pair_of(one, other) not in bad for one, other in ends)


def test_search_is_bounded() -> None:
    """One of many has no link at all; to prove that there is no ring would take for ever."""
    many = [f"w-{number:02}" for number in range(64)]
    assert roster.ring_order(many, [(name, "w-63") for name in many[:-1]]) is None


# --- the state -------------------------------------------------------------------------------


def memory(name: str, generation: int, step: int, prepared: roster.Key | None = None) -> Worker:
    """A member of generation 2 that has frozen."""
    one = worker(name, generation, step, "memory")
    one.holdings.prepared, one.holdings.frozen_in = prepared or (generation, step), 2
    return one


def a_job(**more: Any) -> Job:
    return Job(id="j", spec={}, generation=2, start_generation=1, start_step=4, **more)


CASES: dict[str, tuple[list[Worker], roster.Key]] = {
    "nobody is here": ([], (0, 0)),
    "nobody has prepared anything": ([memory("a", 2, 6), memory("b", 2, 6)], (2, 6)),
    "all who are heard of have prepared": (
        [memory("a", 2, 6, (2, 7)), memory("b", 2, 6, (2, 7))],
        (2, 7),
    ),
    "one has not": ([memory("a", 2, 6, (2, 7)), memory("b", 2, 6)], (2, 6)),
    "one has committed": ([memory("a", 2, 7), memory("b", 2, 6, (2, 7))], (2, 7)),
    "one has prepared the step after": (
        [memory("a", 2, 7, (2, 8)), memory("b", 2, 6, (2, 7))],
        (2, 7),
    ),
    "one who was to join lacks the state": ([memory("a", 1, 4), left(worker("b"), 2)], (1, 4)),
    "one that reports no state has no say": (
        [memory("a", 1, 4, (2, 5)), left(worker("b"), 2)],
        (2, 5),
    ),
    "a stranger has no say": ([memory("a", 2, 6, (2, 7)), worker("b")], (2, 7)),
    "who ended another generation has no say": (
        [memory("a", 2, 6, (2, 7)), left(memory("b", 1, 3), 1)],
        (2, 7),
    ),
    "prepared in an older generation, and it was decided to redo it": (
        [memory("a", 1, 4, (1, 5)), memory("b", 1, 4, (1, 5))],
        (1, 4),
    ),
    "prepared in an older generation, and it was decided to commit it": (
        [memory("a", 1, 3, (1, 4)), memory("b", 0, 0)],
        (1, 4),
    ),
    "a checkpoint is newer than what is remembered": (
        [memory("a", 1, 4), worker("b", 2, 5, "checkpoint")],
        (2, 5),
    ),
    "another generation has gone on from there": ([memory("a", 1, 9), memory("b", 2, 5)], (2, 5)),
}


@pytest.mark.parametrize("case", CASES)
def test_state_that_the_next_generation_starts_from(case: str) -> None:
    workers, expected = CASES[case]
    assert roster.start_key(a_job(), workers) == expected


@pytest.mark.parametrize(("told", "start"), [(6, (2, 6)), (7, (2, 7))])
def test_a_worker_that_denies_a_step_is_believed_unless_two_have_told_of_it(
    told: int, start: roster.Key
) -> None:
    """They have committed it, and are lost; all had prepared it, or they could not have."""
    workers = [memory("a", 2, 6, (2, 7)), memory("b", 2, 6)]
    assert roster.start_key(a_job(step=told), workers) == start


def test_a_step_of_which_was_told_is_not_made_of_what_a_later_generation_starts_from() -> None:
    workers = [memory("a", 2, 4, (2, 5)), memory("b", 2, 4)]
    job = Job(id="j", spec={}, generation=2, start_generation=1, start_step=5, step=5)
    assert roster.start_key(job, workers) == (2, 4)


def test_before_the_first_generation_nothing_is_prepared() -> None:
    job = Job(id="j", spec={})
    assert roster.start_key(job, [worker("a"), worker("b", 3, 5, "checkpoint")]) == (3, 5)


def test_a_worker_that_can_commit_the_step_holds_its_state() -> None:
    given = [memory("a", 2, 7), memory("b", 2, 6, (2, 7)), memory("c", 2, 6), worker("d")]
    assert roster.holders(given, (2, 7)) == [True, True, False, False]


def test_what_is_on_disk_cannot_commit_a_step() -> None:
    disk = worker("a", 2, 6, "checkpoint")
    disk.holdings.prepared = (2, 7)
    assert not roster.has(disk, (2, 7))
    assert roster.has(disk, (2, 6))


def test_of_a_fresh_state_the_lowest_rank_gives_its_own() -> None:
    assert roster.holders([worker("a"), worker("b")], (0, 0)) == [True, False]
    assert roster.holders([worker("a"), memory("b", 0, 0)], (0, 0)) == [False, True]


def test_worker_that_reported_nothing_holds_nothing() -> None:
    silent = replace(worker("a"), holdings=Holdings())
    assert roster.held_key(silent) == (0, 0)
    assert not roster.has(silent, (0, 0))


def test_member_that_runs_holds_what_its_generation_started_from() -> None:
    held = roster.start_held(a_job(), "a")
    assert (held.generation, held.step, held.where) == (1, 4, "memory")


def frozen(*held: m.Held) -> m.Frozen:
    return m.Frozen(
        job="j",
        generation=3,
        roster_id=1,
        prepared_generation=3,
        prepared_step=5,
        held=held,
        suspect="",
        evidence="",
        reason="",
    )


def test_frozen_worker_holds_what_it_says() -> None:
    held = m.Held(job="j", generation=3, step=5, digest="x", where="memory")
    assert roster.held_by(frozen(held)) == held
    assert roster.held_by(frozen()) == roster.NOTHING_HELD


def test_finished_worker_holds_the_last_step_in_memory() -> None:
    message = m.Finished(job="j", generation=3, held_generation=2, step=9, digest="x", result={})
    assert roster.held_by(message) == m.Held(
        job="j", generation=2, step=9, digest="x", where="memory"
    )


def test_roster_id_tells_jobs_generations_and_incarnations_apart() -> None:
    again = worker("b")
    again.registration = replace(again.registration, incarnation=2)
    one, other = [worker("a"), worker("b")], [worker("a"), again]
    ids = {
        roster.roster_id("j", 1, one, start=(0, 0)),
        roster.roster_id("j", 1, one, start=(0, 1)),
        roster.roster_id("j", 2, one, start=(0, 0)),
        roster.roster_id("k", 1, one, start=(0, 0)),
        roster.roster_id("j", 1, other, start=(0, 0)),
    }
    assert len(ids) == 5
    assert all(0 <= number < 2**63 for number in ids)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"dataset_rows": 7}, "7 rows, not 100"),
        ({"dataset_fingerprint": "e"}, "sampled rows"),
        ({"plan_digest": "q"}, "other parameters"),
        ({"numerics_fingerprint": "o"}, "o, not n"),
        ({"steps_total": 7}, "7 steps, not"),
    ],
)
def test_disagreement_names_what_differs(change: dict[str, Any], word: str) -> None:
    assert word in roster.disagreement(WARMED, replace(WARMED, **change))


def test_equal_reports_agree() -> None:
    assert roster.disagreement(WARMED, replace(WARMED, parameters=2)) == ""


def test_reference_is_what_most_say_and_of_equals_the_first() -> None:
    other = replace(WARMED, dataset_rows=7)
    assert roster.reference([other, WARMED, WARMED]) is WARMED
    assert roster.reference([other, WARMED]) is other
