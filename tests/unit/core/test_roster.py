from dataclasses import replace
from typing import Any

import pytest

from dtd.core import roster
from dtd.core.membership_events import Worker
from dtd.wire import messages as m

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
        name=name,
        incarnation=1,
        pid=1,
        host="h",
        device="cpu",
        data_host="h",
        data_port=1,
        version="0",
        held=held,
    )


def names(workers: list[Worker]) -> list[str]:
    return [one.name for one in workers]


def test_worker_10_comes_after_worker_9() -> None:
    given = ["worker-10", "b2", "worker-9", "10", "worker", "9"]
    expected = ["9", "10", "b2", "worker", "worker-9", "worker-10"]
    assert sorted(given, key=roster.natural_key) == expected


def test_ranks_are_by_name_whoever_came_first() -> None:
    given = [worker("w-3"), worker("w-10"), worker("w-1")]
    assert names(roster.choose(given, max_workers=64)) == ["w-1", "w-3", "w-10"]


def test_holders_of_the_newest_state_are_chosen_first() -> None:
    given = [worker("w-1"), worker("w-2"), worker("w-3", 2, 7), worker("w-4", 2, 7)]
    assert names(roster.choose(given, max_workers=3)) == ["w-1", "w-3", "w-4"]
    assert names(roster.choose(given, max_workers=2)) == ["w-3", "w-4"]


def test_nobody_is_chosen_from_nobody() -> None:
    assert roster.choose([], max_workers=4) == []


def test_source_has_the_newest_state_rather_in_memory() -> None:
    old, disk = worker("a", 1, 9, "memory"), worker("b", 2, 3, "checkpoint")
    assert roster.source_rank([old, disk]) == 1
    assert roster.source_rank([old, disk, worker("c", 2, 3, "memory")]) == 2
    assert roster.source_rank([worker("a"), worker("b")]) == 0


def test_worker_that_reported_nothing_holds_nothing() -> None:
    silent = replace(worker("a"), held=None)
    assert roster.held_key(silent) == (0, 0)
    assert roster.source_rank([silent]) == 0


def frozen(*held: m.Held) -> m.Frozen:
    return m.Frozen(
        job="j",
        generation=3,
        roster_id=1,
        committed_step=5,
        prepared_step=5,
        control_word=b"",
        held=held,
        suspect="",
        reason="",
    )


def test_frozen_worker_holds_what_it_says() -> None:
    held = m.Held(job="j", generation=3, step=5, digest="x", where="memory")
    assert roster.held_by(frozen(held)) == held
    assert roster.held_by(frozen()) == roster.NOTHING_HELD


def test_finished_worker_holds_the_last_step_in_memory() -> None:
    message = m.Finished(job="j", generation=3, step=9, digest="x", stopped=False, result={})
    assert roster.held_by(message) == m.Held(
        job="j", generation=3, step=9, digest="x", where="memory"
    )


def test_roster_id_tells_jobs_generations_and_incarnations_apart() -> None:
    one, other = [worker("a"), worker("b")], [worker("a"), replace(worker("b"), incarnation=2)]
    ids = {
        roster.roster_id("j", 1, one),
        roster.roster_id("j", 2, one),
        roster.roster_id("k", 1, one),
        roster.roster_id("j", 1, other),
    }
    assert len(ids) == 4
    assert all(0 <= number < 2**63 for number in ids)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"dataset_rows": 7}, "7 rows, not 100"),
        ({"dataset_fingerprint": "e"}, "sampled rows"),
        ({"plan_digest": "q"}, "other parameters"),
        ({"numerics_fingerprint": "o"}, "o, not n"),
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
