"""The states that workers hold, and the next roster and its start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dtd.cluster.generation import roster, states
from dtd.cluster.records import Holdings, Job, Worker
from dtd.engine.shards import NOTHING, WHOLE, ShardSet
from dtd.wire import messages as m
from tests.registrations import registration
from tests.shards import held_shards


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


# --- the members -----------------------------------------------------------------------------


def chosen(
    workers: list[Worker], *, start: states.Key = (0, 0), max_workers: int = 64, bad: Any = ()
) -> roster.Choice:
    return roster.choose(
        workers, start=start, max_workers=max_workers, bad_links={pair: pair for pair in bad}
    )


def test_holders_of_the_state_are_chosen_first() -> None:
    given = [worker("w-1"), worker("w-2"), memory("w-3", 2, 7), memory("w-4", 2, 6, (2, 7))]
    start = (2, 7)
    assert names(chosen(given, start=start, max_workers=3).members) == ["w-1", "w-3", "w-4"]
    assert names(chosen(given, start=start, max_workers=2).members) == ["w-3", "w-4"]


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


# --- the order -------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [[], [("b", "d")], [("a", "c"), ("b", "d")]])
def test_order_by_name_stays_unless_neighbours_cannot_reach_each_other(
    bad: list[tuple[str, str]],
) -> None:
    assert roster.ring_order("abcd", bad) == ["a", "b", "c", "d"]


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


def memory(name: str, generation: int, step: int, prepared: states.Key | None = None) -> Worker:
    """A member of generation 2 that has frozen."""
    one = worker(name, generation, step, "memory")
    one.holdings.prepared, one.holdings.frozen_in = prepared or (generation, step), 2
    return one


def a_job(**more: Any) -> Job:
    return Job(id="j", spec={}, generation=2, start_generation=1, start_step=4, **more)


CASES: dict[str, tuple[list[Worker], states.Key]] = {
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
    told: int, start: states.Key
) -> None:
    """They have committed it, and are lost; all had prepared it, or they could not have."""
    workers = [memory("a", 2, 6, (2, 7)), memory("b", 2, 6)]
    assert roster.start_key(a_job(step=told), workers) == start


def test_a_step_of_which_was_told_is_not_made_of_what_a_later_generation_starts_from() -> None:
    workers = [memory("a", 2, 4, (2, 5)), memory("b", 2, 4)]
    job = Job(id="j", spec={}, generation=2, start_generation=1, start_step=5, step=5)
    assert roster.start_key(job, workers) == (2, 4)


def test_a_worker_that_can_commit_the_step_holds_its_state() -> None:
    given = [memory("a", 2, 7), memory("b", 2, 6, (2, 7)), memory("c", 2, 6), worker("d")]
    assert roster.holders(given, (2, 7)) == [True, True, False, False]


def test_what_is_on_disk_cannot_commit_a_step() -> None:
    disk = worker("a", 2, 6, "checkpoint")
    disk.holdings.prepared = (2, 7)
    assert not states.has(disk, (2, 7))
    assert states.has(disk, (2, 6))


def test_of_a_fresh_state_the_lowest_rank_gives_its_own() -> None:
    assert roster.holders([worker("a"), worker("b")], (0, 0)) == [True, False]
    assert roster.holders([worker("a"), memory("b", 0, 0)], (0, 0)) == [False, True]


def test_member_that_runs_holds_what_its_generation_started_from() -> None:
    held = states.start_held(a_job(), "a")
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


# --- parts of a state: which workers together hold all of it -------------------------------------


KEY = (1, 5)


def half(*quarters: int) -> ShardSet:
    return ShardSet.segments(quarters, 4)


def held(key: tuple[int, int], part: ShardSet, where: str = "memory") -> m.Held:
    wire = tuple(part.to_wire())
    return m.Held(job="j", generation=key[0], step=key[1], digest="", where=where, part=wire)


def holder(name: str, part: ShardSet = NOTHING, key: tuple[int, int] = KEY, **more: Any) -> Worker:
    made = Worker(registration=registration(name=name, incarnation=1))
    if part:
        made.holdings.held, made.holdings.prepared = held(key, part), key
    for field, value in more.items():
        setattr(made.holdings, field, value)
    return made


def divided_job(**strategy: Any) -> Job:
    job = Job(id="j", spec={"strategy": {"name": "sharded", **strategy}})
    job.generation = 1
    job.roster = ("a", "b", "c", "d")
    return job


def ring(mirrors: int = 1, *, but: str = "") -> list[Worker]:
    shards = {name: held_shards(rank, 4, mirrors) for rank, name in enumerate("abcd")}
    return [holder(name, part, frozen_in=1) for name, part in shards.items() if name not in but]


def test_a_part_is_in_memory_prepared_or_on_disk() -> None:
    one = holder("a", half(0), prepared=(1, 6), saved=(held((1, 3), half(2), "checkpoint"),))
    assert states.part_at(one, KEY) == states.part_at(one, (1, 6)) == half(0)
    assert states.part_at(one, (1, 3)) == half(2)
    assert states.part_at(one, (1, 4)) == NOTHING
    assert states.part_at(holder("b"), (0, 0)) == NOTHING
    assert states.part_of(m.Held(job="j", generation=1, step=1, digest="", where="memory")) == WHOLE


@pytest.mark.parametrize(("gone", "start"), [("", KEY), ("a", KEY), ("ac", KEY), ("ab", (0, 0))])
def test_a_state_is_started_from_only_if_all_of_it_is_there(
    gone: str, start: tuple[int, int]
) -> None:
    workers = ring(but=gone)
    assert roster.start_key(divided_job(), workers) == start
    assert roster.newest_key(divided_job(), workers) == KEY
    assert states.covers(workers, KEY) == (start == KEY)


def test_a_step_that_some_have_committed_and_others_prepared_is_complete() -> None:
    workers = ring()
    for one in workers[:2]:
        one.holdings.prepared = (1, 6)
    for one in workers[2:]:
        one.holdings.held = held((1, 6), states.part_at(one, KEY))
    assert roster.start_key(divided_job(), workers) == (1, 6)


def test_a_worker_that_has_not_prepared_a_step_keeps_the_others_from_it() -> None:
    workers = ring()
    for one in workers[:3]:
        one.holdings.prepared = (1, 6)
    assert roster.start_key(divided_job(), workers) == KEY


def test_without_two_neighbours_the_newest_complete_checkpoint_counts() -> None:
    workers = ring(but="ab")
    older = {name: held_shards(rank, 4, 1) for rank, name in enumerate("cdab")}
    workers += [holder("a"), holder("b")]
    for one in workers:
        one.holdings.saved = (held((1, 2), older[one.name], "checkpoint"),)
    workers[0].holdings.saved += (held((1, 4), half(0), "checkpoint"),)
    assert roster.start_key(divided_job(), workers) == (1, 2)
    assert roster.holders(workers, (1, 2)) == [True] * 4


def test_the_assigned_part_follows_from_the_rank() -> None:
    job = divided_job(mirrors=2)
    assert states.assigned_part(job, "b") == held_shards(1, 4, 2)
    assert states.assigned_part(job, "x") == NOTHING
    plain = Job(id="j", spec={})
    plain.roster = ("a",)
    assert states.assigned_part(plain, "a") == WHOLE
    assert states.start_held(job, "b").part == tuple(held_shards(1, 4, 2).to_wire())
    assert states.start_held(plain, "a").part == ()


@pytest.mark.parametrize(
    ("mirrors", "names", "spare"), [(0, "abcd", 0), (1, "abcd", 1), (2, "abcd", 2), (7, "abcd", 3)]
)
def test_as_many_may_be_lost_as_there_are_mirrors(mirrors: int, names: str, spare: int) -> None:
    job = divided_job(mirrors=mirrors)
    assert states.redundancy(job, names) == spare
    assert states.can_spare(job, "a") == (mirrors > 0)


def test_after_a_loss_one_less_may_be_lost() -> None:
    assert states.redundancy(divided_job(mirrors=1), "abc") == 0
    assert states.redundancy(divided_job(mirrors=1), "ab") == -1
    assert states.redundancy(divided_job(), "") is None


def test_a_worker_that_is_alone_or_no_member_may_leave() -> None:
    job = divided_job(mirrors=0)
    assert states.can_spare(job, "x")
    job.roster = ("a",)
    assert states.can_spare(job, "a")
    plain = Job(id="j", spec={})
    plain.roster = ("a", "b")
    assert states.can_spare(plain, "a")


def test_copies_are_counted_at_the_scarcest_shard() -> None:
    assert states.copies([]) == states.copies([half(0, 1, 2)]) == 0
    assert states.copies([WHOLE, half(1), half(0, 2, 3)]) == 2
    assert states.copies([half(0, 1), half(1, 2), half(2, 3), half(3, 0)]) == 2
    assert states.scarce({"a": WHOLE}, 1) == NOTHING
    assert states.scarce({"a": half(1), "b": half(0)}, 0) == half(2, 3)
    assert states.scarce({"a": WHOLE, "b": half(1), "c": half(2, 1)}, 2) == half(0, 3)
    assert states.scarce({}, 2) == WHOLE


def test_few_workers_that_have_all_are_found() -> None:
    workers = ring()
    assert [one.name for one in states.needed(workers, KEY)] == ["a", "c"]
    assert [one.name for one in states.needed(ring(but="bc"), KEY)] == ["a", "d"]
    assert states.needed([], KEY) == states.needed([holder("x")], KEY) == []


def chosen_names(workers: list[Worker], most: int, *bad: tuple[str, str]) -> list[str]:
    links = {tuple(sorted(pair)) for pair in bad}
    found = roster.choose(
        workers, start=KEY, max_workers=most, bad_links={pair: pair for pair in links}
    )
    return [one.name for one in found.members]


def test_without_a_link_it_is_not_the_one_that_alone_has_a_shard_that_stays_out() -> None:
    workers = [holder("a", half(0, 1)), holder("b", half(0, 1)), holder("z", half(2, 3))]
    assert chosen_names(workers, 3, ("b", "z")) == ["a", "z"]


def test_strides_that_need_a_bad_link_are_left_out() -> None:
    names = [f"w{rank}" for rank in range(8)]
    assert roster.strides(names, ()) == 0
    assert roster.strides(names, {("w0", "w3")}) == 0
    assert roster.strides(names, {("w1", "w3")}) == 1 + 4
    assert roster.strides(names, {("w1", "w7")}) == 1 + 4
    assert roster.strides(names, {("w1", "w3"), ("w2", "w6")}) == 1
    assert roster.strides(names[:4], {("w0", "w2")}) == 1


def linked(hop_bytes: int | None, host: str = "") -> Worker:
    """A worker whose last heartbeat said this of its link; None: it has sent none."""
    one = worker(f"w{hop_bytes}")
    one.registration = replace(one.registration, data_host=host or f"{id(one)}")
    if hop_bytes is not None:
        one.liveness.heartbeat = m.Heartbeat(state="", hop_bytes=hop_bytes)
    return one


def test_the_median_of_the_links_that_have_shown_something_counts() -> None:
    members = [linked(given) for given in (None, 900, 0, 100, 300)]
    assert roster.hop_bytes(members, 0) == 300
    assert roster.hop_bytes(members, 200) == 200
    assert roster.hop_bytes(members, 100) == 300
    assert roster.hop_bytes(members[:1], 700) == 700
    assert roster.hop_bytes(members[:1], 0) == 0


def test_a_missing_stride_costs_hops_and_so_less_travels_whole() -> None:
    members = [linked(10_000) for _ in range(8)]
    full, fewer = (roster.whole_bytes(members, strides, 10_000) for strides in (0, 1 + 2))
    assert full > fewer > 0


def test_on_one_host_links_do_not_count() -> None:
    members = [linked(10**6, host="h") for _ in range(8)]
    assert roster.whole_bytes(members, 0, 10**6) == 512 * 1024 // 7
