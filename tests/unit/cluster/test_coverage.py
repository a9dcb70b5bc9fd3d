"""Parts of a state: which workers together hold all of it."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.cluster import roster
from dtd.cluster.records import Job, Worker
from dtd.engine.shards import NOTHING, WHOLE, ShardSet
from dtd.wire import messages as m
from tests.registrations import registration
from tests.shards import held_shards

KEY = (1, 5)


def half(*quarters: int) -> ShardSet:
    return ShardSet.segments(quarters, 4)


def held(key: tuple[int, int], part: ShardSet, where: str = "memory") -> m.Held:
    wire = tuple(part.to_wire())
    return m.Held(job="j", generation=key[0], step=key[1], digest="", where=where, part=wire)


def worker(name: str, part: ShardSet = NOTHING, key: tuple[int, int] = KEY, **more: Any) -> Worker:
    made = Worker(registration=registration(name=name, incarnation=1))
    if part:
        made.holdings.held, made.holdings.prepared = held(key, part), key
    for field, value in more.items():
        setattr(made.holdings, field, value)
    return made


def a_job(**strategy: Any) -> Job:
    job = Job(id="j", spec={"strategy": {"name": "sharded", **strategy}})
    job.generation = 1
    job.roster = ("a", "b", "c", "d")
    return job


def ring(mirrors: int = 1, *, but: str = "") -> list[Worker]:
    shards = {name: held_shards(rank, 4, mirrors) for rank, name in enumerate("abcd")}
    return [worker(name, part, frozen_in=1) for name, part in shards.items() if name not in but]


def test_a_part_is_in_memory_prepared_or_on_disk() -> None:
    one = worker("a", half(0), prepared=(1, 6), saved=(held((1, 3), half(2), "checkpoint"),))
    assert roster.part_at(one, KEY) == roster.part_at(one, (1, 6)) == half(0)
    assert roster.part_at(one, (1, 3)) == half(2)
    assert roster.part_at(one, (1, 4)) == NOTHING
    assert roster.part_at(worker("b"), (0, 0)) == NOTHING
    assert roster.part_of(m.Held(job="j", generation=1, step=1, digest="", where="memory")) == WHOLE


@pytest.mark.parametrize(("gone", "start"), [("", KEY), ("a", KEY), ("ac", KEY), ("ab", (0, 0))])
def test_a_state_is_started_from_only_if_all_of_it_is_there(
    gone: str, start: tuple[int, int]
) -> None:
    workers = ring(but=gone)
    assert roster.start_key(a_job(), workers) == start
    assert roster.newest_key(a_job(), workers) == KEY
    assert roster.covers(workers, KEY) == (start == KEY)


def test_a_step_that_some_have_committed_and_others_prepared_is_complete() -> None:
    workers = ring()
    for one in workers[:2]:
        one.holdings.prepared = (1, 6)
    for one in workers[2:]:
        one.holdings.held = held((1, 6), roster.part_at(one, KEY))
    assert roster.start_key(a_job(), workers) == (1, 6)


def test_a_worker_that_has_not_prepared_a_step_keeps_the_others_from_it() -> None:
    workers = ring()
    for one in workers[:3]:
        one.holdings.prepared = (1, 6)
    assert roster.start_key(a_job(), workers) == KEY


def test_without_two_neighbours_the_newest_complete_checkpoint_counts() -> None:
    workers = ring(but="ab")
    older = {name: held_shards(rank, 4, 1) for rank, name in enumerate("cdab")}
    workers += [worker("a"), worker("b")]
    for one in workers:
        one.holdings.saved = (held((1, 2), older[one.name], "checkpoint"),)
    workers[0].holdings.saved += (held((1, 4), half(0), "checkpoint"),)
    assert roster.start_key(a_job(), workers) == (1, 2)
    assert roster.holders(workers, (1, 2)) == [True] * 4


def test_a_decision_is_complete_with_those_that_have_prepared_it() -> None:
    workers = [worker("a", half(0, 1), prepared=(1, 6)), worker("b", half(2, 3), (1, 6))]
    job = a_job()
    job.start_generation, job.start_step = 1, 6
    assert roster.start_key(job, workers) == (1, 6)


def test_the_assigned_part_follows_from_the_rank() -> None:
    job = a_job(mirrors=2)
    assert roster.assigned_part(job, "b") == held_shards(1, 4, 2)
    assert roster.assigned_part(job, "x") == NOTHING
    assert roster.assigned_part(a_job(mirrors=-3), "b") == held_shards(1, 4, 0)
    plain = Job(id="j", spec={})
    plain.roster = ("a",)
    assert roster.assigned_part(plain, "a") == WHOLE
    assert roster.start_held(job, "b").part == tuple(held_shards(1, 4, 2).to_wire())
    assert roster.start_held(plain, "a").part == ()


@pytest.mark.parametrize(
    ("mirrors", "names", "spare"), [(0, "abcd", 0), (1, "abcd", 1), (2, "abcd", 2), (7, "abcd", 3)]
)
def test_as_many_may_be_lost_as_there_are_mirrors(mirrors: int, names: str, spare: int) -> None:
    job = a_job(mirrors=mirrors)
    assert roster.redundancy(job, names) == spare
    assert roster.can_spare(job, "a") == (mirrors > 0)


def test_after_a_loss_one_less_may_be_lost() -> None:
    assert roster.redundancy(a_job(mirrors=1), "abc") == 0
    assert roster.redundancy(a_job(mirrors=1), "ab") == -1
    assert roster.redundancy(a_job(), "") is None


def test_a_worker_that_is_alone_or_no_member_may_leave() -> None:
    job = a_job(mirrors=0)
    assert roster.can_spare(job, "x")
    job.roster = ("a",)
    assert roster.can_spare(job, "a")
    plain = Job(id="j", spec={})
    plain.roster = ("a", "b")
    assert roster.can_spare(plain, "a")


def test_copies_are_counted_at_the_scarcest_shard() -> None:
    assert roster.copies([]) == roster.copies([half(0, 1, 2)]) == 0
    assert roster.copies([WHOLE, half(1), half(0, 2, 3)]) == 2
    assert roster.copies([half(0, 1), half(1, 2), half(2, 3), half(3, 0)]) == 2
    assert roster.scarce({"a": WHOLE}, 1) == NOTHING
    assert roster.scarce({"a": half(1), "b": half(0)}, 0) == half(2, 3)
    assert roster.scarce({"a": WHOLE, "b": half(1), "c": half(2, 1)}, 2) == half(0, 3)
    assert roster.scarce({}, 2) == WHOLE


def test_few_workers_that_have_all_are_found() -> None:
    workers = ring()
    assert [one.name for one in roster.needed(workers, KEY)] == ["a", "c"]
    assert [one.name for one in roster.needed(ring(but="bc"), KEY)] == ["a", "d"]
    assert roster.needed([], KEY) == roster.needed([worker("x")], KEY) == []


def chosen(workers: list[Worker], most: int, *bad: tuple[str, str]) -> list[str]:
    links = {tuple(sorted(pair)) for pair in bad}
    found = roster.choose(
        workers, start=KEY, max_workers=most, bad_links={pair: pair for pair in links}
    )
    return [one.name for one in found.members]


def test_those_are_members_that_together_have_all_shards() -> None:
    workers = [worker("w", half(0)), worker("x", half(0)), *ring()]
    assert chosen(workers, 2) == ["a", "c"]
    assert chosen(workers, 1) == ["a", "c"]  # a limit does not tear a state
    assert chosen(workers, 3) == ["a", "b", "c"]


def test_without_a_link_it_is_not_the_one_that_alone_has_a_shard_that_stays_out() -> None:
    workers = [worker("a", half(0, 1)), worker("b", half(0, 1)), worker("z", half(2, 3))]
    assert chosen(workers, 3, ("b", "z")) == ["a", "z"]
