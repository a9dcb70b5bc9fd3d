"""The newest checkpoint, and the digests on which ranks agreed."""

from __future__ import annotations

from typing import Any

from dtd.cluster.generation import checkpoints
from dtd.cluster.generation.checkpoints import CONTRADICTED, UNCONFIRMED, VERIFIED
from dtd.wire import messages as m


def agree(driver: Any, name: str, step: int, digest: str = "d", generation: int = 1) -> None:
    driver.say(name, m.Agreed(job="j-1", generation=generation, step=step, digest=digest))


def save(driver: Any, name: str, step: int, digest: str = "d", generation: int = 1) -> None:
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
    driver.say(name, saved)


def verdict(driver: Any, step: int, digest: str = "d") -> str:
    return checkpoints.verdict(checkpoints.remembered(driver.cluster.job.agreed), (1, step), digest)


def newest(driver: Any) -> tuple[int, int, tuple[str, ...]]:
    job = driver.cluster.job
    return job.checkpoint_generation, job.checkpoint_step, job.checkpoint_holders


# --- digests -------------------------------------------------------------------------------------


def test_what_is_confirmed_is_written_down_with_the_job(driver: Any) -> None:
    """It comes before the checkpoint is reported, and goes along with that; or after it."""
    job = driver.submit()
    driver.run_generation("a", "b")
    save(driver, "a", 5)
    driver.commit(5)
    assert newest(driver) == (1, 5, ("a",))
    driver.saved.clear()
    agree(driver, "a", 5)
    agree(driver, "b", 5)
    assert driver.saved == [job]
    assert job.agreed == ((1, 5, "d"),)


def test_what_is_remembered_is_bounded(driver: Any) -> None:
    job = driver.submit()
    driver.run_generation("a", "b")
    for step in range(1, checkpoints.MAX_CONFIRMED + 10):
        agree(driver, "a", step)
        agree(driver, "b", step)
    assert len(job.agreed) == checkpoints.MAX_CONFIRMED
    assert checkpoints.remembered(job.agreed)[-1].step == checkpoints.MAX_CONFIRMED + 9


def test_a_digest_is_verified_once_a_rank_has_told_of_it(driver: Any) -> None:
    driver.submit()
    driver.run_generation("a", "b")
    assert verdict(driver, 5) == UNCONFIRMED
    agree(driver, "a", 5)
    assert (verdict(driver, 5), verdict(driver, 5, "e")) == (VERIFIED, CONTRADICTED)


# --- what counts as the newest checkpoint --------------------------------------------------------


def test_a_checkpoint_that_all_ranks_contradict_does_not_count(driver: Any) -> None:
    driver.submit()
    driver.run_generation("a", "b", "c")
    driver.commit(5)
    for name in "ab":
        agree(driver, name, 5)
    save(driver, "c", 5, "forged")
    assert newest(driver) == (0, 0, ())
    (told,) = driver.told_of("checkpoint_contradicted")
    assert (told.worker, told.step) == ("c", 5)
    save(driver, "a", 5)
    assert newest(driver) == (1, 5, ("a",))


def test_a_worker_that_says_the_same_again_has_nothing_written(driver: Any) -> None:
    """Generations wait for what is written down of a job, so nobody has it written for ever."""
    driver.submit()
    driver.run_generation("a", "b")
    driver.commit(5)
    save(driver, "a", 5)
    driver.saved.clear()
    for step in (5, 4, 5, 3):
        save(driver, "a", step)
    assert not driver.saved
    save(driver, "b", 5)
    assert (len(driver.saved), newest(driver)) == (1, (1, 5, ("a", "b")))
