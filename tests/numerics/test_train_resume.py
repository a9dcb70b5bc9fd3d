"""A job that stops, breaks or moves goes on as if nothing had happened."""

from __future__ import annotations

from multiprocessing import active_children
from pathlib import Path

import pytest
import torch
from torch import nn

from dtd.checkpoint.format import JobFolder, list_checkpoints, newest_complete
from dtd.engine.control_word import Flags
from dtd.errors import CheckpointError, DivergenceError, RingBroken
from dtd.train.record import InitFrom

pytestmark = pytest.mark.numerics

SGD = {"name": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True}
ADAMW = {"name": "adamw", "lr": 0.01, "weight_decay": 0.1}


def dropout_task(regression, length: int = 48):
    class Task(regression):
        def build_model(self):
            return nn.Sequential(
                nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3)
            ).double()

    return Task(length)


def last_digest(ranks) -> str:
    digests = {rank.outcome.digest for rank in ranks}
    assert len(digests) == 1
    return digests.pop()


@pytest.mark.parametrize("lost", [False, True], ids=["stopped", "last-checkpoint-lost"])
@pytest.mark.parametrize("optimizer", [SGD, ADAMW], ids=["sgd", "adamw"])
def test_resumed_from_disk_is_the_run_that_never_stopped(
    arena, regression, optimizer, lost
) -> None:
    task = dropout_task(regression)
    spec = arena.spec(
        job={"steps": 14},
        optimizer=optimizer,
        schedule={"name": "cosine", "warmup_steps": 3},
        train={"clip_norm": 0.5, "grad_accumulation": 2},
        checkpoint={"every_steps": 4},
    )
    whole = last_digest(arena.train(task, spec, 1, job_id="whole"))

    first = arena.start(task, spec, job_id="halves", ask=lambda step: Flags(stop=step == 9))
    arena.generation([first])
    assert first.outcome.kind == "stopped"
    assert first.outcome.step == 10
    first.run.close()
    saved = list_checkpoints(arena.directory / "w/checkpoints", "halves")
    assert [path.name[-2:] for path in saved] == ["10", "08", "04"]
    if lost:
        (saved[0] / "manifest.json").unlink()

    second = arena.start(task, spec, job_id="halves")
    held = second.run.held()
    from_step = 8 if lost else 10
    assert (held.where, held.generation, held.step) == ("checkpoint", 1, from_step)
    second.run.adopt_local(held.generation, held.step)
    assert str(arena.directory) not in Path("/proc/self/maps").read_text()
    arena.generation([second], generation=2)
    assert second.outcome.kind == "finished"
    assert second.outcome.digest == whole
    assert [record.step for record in second.recorder.steps] == list(range(from_step + 1, 15))


def test_the_state_travels_bit_for_bit_to_a_joiner(arena, regression) -> None:
    spec = arena.spec(job={"steps": 12}, optimizer=ADAMW)
    asks = [lambda step: Flags(yield_=step == 4), lambda step: Flags(), lambda step: Flags()]
    ranks = [arena.start(regression(), spec, name=f"w{i}", ask=asks[i]) for i in range(3)]
    arena.copy_state(ranks[0], ranks[1])
    arena.generation(ranks[:2])
    assert [rank.outcome.kind for rank in ranks[:2]] == ["yielded", "yielded"]

    arena.copy_state(ranks[0], ranks[2])
    assert ranks[2].digest == ranks[0].digest
    arena.generation(ranks, generation=2)
    assert [rank.outcome.kind for rank in ranks] == ["finished"] * 3
    last_digest(ranks)
    assert {(rank.outcome.rows_missing, rank.outcome.rows_repeated) for rank in ranks} == {(0, 0)}


class Breaking:
    """A collective whose ring breaks at one call of one step."""

    def __init__(self, inner, method: str, step: int, call: int = 1, before=lambda: None) -> None:
        self._inner, self._method, self._step, self._calls = inner, method, step, call
        self._before = before

    def __getattr__(self, name):
        value = getattr(self._inner, name)
        if name != self._method:
            return value

        def call(*arguments):
            if self._inner.nodes[0].machine.step == self._step:
                self._calls -= 1
                if self._calls == 0:
                    self._before()
                    raise RingBroken("cut by the test")
            return value(*arguments)

        return call


@pytest.mark.parametrize(
    ("method", "call"), [("start", 1), ("start", 2), ("wait", 1), ("wait", 3), ("gather", 1)]
)
def test_a_broken_step_is_redone_exactly(arena, regression, method, call) -> None:
    task, spec = dropout_task(regression), arena.spec(job={"steps": 8}, optimizer=SGD)
    whole = last_digest(arena.train(task, spec, 1, job_id="whole"))

    rank = arena.start(task, spec, job_id="broken")
    arena.generation([rank], wrap=lambda _, inner: Breaking(inner, method, step=5, call=call))
    assert isinstance(rank.error, RingBroken)
    assert rank.run.committed_step == 5
    assert rank.run.prepared_step == (6 if method == "gather" else 5)
    assert rank.run.held().where == "memory"
    rank.run.adopt_local(1, 5)
    arena.generation([rank], generation=2)
    assert rank.outcome.digest == whole
    assert [record.step for record in rank.recorder.steps] == list(range(1, 9))


def test_a_flip_between_checkpoints_is_not_published(arena, regression) -> None:
    class Flipping(Breaking):
        def __getattr__(self, name):
            if name == "close_step" and self._inner.nodes[0].machine.step == self._step:
                with torch.no_grad():
                    ranks[1].model[0].weight[0, 0] += 1e-9
            return getattr(self._inner, name)

    spec = arena.spec(checkpoint={"every_steps": 2})
    ranks = [arena.start(regression(), spec, name=f"w{i}") for i in range(3)]
    for rank in ranks[1:]:
        arena.copy_state(ranks[0], rank)
    arena.generation(ranks, wrap=lambda i, c: Flipping(c, "close_step", 2) if i == 1 else c)
    assert any(isinstance(rank.error, DivergenceError) for rank in ranks)
    assert any("[1]" in str(rank.error) for rank in ranks)
    assert {rank.run.committed_step for rank in ranks} == {4}
    ranks[0].run.close()
    names = [path.name for path in list_checkpoints(arena.directory / "w0/checkpoints", "job")]
    assert names == ["g000001-s000000002"]


def test_a_leaver_leaves_a_checkpoint(arena, regression) -> None:
    spec = arena.spec(job={"steps": 20}, checkpoint={"every_steps": 100})
    asks = [lambda step: Flags(), lambda step: Flags(leave=step == 6)]
    ranks = [arena.start(regression(), spec, name=f"w{i}", ask=asks[i]) for i in range(2)]
    arena.copy_state(*ranks)
    arena.generation(ranks)
    assert [rank.outcome.kind for rank in ranks] == ["yielded", "left"]
    assert [record.step for record in ranks[0].recorder.checkpoints] == [7]
    assert ranks[0].recorder.checkpoints[0].digest == ranks[1].outcome.digest
    arena.generation(ranks[:1], generation=2)
    assert ranks[0].outcome.kind == "finished"
    assert ranks[0].outcome.step == 20


def test_checkpoints_on_request_at_epochs_and_at_the_end(arena, regression) -> None:
    class Task(regression):
        def eval_dataset(self):
            return self.rows

    spec = arena.spec(
        job={"epochs": 3, "global_batch_size": 16},
        checkpoint={"keep": 2, "best_metric": "loss"},
    )
    ranks = arena.train(Task(), spec, 2, ask=lambda step: Flags(checkpoint=step == 1))
    saved = ranks[0].recorder.checkpoints
    assert [record.step for record in saved] == [2, 4, 8, 12]
    assert ranks[1].recorder.checkpoints == []
    assert saved[-1].kept == ("g000001-s000000012", "g000001-s000000008")
    assert saved[-1].digest == ranks[0].outcome.digest
    assert saved[-1].metrics == ranks[0].recorder.evals[-1].metrics
    found = newest_complete(JobFolder(arena.directory / "w0/checkpoints", "job"))
    assert found.manifest.parent == "g000001-s000000008"
    assert found.manifest.metrics == ranks[0].recorder.evals[-1].metrics


def test_another_jobs_state_or_weights(arena, regression) -> None:
    (parent,) = arena.train(regression(), arena.spec(optimizer=SGD), 1, job_id="parent")
    longer = arena.spec(job={"steps": 12}, optimizer=SGD)

    resumed = arena.start(
        regression(),
        longer,
        name="w0",
        job_id="child",
        init_from=InitFrom(job_id="parent", step=None, mode="resume"),
    )
    held = resumed.run.held()
    assert (held.job_id, held.step, held.digest) == ("parent", 9, parent.outcome.digest)
    resumed.run.adopt_local(held.generation, held.step)
    arena.generation([resumed], generation=2)
    assert last_digest([resumed]) == last_digest(
        arena.train(regression(), longer, 1, job_id="whole")
    )

    tuned = arena.start(
        regression(),
        longer,
        name="w0",
        job_id="tuned",
        init_from=InitFrom(job_id="parent", step=9, mode="weights"),
    )
    held = tuned.run.held()
    assert (held.where, held.step) == ("checkpoint", 0)
    tuned.run.adopt_local(held.generation, held.step)
    assert tuned.run.committed_step == 0
    assert all(map(torch.equal, tuned.parameters(), parent.parameters()))
    assert not tuned.replica.optimizer.state


def test_a_checkpoint_of_other_data_is_refused(arena, regression) -> None:
    arena.train(regression(), arena.spec(), 1, job_id="parent")
    other = arena.start(
        regression(length=51),
        arena.spec(job={"steps": 20}),
        name="w0",
        job_id="child",
        init_from=InitFrom(job_id="parent", step=None, mode="resume"),
    )
    held = other.run.held()
    with pytest.raises(CheckpointError, match="over 50 rows; in this job"):
        other.run.adopt_local(held.generation, held.step)


def test_a_state_past_the_jobs_end_is_refused_in_words(arena, regression) -> None:
    arena.train(regression(), arena.spec(job={"steps": 12}), 1, job_id="longer")
    origin = InitFrom(job_id="longer", step=None, mode="resume")
    late = arena.start(regression(), arena.spec(job={"steps": 4}), name="w0", init_from=origin)
    held = late.run.held()
    assert held.step == 12
    with pytest.raises(CheckpointError, match="has 12 steps, and this job ends after 4") as caught:
        late.run.adopt_local(held.generation, held.step)
    assert "job.steps" in caught.value.remedy


def test_loader_processes_are_up_before_a_worker_is_ready(arena) -> None:
    """A joining rank would otherwise have a running ring wait for imports of the task."""
    spec = arena.spec(job={"task": "digits", "global_batch_size": 64}, train={"loader_workers": 1})
    rank = arena.start(None, spec)
    processes = {child.pid for child in active_children()}
    assert len(processes) == 1
    rank.run.expect(0, rank=0, world_size=1)
    asked = rank.run._session.data.loader._under_way
    first = asked[0]
    rank.run.adopt_local(0, 0)
    arena.generation([rank])
    assert rank.outcome.kind == "finished"
    assert {child.pid for child in active_children()} == processes
    assert first.rows == rank.run._session.plan.share(0, rank=0, world_size=1).requests[0].rows


def test_a_checkpoint_that_is_damaged_between_offer_and_load_is_offered_no_more(
    arena, regression
) -> None:
    spec = arena.spec(job={"steps": 9}, checkpoint={"every_steps": 4})
    first = arena.start(regression(), spec, ask=lambda step: Flags(stop=step == 7))
    arena.generation([first])
    first.run.close()
    second = arena.start(regression(), spec)
    held = second.run.held()
    assert (held.generation, held.step) == (1, 8)
    newest = list_checkpoints(arena.directory / "w/checkpoints", "job")[0] / "model.safetensors"
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    with pytest.raises(CheckpointError):
        second.run.adopt_local(1, 8)
    held = second.run.held()
    assert (held.generation, held.step) == (1, 4)
    second.run.adopt_local(1, 4)
    arena.generation([second], generation=2)
    assert second.outcome.step == 9
