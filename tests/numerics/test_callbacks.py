"""Callbacks, the task's own state and early stopping, over rings that break."""

from __future__ import annotations

import pytest
import torch

from dtd.checkpoint.format import list_checkpoints
from dtd.engine.step_protocol import FRESH
from dtd.errors import RingBroken, TaskError
from dtd.train.record import InitFrom
from tests.numerics.cuts import Cut

pytestmark = pytest.mark.numerics


def of(regression):
    """A task that hears of everything and counts in a state of its own."""

    class Listening(regression):
        def __init__(self, length: int = 48) -> None:
            super().__init__(length)
            self.heard: list[tuple[str, object]] = []
            self.average, self.evaluations = torch.zeros(2), 0

        def eval_dataset(self):
            return self.rows

        def state_dict(self):
            return {"average": self.average, "evaluations": self.evaluations}

        def load_state_dict(self, state):
            self.average, self.evaluations = state["average"], state["evaluations"]

        def on_start(self, at):
            self.heard.append(("start", at))

        def on_step(self, at):
            self.heard.append(("step", at))
            self.average += torch.tensor([at.metrics["loss"], 1.0])

        def on_evaluation(self, at):
            self.heard.append(("evaluation", at))
            self.evaluations += 1

        def on_checkpoint(self, at):
            self.heard.append(("checkpoint", at))

        def on_end(self, at):
            self.heard.append(("end", at))

    return Listening


def heard(rank, kind: str) -> list:
    return [at for name, at in rank.run._session.task.heard if name == kind]


def ranks_of(arena, task, spec, count: int = 2):
    ranks = [arena.start(task, spec, name=f"w{i}") for i in range(count)]
    for rank in ranks:
        rank.run.adopt_local(*FRESH)
    return ranks


SPEC = {"job": {"steps": 9}, "train": {"eval_every": 4}, "checkpoint": {"every_steps": 4}}


def test_every_callback_is_told_what_happened(arena, regression) -> None:
    ranks = ranks_of(arena, of(regression), arena.spec(**SPEC))
    arena.generation(ranks)
    for index, rank in enumerate(ranks):
        assert rank.error is None
        (start,), (end,) = heard(rank, "start"), heard(rank, "end")
        assert (start.rank, start.world_size, start.step) == (index, 2, 0)
        assert (end.step, dict(end.metrics)) == (9, rank.outcome.metrics)
        steps = heard(rank, "step")
        assert [(at.step, at.epoch) for at in steps] == [(n, (n - 1) // 6) for n in range(1, 10)]
        assert [at.metrics["loss"] for at in steps] == [r.loss for r in rank.recorder.steps]
        assert steps[0].metrics.keys() == {"loss", "lr", "grad_norm"}
        assert [at.step for at in heard(rank, "evaluation")] == [4, 8, 9]
    saved = heard(ranks[0], "checkpoint")
    assert [at.step for at in saved] == [4, 8, 9]
    assert saved[0].directory == str(ranks[0].recorder.checkpoints[0].directory)
    assert heard(ranks[1], "checkpoint") == []
    assert ranks[0].digest == ranks[1].digest


@pytest.mark.parametrize("method", ["start", "gather", "wait"])
def test_a_redone_step_is_told_once_and_what_it_changed_is_taken_back(
    arena, regression, method
) -> None:
    """Broken in the step after an evaluation, on one rank prepared, on the other one not."""
    task, spec = of(regression), arena.spec(**SPEC)
    whole = arena.train(task, spec, 2, job_id="whole")
    ranks = ranks_of(arena, task, spec)
    call = 1 if method == "gather" else 0  # the evaluation is an exchange of its own
    arena.generation(
        ranks, wrap=lambda index, inner: Cut(inner, method=method, step=4, call=call + index)
    )
    assert [isinstance(rank.error, RingBroken) for rank in ranks] == [True, True]
    for rank in ranks:
        rank.run.adopt_local(1, 4)
        assert rank.run._session.task.evaluations == 0
    assert ranks[0].digest == ranks[1].digest
    joiner = arena.start(task, spec, name="joiner")
    arena.copy_state(ranks[0], joiner)
    arena.generation([*ranks, joiner], generation=2)
    for rank in (*ranks, joiner):
        assert rank.error is None
        assert rank.digest == joiner.digest
    assert [at.step for at in heard(ranks[0], "step")] == list(range(1, 10))
    assert [at.step for at in heard(joiner, "step")] == list(range(5, 10))
    own = joiner.run._session.task
    assert own.average[1] == 9
    torch.testing.assert_close(own.average, whole[0].run._session.task.average)


def test_a_worker_that_prepared_a_step_tells_it_when_it_is_committed(arena, regression) -> None:
    """One rank has the control word, the other one only the sums."""
    task, spec = of(regression), arena.spec(**SPEC)
    ranks = ranks_of(arena, task, spec)

    def wrap(index, inner):
        return Cut(inner, method="gather", step=2) if index else inner

    arena.generation(ranks, wrap=wrap)
    assert ranks[1].run.prepared_key == (1, 3)
    ranks[1].run.adopt_local(1, 3)
    assert [at.step for at in heard(ranks[1], "step")] == [1, 2, 3]
    assert [at.metrics for at in heard(ranks[1], "step")][:2] == [
        at.metrics for at in heard(ranks[0], "step")
    ][:2]
    assert ranks[1].run._session.task.average[1] == 3


def test_own_state_comes_back_from_a_checkpoint_and_starts_afresh_without(
    arena, regression
) -> None:
    task, spec = of(regression), arena.spec(**SPEC)
    (first,) = arena.train(task, spec, 1)
    path = list_checkpoints(arena.directory / "w0" / "checkpoints", "job")[0]
    assert path.name == "g000001-s000000009"
    again = arena.start(task, spec, name="w0")
    again.run.adopt_local(1, 9)
    own = again.run._session.task
    torch.testing.assert_close(own.average, first.run._session.task.average)
    assert own.evaluations == 2  # the last one came after the last step's state
    again.run._session.reset()
    assert (own.average.tolist(), own.evaluations) == ([0, 0], 0)


def changing(regression, method, change):
    def called(self, at):
        change(self, self.model)

    class Changing(of(regression)):
        def build_model(self):
            self.model = super().build_model()
            return self.model

    setattr(Changing, method, called)
    return Changing


def add(self, model):
    with torch.no_grad():
        model[0].weight += 1


def own(self, model):
    self.evaluations += 1


@pytest.mark.parametrize(
    ("method", "change", "message"),
    [
        ("on_step", add, r"on_step\(\) of the task changed 0\.weight"),
        ("on_evaluation", add, r"on_evaluation\(\) of the task changed 0\.weight"),
        ("on_start", own, r"own state changed in on_start\(\)"),
        ("on_end", own, r"own state changed in on_end\(\)"),
        ("on_checkpoint", own, r"own state changed in on_checkpoint\(\)"),
    ],
)
def test_a_callback_cannot_change_the_state_silently(
    arena, regression, method, change, message
) -> None:
    rank = arena.start(changing(regression, method, change), arena.spec(**SPEC))
    arena.generation([rank])
    with pytest.raises(TaskError, match=message):
        raise rank.error


def test_a_callback_cannot_change_the_optimizer(arena, regression) -> None:
    class Faster(of(regression)):
        def build_optimizer(self, params):
            self.optimizer = torch.optim.SGD(params, lr=0.1)
            return self.optimizer

        def on_step(self, at):
            self.optimizer.param_groups[0]["lr"] = 0.5

    rank = arena.start(Faster, arena.spec())
    arena.generation([rank])
    with pytest.raises(TaskError, match="changed the optimizer's lr of group 0"):
        raise rank.error


def test_a_callback_may_put_the_model_into_evaluation_mode(arena, regression) -> None:
    rank = arena.start(
        changing(regression, "on_step", lambda self, model: model.eval()), arena.spec()
    )
    arena.generation([rank])
    assert rank.error is None
    assert all(module.training for module in rank.model.modules())


def test_own_state_that_loss_changes_is_refused(arena, regression) -> None:
    class Counting(of(regression)):
        def loss(self, model, batch):
            self.evaluations += 1
            return super().loss(model, batch)

    rank = arena.start(Counting, arena.spec())
    arena.generation([rank])
    with pytest.raises(TaskError, match=r"own state changed in loss\(\).*on_step"):
        raise rank.error


class Scripted:
    """Evaluates to what a list says."""

    values = (5.0, 3.0, float("nan"), 3.0, 4.0, 1.0, 1.0)

    def eval_dataset(self):
        return self.rows

    def metrics(self, model, batch):
        self.evaluated = getattr(self, "evaluated", -1) + 1
        return {"error": (self.values[self.evaluated] * len(batch[0]), len(batch[0]))}


STOP = {
    "job": {"epochs": 20},
    "train": {
        "eval_every": 2,
        "eval_batch_size": 64,
        "early_stop_metric": "error",
        "early_stop_patience": 3,
    },
}


def test_early_stopping_ends_the_job_on_every_worker(arena, regression) -> None:
    class Task(Scripted, regression):
        pass

    ranks = ranks_of(arena, Task, arena.spec(**STOP))
    arena.generation(ranks)
    for rank in ranks:
        assert rank.error is None
        assert (rank.outcome.kind, rank.outcome.step) == ("finished", 11)
        assert (
            rank.outcome.ended_early == "error was 3 at best and has not improved for 3 evaluations"
        )
        assert [record.step for record in rank.recorder.evals] == [2, 4, 6, 8, 10, 11]
    assert ranks[0].digest == ranks[1].digest
    assert ranks[0].recorder.checkpoints[-1].step == 11


def test_a_job_that_ended_early_stays_so_and_another_goes_on_from_it(arena, regression) -> None:
    class Task(Scripted, regression):
        values = (1.0,) * 20

    spec = arena.spec(**STOP)
    arena.train(Task, spec, 1)
    again = arena.start(Task, spec, name="w0")
    again.run.adopt_local(1, 9)
    arena.generation([again], generation=2)
    assert (again.outcome.kind, again.outcome.step) == ("finished", 9)
    assert again.outcome.ended_early == "it had ended before"
    parent = InitFrom(job_id="job", step=None, mode="resume")
    other = arena.start(Task, spec, name="w0", job_id="other", init_from=parent)
    other.run.adopt_local(1, 9)
    arena.generation([other], generation=3)
    assert other.outcome.step > 9


def test_a_callback_ends_the_job_on_every_worker(arena, regression) -> None:
    class Task(regression):
        def on_step(self, at):
            if at.step == 3 and at.rank == 1:
                return "enough"
            return None

    ranks = ranks_of(arena, Task, arena.spec())
    arena.generation(ranks)
    assert [rank.outcome.step for rank in ranks] == [4, 4]
    assert ranks[1].outcome.ended_early == "enough"
    assert "another worker" in ranks[0].outcome.ended_early


def test_a_metric_that_is_not_evaluated_is_named(arena, regression) -> None:
    class Task(Scripted, regression):
        pass

    wrong = {**STOP, "train": {**STOP["train"], "early_stop_metric": "eror"}}
    with pytest.raises(TaskError, match=r"no eval_dataset\(\)"):
        arena.start(regression, arena.spec(**wrong))
    rank = arena.start(Task, arena.spec(**wrong))
    arena.generation([rank])
    with pytest.raises(TaskError, match="'eror', and the evaluation has error, loss"):
        raise rank.error


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ([1], "is not a dictionary"),
        ({1: 2}, "is not a dictionary"),
        ({"a": object()}, "neither a tensor nor a JSON value"),
        ({"a": float("nan")}, "neither a tensor nor a JSON value"),
        ({"a": "x" * 300_000}, "values of more than 256 KiB"),
        ({"a": torch.zeros(1).expand(1 << 25)}, "tensors of more than 64 MiB"),
    ],
)
def test_own_state_is_bounded_and_plain(arena, regression, state, message) -> None:
    class Task(regression):
        def state_dict(self):
            return state

        def load_state_dict(self, state):
            """Never called."""

    with pytest.raises(TaskError, match=message):
        arena.start(Task, arena.spec())


def test_state_dict_without_its_counterpart_is_refused(arena, regression) -> None:
    class Task(regression):
        def state_dict(self):
            return {}

    with pytest.raises(TaskError, match="one of state_dict"):
        arena.start(Task, arena.spec())
