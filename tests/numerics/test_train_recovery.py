"""Broken rings: whose state is called what, which steps are committed, and what is redone."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from dtd.checkpoint.format import list_checkpoints
from dtd.engine.control_word import Flags
from dtd.engine.step_protocol import FRESH
from dtd.errors import CheckpointError, DivergenceError, RingBroken, TaskError
from tests.numerics.cuts import Cut, poisonous

pytestmark = pytest.mark.numerics

SGD = {"name": "sgd", "lr": 0.1, "momentum": 0.9}


class Stateful:
    """BatchNorm; no dropout, because ranks in one process share its generator."""

    @staticmethod
    def of(regression, length: int = 48):
        class Task(regression):
            def build_model(self):
                return nn.Sequential(
                    nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)
                ).double()

        return Task(length)


def key(rank) -> tuple[int, int]:
    held = rank.run.held()
    assert held.where == "memory"
    assert held.digest == ""
    return held.generation, held.step


def whole_job(arena, task, spec, world_size: int) -> str:
    return arena.train(task, spec, world_size, job_id="whole")[0].outcome.digest


def same_state(arena, task, spec, world_size: int):
    ranks = [arena.start(task, spec, name=f"w{i}") for i in range(world_size)]
    ranks[0].run.adopt_local(*FRESH)
    for rank in ranks[1:]:
        arena.copy_state(ranks[0], rank)
    return ranks


def test_a_state_keeps_its_key_until_a_step_is_committed(arena, regression) -> None:
    spec = arena.spec(job={"steps": 8})
    (rank,) = same_state(arena, regression(), spec, 1)
    assert key(rank) == FRESH

    arena.generation([rank], generation=4, wrap=lambda _, inner: Cut(inner, method="start", step=0))
    assert key(rank) == FRESH
    rank.run.adopt_local(*FRESH)
    arena.generation([rank], generation=6, wrap=lambda _, inner: Cut(inner, method="start", step=3))
    assert key(rank) == (6, 3)
    rank.run.adopt_local(6, 3)
    arena.generation(
        [rank], generation=7, wrap=lambda _, inner: Cut(inner, method="open_step", step=2)
    )
    assert key(rank) == (6, 3)
    arena.generation([rank], generation=9)
    assert key(rank) == (9, 8)


def test_the_prepared_step_is_known_by_the_generation_that_prepared_it(arena, regression) -> None:
    (rank,) = same_state(arena, regression(), arena.spec(), 1)
    arena.generation([rank], generation=2, wrap=lambda _, inner: Cut(inner, method="start", step=3))
    assert rank.run.prepared_key is None
    rank.run.adopt_local(2, 3)
    words = iter(range(9))

    class SecondGather(Cut):
        """The control word of the generation's first step is lost."""

        def __getattr__(self, name):
            if name == "gather" and next(words) == 0:
                return self._inner.gather  # the agreement at the generation's start
            return super().__getattr__(name)

    arena.generation(
        [rank], generation=5, wrap=lambda _, inner: SecondGather(inner, method="gather", step=3)
    )
    assert key(rank) == (2, 3)
    assert rank.run.prepared_key == (5, 4)
    rank.run.adopt_local(5, 4)
    assert key(rank) == (5, 4)
    assert rank.run.prepared_key is None


@pytest.mark.parametrize("committed", [(), (1,), (0, 2)], ids=["none", "one", "two"])
def test_a_worker_that_prepared_a_step_commits_it_as_if_nothing_had_happened(
    arena, regression, committed
) -> None:
    task, spec = Stateful.of(regression), arena.spec(job={"steps": 9}, optimizer=SGD)
    undisturbed = whole_job(arena, task, spec, 3)
    ranks = same_state(arena, task, spec, 3)
    meeting = threading.Barrier(3)

    class LosesItsWord(Cut):
        """Every rank offers its word; some do not hear the others'."""

        def __init__(self, rank, inner) -> None:
            super().__init__(inner, method="", step=5)
            self._rank = rank

        def gather(self, word):
            words = self._inner.gather(word)
            if self._inner.nodes[0].machine.step == 5:
                meeting.wait()
                if self._rank not in committed:
                    raise RingBroken("cut by the test")
            return words

        def open_step(self, step, buckets):
            if step == 6:
                raise RingBroken("cut by the test")
            self._inner.open_step(step, buckets)

    arena.generation(ranks, wrap=LosesItsWord)
    held = [(1, 6) if i in committed else (1, 5) for i in range(3)]
    assert [key(rank) for rank in ranks] == held
    assert [rank.run.prepared_step for rank in ranks] == [6, 6, 6]
    for rank in ranks:
        rank.run.adopt_local(1, 6)
    assert len({rank.digest for rank in ranks}) == 1
    arena.generation(ranks, generation=2)
    assert {rank.outcome.digest for rank in ranks} == {undisturbed}


def test_a_step_committed_at_a_take_over_is_reported_by_all(arena, regression) -> None:
    spec = arena.spec(job={"steps": 6})
    (undisturbed, _) = arena.train(regression(), spec, 2, job_id="whole")
    ranks = same_state(arena, regression(), spec, 2)
    both_there = threading.Barrier(2)
    arena.generation(
        ranks, wrap=lambda _, inner: Cut(inner, method="gather", step=3, meet=both_there.wait)
    )
    for rank in ranks:
        rank.run.adopt_local(1, 4)
    arena.generation(ranks[::-1], generation=2)
    for number, rank in enumerate(ranks):
        reported = rank.recorder.steps
        assert [one.step for one in reported] == [1, 2, 3, 4, 5, 6]
        assert [one.loss for one in reported] == [one.loss for one in undisturbed.recorder.steps]
        assert [one.generation for one in reported] == [1, 1, 1, 1, 2, 2]
        assert [one.rank for one in reported] == [number] * 4 + [1 - number] * 2
        assert [one.step for one in reported if not one.step_s] == [4]
        assert (reported[3].comm_s, reported[3].sent_bytes) == (0.0, 0)


def test_rows_of_a_step_committed_at_a_take_over_are_checked(arena, regression) -> None:
    (rank,) = same_state(arena, regression(), arena.spec(), 1)
    source = rank.run._session.data.loader._source
    take, made = source.take, []

    def repeats_the_third_batch():
        made.append(take())
        return made[2 if len(made) == 4 else -1]

    source.take = repeats_the_third_batch
    arena.generation([rank], wrap=lambda _, inner: Cut(inner, method="gather", step=3))
    assert rank.recorder.warnings == []
    rank.run.adopt_local(1, 4)
    assert [event for event, _ in rank.recorder.warnings] == ["rows_not_as_planned"]


def flip(rank) -> None:
    with torch.no_grad():
        rank.model[0].weight[0, 0] += 1e-9


def flipping(ranks, which: int, step: int):
    """A bit flips on one rank when a step is complete."""

    class Flipping(Cut):
        def close_step(self):
            if self._inner.nodes[0].machine.step == self._step:
                flip(ranks[which])
            return self._inner.close_step()

    return lambda i, inner: Flipping(inner, method="", step=step) if i == which else inner


def test_a_minority_is_found_out_and_the_majority_keeps_its_state(arena, regression) -> None:
    spec = arena.spec(job={"steps": 12}, train={"digest_every": 3}, optimizer=SGD)
    undisturbed = whole_job(arena, regression(), spec, 3)
    ranks = same_state(arena, regression(), spec, 3)
    arena.generation(ranks, wrap=flipping(ranks, 1, step=3))
    for rank in ranks:
        assert isinstance(rank.error, DivergenceError)
        assert (rank.error.dissenters, rank.error.majority) == ((1,), True)
        assert rank.run.prepared_key is None
        assert key(rank) == (1, 6)
    arena.copy_state(ranks[2], ranks[1])
    arena.generation(ranks, generation=2)
    assert {rank.outcome.kind for rank in ranks} == {"finished"}
    assert len({rank.outcome.digest for rank in ranks}) == 1
    assert ranks[0].outcome.digest != undisturbed  # steps 5 and 6 summed the odd one's gradients


def test_without_a_majority_all_go_back_to_the_last_checkpoint(arena, regression) -> None:
    spec = arena.spec(
        job={"steps": 12},
        train={"digest_every": 3},
        optimizer=SGD,
        checkpoint={"every_steps": 4, "directory": str(arena.directory / "shared"), "copies": 2},
    )
    undisturbed = whole_job(arena, regression(), spec, 2)
    ranks = same_state(arena, regression(), spec, 2)
    arena.generation(ranks, wrap=flipping(ranks, 1, step=7))
    for rank in ranks:
        assert isinstance(rank.error, DivergenceError)
        assert not rank.error.majority
        assert len(rank.error.dissenters) == 1
        rank.run.forget()
        held = rank.run.held()
        assert (held.where, held.generation, held.step) == ("checkpoint", 1, 4)
        rank.run.adopt_local(1, 4)
        assert key(rank) == (1, 4)
    arena.generation(ranks, generation=2)
    assert {rank.outcome.digest for rank in ranks} == {undisturbed}


def test_a_flip_is_found_before_a_stop_too(arena, regression) -> None:
    spec = arena.spec(train={"digest_every": 0})
    ranks = same_state(arena, regression(), spec, 3)
    for rank in ranks:
        rank.recorder.ask = lambda step: Flags(stop=step == 4)
    arena.generation(ranks, wrap=flipping(ranks, 2, step=4))
    for rank in ranks:
        assert isinstance(rank.error, DivergenceError)
        assert (rank.error.dissenters, rank.error.majority) == ((2,), True)
        assert rank.recorder.checkpoints == []


@pytest.mark.parametrize(("limit", "fails"), [(3, True), (0, False)])
def test_too_many_skips_in_a_row_fail_the_job(arena, regression, limit, fails) -> None:
    spec = arena.spec(job={"steps": 9}, train={"max_skipped_steps": limit})
    ranks = same_state(arena, poisonous(Stateful.of(regression), rows=range(48)), spec, 2)
    arena.generation(ranks)
    for rank in ranks:
        if fails:
            assert isinstance(rank.error, TaskError)
            assert "3 steps in a row were not finite" in str(rank.error)
            assert "train.max_skipped_steps" in rank.error.remedy
            assert rank.run.committed_step == 3
        else:
            assert rank.outcome.skipped == 9
    told = [[name for name, _ in rank.recorder.warnings] for rank in ranks]
    assert told == [[] if fails else ["nothing_trained"], []]


def test_one_skip_too_many_is_found_at_a_take_over(arena, regression) -> None:
    spec = arena.spec(job={"steps": 9}, train={"max_skipped_steps": 3})
    (rank,) = same_state(arena, poisonous(Stateful.of(regression), rows=range(48)), spec, 1)
    arena.generation([rank], wrap=lambda _, inner: Cut(inner, method="gather", step=2))
    with pytest.raises(TaskError, match="3 steps in a row were not finite"):
        rank.run.adopt_local(1, 3)
    assert rank.run.committed_step == 3


def saved(arena, name: str) -> list[str]:
    return [path.name for path in list_checkpoints(arena.directory / name / "checkpoints", "job")]


def test_a_checkpoint_that_fell_due_as_the_ring_broke_is_written_afterwards(
    arena, regression
) -> None:
    spec = arena.spec(job={"steps": 9}, checkpoint={"every_steps": 4})
    ranks = same_state(arena, regression(), spec, 2)
    both_there = threading.Barrier(2)
    arena.generation(
        ranks, wrap=lambda _, inner: Cut(inner, method="gather", step=3, meet=both_there.wait)
    )
    for rank in ranks:
        rank.run.adopt_local(1, 4)  # prepared by both: committed outside the loop
    arena.generation(ranks[1:], generation=2)  # and rank 0, who would have written, is gone
    ranks[1].run.close()
    assert saved(arena, "w1") == ["g000002-s000000009", "g000002-s000000008", "g000001-s000000004"]
    told = {tuple(key) for key, _ in ranks[1].recorder.agreements}
    assert told == {(1, 4), (2, 8), (2, 9)}


# --- what is held is saved when the job is to end ------------------------------------------------


def broken_after(arena, regression, steps: int, **checkpoint):
    """A rank whose ring broke in the step after so many."""
    spec = arena.spec(job={"steps": 20}, checkpoint={"every_steps": 100, **checkpoint})
    rank = arena.start(Stateful.of(regression), spec)
    rank.run.adopt_local(0, 0)
    arena.generation([rank], wrap=lambda _, ring: Cut(ring, method="gather", step=steps))
    assert isinstance(rank.error, RingBroken)
    return rank


def test_what_is_held_is_saved_between_generations(arena, regression) -> None:
    rank = broken_after(arena, regression, 5)
    assert key(rank) == (1, 5)
    rank.run.save(1, 5)
    rank.run.save(1, 5)  # the answer was lost: the checkpoint that is there is told again
    assert [(one.generation, one.step) for one in rank.recorder.checkpoints] == [(1, 5)] * 2
    (saved,) = list_checkpoints(arena.directory / "w/checkpoints", "job")
    assert saved.name == "g000001-s000000005"
    assert rank.recorder.checkpoints[0].digest == rank.digest


def test_a_prepared_step_is_committed_when_it_is_to_be_saved(arena, regression) -> None:
    rank = broken_after(arena, regression, 5)
    assert rank.run.prepared_key == (1, 6)
    rank.run.save(1, 6)
    assert (rank.recorder.checkpoints[-1].step, rank.recorder.checkpoints[-1].digest) == (
        6,
        rank.digest,
    )


def test_a_disk_that_does_not_take_it_is_told_each_time(arena, regression, tmp_path) -> None:
    place = tmp_path / "no directory"
    place.write_text("")
    rank = broken_after(arena, regression, 5, directory=str(place))
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"g000001-s000000005 was not saved: .*directory"):
            rank.run.save(1, 5)
    place.unlink()
    rank.run.save(1, 5)
    assert rank.recorder.checkpoints[-1].step == 5


def test_half_an_update_is_never_saved(arena, regression) -> None:
    """The optimizer has raised: nobody can say what the parameters are."""
    spec = arena.spec(job={"steps": 20}, optimizer=SGD, checkpoint={"every_steps": 2})
    rank = arena.start(Stateful.of(regression), spec)
    rank.run.adopt_local(0, 0)
    step = rank.replica.optimizer.step
    updates = iter(range(5))

    def fail_at_last() -> None:
        if next(updates) == 4:
            raise ValueError("no memory for the update")
        step()

    rank.replica.optimizer.step = fail_at_last
    arena.generation([rank])
    assert isinstance(rank.error, ValueError)
    held = rank.run.held()
    assert (held.where, held.step) == ("checkpoint", 4)
    assert rank.run.prepared_key is None
    with pytest.raises(CheckpointError, match="not in this worker's memory"):
        rank.run.save(1, 4)
