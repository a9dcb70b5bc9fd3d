"""The newest checkpoint, and the digests on which ranks agreed."""

from __future__ import annotations

from typing import Any

from dtd.cluster import checkpoints
from dtd.cluster.checkpoints import CONTRADICTED, UNCONFIRMED, VERIFIED
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
    return checkpoints.verdict(checkpoints.remembered(desk.cluster.job.agreed), (1, step), digest)


def newest(desk: Any) -> tuple[int, int, tuple[str, ...]]:
    job = desk.cluster.job
    return job.checkpoint_generation, job.checkpoint_step, job.checkpoint_holders


# --- digests -------------------------------------------------------------------------------------


def test_what_is_confirmed_is_written_down_with_the_job(desk: Any) -> None:
    """It comes before the checkpoint is reported, and goes along with that; or after it."""
    job = desk.submit()
    desk.run_generation("a", "b")
    save(desk, "a", 5)
    desk.commit(5)
    assert newest(desk) == (1, 5, ("a",))
    desk.saved.clear()
    agree(desk, "a", 5)
    agree(desk, "b", 5)
    assert desk.saved == [job]
    assert job.agreed == ((1, 5, "d"),)


def test_what_is_remembered_is_bounded(desk: Any) -> None:
    job = desk.submit()
    desk.run_generation("a", "b")
    for step in range(1, checkpoints.MAX_CONFIRMED + 10):
        agree(desk, "a", step)
        agree(desk, "b", step)
    assert len(job.agreed) == checkpoints.MAX_CONFIRMED
    assert checkpoints.remembered(job.agreed)[-1].step == checkpoints.MAX_CONFIRMED + 9


def test_a_digest_is_verified_once_a_rank_has_told_of_it(desk: Any) -> None:
    desk.submit()
    desk.run_generation("a", "b")
    assert verdict(desk, 5) == UNCONFIRMED
    agree(desk, "a", 5)
    assert (verdict(desk, 5), verdict(desk, 5, "e")) == (VERIFIED, CONTRADICTED)


# --- what counts as the newest checkpoint --------------------------------------------------------


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
