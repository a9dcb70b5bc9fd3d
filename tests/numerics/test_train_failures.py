"""Errors of a task, a disk or a device come out as one sentence, or as they were raised."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dtd.checkpoint.format import list_checkpoints
from dtd.errors import RingBroken, TaskError

pytestmark = pytest.mark.numerics


def test_a_frozen_model(arena, regression) -> None:
    class Frozen(regression):
        def build_model(self):
            return nn.Linear(6, 3).double().requires_grad_(requires_grad=False)

    with pytest.raises(TaskError, match="no parameter to train"):
        arena.start(Frozen(), arena.spec())


def test_build_model_that_builds_none(arena, regression) -> None:
    class Wrong(regression):
        def build_model(self):
            return "model"

    with pytest.raises(TaskError, match=r"build_model\(\) of the task returned a str"):
        arena.start(Wrong(), arena.spec())


def test_one_ranks_exception_breaks_the_others_ring(arena, regression) -> None:
    class Failing(regression):
        def loss(self, model, batch):
            if (batch[0] == self.rows.x[3]).all(1).any():
                raise ZeroDivisionError("row 3")
            return super().loss(model, batch)

    ranks = [arena.start(Failing(), arena.spec(), name=f"w{i}") for i in range(3)]
    for rank in ranks[1:]:
        arena.copy_state(ranks[0], rank)
    arena.generation(ranks)
    assert sorted(type(rank.error).__name__ for rank in ranks) == [
        "RingBroken",
        "RingBroken",
        "ZeroDivisionError",
    ]
    assert len({rank.digest for rank in ranks}) == 1


def test_a_full_disk_stops_nothing(arena, regression) -> None:
    spec = arena.spec(checkpoint={"every_steps": 3})
    rank = arena.start(regression(), spec)
    blocked = arena.directory / "w" / "checkpoints"
    blocked.parent.mkdir(parents=True, exist_ok=True)
    blocked.write_text("a file where the directory should be")
    arena.generation([rank])
    assert rank.outcome.kind == "finished"
    assert {event for event, _ in rank.recorder.warnings} == {"checkpoint_failed"}
    assert "NotADirectoryError" in rank.recorder.warnings[0][1]
    assert rank.recorder.checkpoints == []


def test_a_damaged_checkpoint_is_passed_over_once(arena, regression) -> None:
    spec = arena.spec(checkpoint={"every_steps": 4})
    arena.train(regression(), spec, 1)
    newest = list_checkpoints(arena.directory / "w0" / "checkpoints", "job")[0]
    (newest / "model.safetensors").write_bytes(b"torn")
    again = arena.start(regression(), spec, name="w0")
    assert again.run.held().step == 8
    assert again.run.held().step == 8
    ((event, message),) = again.recorder.warnings
    assert event == "checkpoint_passed_over"
    assert str(newest) in message


def test_bfloat16_trains_alike_on_all_ranks(arena, regression) -> None:
    class Single(regression):
        def build_model(self):
            return super().build_model().float()

        def loss(self, model, batch):
            return super().loss(model, [tensor.float() for tensor in batch])

    spec = arena.spec(train={"precision": "bfloat16"})
    ranks = arena.train(Single(), spec, 2)
    assert len({rank.outcome.digest for rank in ranks}) == 1
    assert ranks[0].parameters()[0].dtype == torch.float32
    full = arena.train(Single(), arena.spec(), 2)
    assert full[0].outcome.digest != ranks[0].outcome.digest
    losses = [one[0].recorder.steps[-1].loss for one in (ranks, full)]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


def test_a_break_during_evaluation_leaves_the_model_in_training_mode(arena, regression) -> None:
    class Task(regression):
        def eval_dataset(self):
            return self.rows

        def metrics(self, model, batch):
            raise RingBroken("while evaluating")

    rank = arena.start(Task(), arena.spec(train={"eval_every": 4}))
    arena.generation([rank])
    assert isinstance(rank.error, RingBroken)
    assert rank.run.committed_step == 4
    assert rank.model.training


@pytest.mark.parametrize("shared", [True, False], ids=["one-directory", "own-directories"])
def test_several_ranks_write_each_checkpoint(arena, regression, shared) -> None:
    where = {"directory": str(arena.directory / "shared")} if shared else {}
    spec = arena.spec(job={"steps": 6}, checkpoint={"every_steps": 2, **where})
    ranks = [arena.start(regression(), spec, name=f"w{i}") for i in range(3)]
    ranks[0].run.adopt_local(0, 0)
    for rank in ranks[1:]:
        arena.copy_state(ranks[0], rank)
    arena.generation(ranks, writers=frozenset({0, 2}))
    digests = [
        [(record.step, record.digest) for record in rank.recorder.checkpoints] for rank in ranks
    ]
    assert digests[0] == digests[2]
    assert [step for step, _ in digests[0]] == [2, 4, 6]
    assert digests[1] == []
    for rank in ranks:  # those that write nothing bear out what the others have written
        told = {(key.step, digest) for key, digest in rank.recorder.agreements}
        assert told == set(digests[0])
    assert [warning for rank in ranks for warning in rank.recorder.warnings] == []
    for rank in (ranks[0], ranks[2]):
        rank.run.forget()
        assert rank.run.held().digest == ranks[1].outcome.digest
    if not shared:
        ranks[1].run.forget()
        assert ranks[1].run.held().where == "none"
