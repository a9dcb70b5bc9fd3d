"""Checkpoints count once others bear them out, and are verified when most ranks agree."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.cluster import hearing, vouching
from dtd.cluster.hearing import Word
from dtd.cluster.vouching import CONTRADICTED, UNCONFIRMED, VERIFIED
from dtd.wire import messages as m


def agree(desk: Any, name: str, step: int, digest: str = "d", generation: int = 1) -> None:
    desk.say(name, m.Agreed(job="j-1", generation=generation, step=step, digest=digest))


def save(desk: Any, name: str, step: int, digest: str = "d", generation: int = 1) -> None:
    saved = m.CheckpointSaved(
        job="j-1",
        generation=generation,
        step=step,
        digest=digest,
        size_bytes=1,
        directory="",
        metrics={},
        kept=(),
    )
    desk.say(name, saved)


def verdict(desk: Any, step: int, digest: str = "d") -> str:
    return vouching.verdict(vouching.remembered(desk.cluster.job.agreed), (1, step), digest)


def newest(desk: Any) -> tuple[int, int, tuple[str, ...]]:
    job = desk.cluster.job
    return job.checkpoint_generation, job.checkpoint_step, job.checkpoint_holders


# --- digests -------------------------------------------------------------------------------------


def test_a_digest_is_confirmed_by_more_than_half_of_the_roster(desk: Any) -> None:
    desk.submit()
    desk.run_generation("a", "b", "c")
    agree(desk, "a", 5)
    assert verdict(desk, 5) == UNCONFIRMED
    agree(desk, "a", 5)  # it says so again
    assert verdict(desk, 5) == UNCONFIRMED
    agree(desk, "b", 5)
    assert (verdict(desk, 5), verdict(desk, 5, "e")) == (VERIFIED, CONTRADICTED)
    agree(desk, "c", 5, "e")
    assert (verdict(desk, 5), verdict(desk, 6)) == (VERIFIED, UNCONFIRMED)


def test_one_that_lies_confirms_nothing(desk: Any) -> None:
    desk.submit()
    desk.run_generation("a", "b")
    agree(desk, "a", 5, "forged")
    agree(desk, "b", 5)
    assert (verdict(desk, 5), verdict(desk, 5, "forged")) == (UNCONFIRMED, UNCONFIRMED)


def test_who_trains_alone_confirms_alone(desk: Any) -> None:
    desk.submit()
    desk.run_generation("a")
    agree(desk, "a", 5)
    assert verdict(desk, 5) == VERIFIED


def test_what_is_confirmed_is_written_down_with_the_job(desk: Any) -> None:
    """It comes before the checkpoint is reported, and goes along with that; or after it."""
    job = desk.submit()
    desk.run_generation("a", "b")
    save(desk, "a", 5)
    desk.commit(5)
    assert newest(desk) == (1, 5, ("a",))
    desk.saved.clear()
    agree(desk, "a", 5)
    assert desk.saved == []
    agree(desk, "b", 5)
    assert desk.saved == [job]
    assert job.agreed == ((1, 5, "d"),)


def test_what_is_remembered_is_bounded(desk: Any) -> None:
    job = desk.submit()
    desk.run_generation("a", "b")
    for step in range(1, vouching.MAX_CONFIRMED + 10):
        agree(desk, "a", step)
        agree(desk, "b", step)
    assert len(job.agreed) == vouching.MAX_CONFIRMED
    assert vouching.remembered(job.agreed)[-1].step == vouching.MAX_CONFIRMED + 9
    assert not desk.cluster.trust.agreed


def test_only_members_of_the_newest_generation_confirm(desk: Any) -> None:
    desk.submit()
    desk.run_generation("a", "b")
    desk.register("c")
    said = m.Agreed(job="j-1", generation=1, step=5, digest="d")
    words = {name: hearing.judge(desk.cluster, name, said).word for name in "abc"}
    assert words == {"a": Word.COUNTS, "b": Word.COUNTS, "c": Word.FALSE}
    desk.cluster.workers["c"].participation.jobs = ()
    assert hearing.judge(desk.cluster, "c", said).word is Word.OUT_OF_TURN
    desk.cluster.workers["a"].participation.generation = 0
    state = m.Agreed(job="j-1", generation=0, step=5, digest="d")
    assert hearing.judge(desk.cluster, "a", state).word is Word.LATE
    other = m.Agreed(job="j-9", generation=1, step=5, digest="d")
    assert hearing.judge(desk.cluster, "a", other).word is Word.LATE


# --- what counts as the newest checkpoint --------------------------------------------------------


def test_a_checkpoint_from_beyond_displaces_nothing(desk: Any) -> None:
    """Else the job would wait for its holder, and think its last state saved."""
    desk.submit()
    desk.run_generation("a", "b", "c")
    desk.commit(5)
    save(desk, "a", 5)
    save(desk, "c", 9_000)
    assert newest(desk) == (1, 5, ("a",))
    desk.commit(9_000)
    assert newest(desk) == (1, 9_000, ("c",))


def test_a_checkpoint_that_all_ranks_contradict_does_not_count(desk: Any) -> None:
    desk.submit()
    desk.run_generation("a", "b", "c")
    desk.commit(5)
    for name in "ab":
        agree(desk, name, 5)
    save(desk, "c", 5, "forged")
    assert newest(desk) == (0, 0, ())
    (told,) = desk.told_of("checkpoint_contradicted")
    assert (told.worker, told.step) == ("c", 5)
    save(desk, "a", 5)
    assert newest(desk) == (1, 5, ("a",))


def test_claims_of_one_worker_are_bounded(desk: Any) -> None:
    desk.submit()
    desk.run_generation("a", "b")
    for step in range(1_000, 1_100):
        save(desk, "a", step)
    assert len(desk.cluster.trust.claims["a"]) == vouching.MAX_CLAIMS


@pytest.mark.parametrize(("key", "counts"), [((1, 3), True), ((1, 4), False), ((2, 3), False)])
def test_a_late_report_of_an_older_generation_counts_if_the_job_goes_on_from_it(
    desk: Any, key: tuple[int, int], counts: bool
) -> None:
    """Or not at all: what it did not go on from was never committed, nor what it began with."""
    desk.submit()
    number = desk.run_generation("a", "b")
    for name in "ab":
        desk.froze(name, generation=number, step=3)
    desk.all_run("a", "b")
    save(desk, "a", key[1], generation=key[0])
    assert newest(desk)[:2] == (key if counts else (0, 0))


def test_who_says_the_same_again_has_nothing_written(desk: Any) -> None:
    """Generations wait for what is written down of a job, so nobody has it written for ever."""
    desk.submit()
    desk.run_generation("a", "b")
    desk.commit(5)
    save(desk, "a", 5)
    desk.saved.clear()
    for step in (5, 4, 5, 3):
        save(desk, "a", step)
    assert not desk.saved
    save(desk, "b", 5)
    assert (len(desk.saved), newest(desk)) == (1, (1, 5, ("a", "b")))


def test_who_tells_of_many_states_has_no_others_forgotten(desk: Any) -> None:
    job = desk.submit()
    desk.run_generation("a", "b", "c")
    agree(desk, "a", 5)
    agree(desk, "a", 6, "forged")
    agree(desk, "c", 6, "forged too")
    for number in range(100):
        forged = m.Agreed(job="j-1", generation=1, step=100 + number, digest="forged")
        vouching.agreed(desk.cluster, job, "c", forged)
    agree(desk, "b", 5)
    assert verdict(desk, 5) == VERIFIED
    assert (
        len(desk.cluster.trust.agreed) == vouching.MAX_OPEN + 1
    )  # and step 6, of which "a" has told
