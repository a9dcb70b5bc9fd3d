"""Several updates in one step: as plain torch makes them, and redone exactly after any break."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from dtd.engine.sampler import Position, advance
from dtd.errors import RingBroken, TaskError
from dtd.train.data.sampling import batch_rows
from tests.numerics.cuts import Cut, ranks_of

pytestmark = pytest.mark.numerics


class Pair(nn.Module):
    """A generator and a critic with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 6))
        self.critic = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1))


def of(regression):
    class Gan(regression):
        """Learns the rows; a row's targets serve as its noise."""

        def build_model(self):
            return Pair().double()

        def build_optimizers(self, named_parameters):
            def of_part(part):
                return [p for name, p in named_parameters if name.startswith(part)]

            return {
                "critic": torch.optim.Adam(of_part("critic"), lr=0.02),
                "generator": torch.optim.SGD(of_part("generator"), lr=0.05, momentum=0.9),
            }

        def loss(self, model, batch, update):
            real, noise = batch
            fake = model.generator(noise)
            if update == "critic":
                judged = (
                    model.critic(real).sigmoid().log() + (1 - model.critic(fake).sigmoid()).log()
                )
                return -judged.mean()
            return -model.critic(fake).sigmoid().log().mean()

    return Gan


def plainly(task, spec, steps_of=lambda step: ("critic", "generator")):
    """The loop that everybody writes."""
    torch.manual_seed(spec.job.seed)
    model = task.build_model()
    optimizers = task.build_optimizers(list(model.named_parameters()))
    data, position = task.train_dataset(), Position(0, 0)
    for step in range(spec.job.steps):
        rows = batch_rows(
            seed=spec.job.seed,
            position=position,
            global_batch_size=spec.job.global_batch_size,
            length=len(data),
        )
        batch = data.fetch(rows, epoch=position.epoch, seed=spec.job.seed)
        for name in steps_of(step):
            model.zero_grad()
            task.loss(model, batch, name).backward()
            optimizers[name].step()
        position = advance(position, len(rows), len(data))
    return model


def close(rank, model) -> None:
    torch.testing.assert_close(
        dict(rank.model.state_dict()), dict(model.state_dict()), rtol=1e-7, atol=1e-10
    )


@pytest.mark.parametrize("grad_accumulation", [1, 3])
def test_alternating_updates_are_those_of_plain_torch(arena, regression, grad_accumulation) -> None:
    """BatchNorm normalises by the rows at hand, so only a single pass is that of plain torch."""
    task = of(regression)
    if grad_accumulation > 1:

        class Plainer(task):
            def build_model(self):
                model = super().build_model()
                model.generator[1] = nn.Tanh()
                return model

        task = Plainer
    spec = arena.spec(train={"grad_accumulation": grad_accumulation})
    (rank,) = arena.train(task, spec, 1)
    close(rank, plainly(task(), spec))


@pytest.mark.parametrize("world_size", [2, 3])
def test_every_world_makes_the_same_updates(arena, regression, world_size) -> None:
    class Plainer(of(regression)):
        def build_model(self):
            model = super().build_model()
            model.generator[1] = nn.Tanh()
            return model

    spec = arena.spec()
    ranks = arena.train(Plainer, spec, world_size)
    close(ranks[0], plainly(Plainer(), spec))
    assert len({rank.digest for rank in ranks}) == 1
    record = ranks[0].recorder.steps[-1]
    assert record.loss == ranks[1].recorder.steps[-1].loss
    assert math.isfinite(record.grad_norm)


def test_the_task_says_which_updates_a_step_makes(arena, regression) -> None:
    def steps_of(step):
        return ("critic",) if step % 3 else ("generator", "critic")

    class Critical(of(regression)):
        def updates(self, step):
            return steps_of(step)

        def build_model(self):
            model = super().build_model()
            model.generator[1] = nn.Tanh()
            return model

    heard = []

    class Told(Critical):
        def on_step(self, at):
            heard.append(sorted(at.metrics))

    spec = arena.spec()
    (alone,) = arena.train(Told, spec, 1)
    ranks = arena.train(Critical, spec, 2, job_id="two")
    for rank in (alone, *ranks):
        close(rank, plainly(Critical(), spec, steps_of))
    assert heard[0] == ["critic_loss", "generator_loss", "grad_norm", "loss", "lr"]
    assert heard[1] == ["critic_loss", "grad_norm", "loss", "lr"]


@pytest.mark.parametrize(
    ("method", "call"),
    [("start", 0), ("start", 3), ("start", 6), ("wait", 1), ("wait", 4), ("gather", 0)],
)
def test_a_step_that_breaks_between_its_updates_is_redone_exactly(
    arena, regression, method, call
) -> None:
    task, spec = of(regression), arena.spec(job={"steps": 7})
    whole = arena.train(task, spec, 2, job_id="whole")
    ranks = ranks_of(arena, task, spec, 2)
    arena.generation(ranks, wrap=lambda _, inner: Cut(inner, 4, method=method, call=call))
    assert all(isinstance(rank.error, RingBroken) for rank in ranks)
    for rank in ranks:
        assert rank.run.held().step == 4
        rank.run.adopt_local(1, 4)
        assert all(parameter.requires_grad for parameter in rank.model.parameters())
    assert ranks[0].digest == ranks[1].digest
    joiner = arena.start(task, spec, name="joiner")
    arena.copy_state(ranks[0], joiner)
    assert joiner.digest == ranks[0].digest
    arena.generation(ranks, generation=2)
    assert [rank.error for rank in ranks] == [None, None]
    assert ranks[0].outcome.digest == ranks[1].outcome.digest == whole[0].outcome.digest


def test_a_worker_that_prepared_all_updates_commits_them(arena, regression) -> None:
    """One rank has all sums; the other one may have lost the ring before, and copies the state."""
    task, spec = of(regression), arena.spec(job={"steps": 7})
    whole = arena.train(task, spec, 2, job_id="whole")
    ranks = ranks_of(arena, task, spec, 2)

    def wrap(index, inner):
        return Cut(inner, 4, method="gather") if index else inner

    arena.generation(ranks, wrap=wrap)
    assert ranks[1].run.prepared_key == (1, 5)
    ranks[1].run.adopt_local(1, 5)
    if ranks[0].run.prepared_key == (1, 5):
        ranks[0].run.adopt_local(1, 5)
    else:
        arena.copy_state(ranks[1], ranks[0])
    assert ranks[0].digest == ranks[1].digest
    arena.generation(ranks, generation=2)
    assert ranks[0].outcome.digest == whole[0].outcome.digest


@pytest.mark.parametrize("where", ["critic", "generator"])
def test_gradients_of_one_update_that_are_not_finite_skip_the_step(
    arena, regression, where
) -> None:
    (bad, *_) = batch_rows(seed=3, position=Position(0, 24), global_batch_size=8, length=50)

    class Failing(of(regression)):
        def loss(self, model, batch, update):
            loss = super().loss(model, batch, update)
            if update == where and (batch[0] == self.rows.x[bad]).all(1).any():
                return loss * float("nan")
            return loss

    spec = arena.spec(job={"steps": 7})
    ranks = ranks_of(arena, Failing, spec, 2)
    arena.generation(ranks)
    assert [rank.error for rank in ranks] == [None, None]
    (skipped,) = [r.step for r in ranks[0].recorder.steps if r.skipped]
    assert ranks[0].digest == ranks[1].digest
    assert (ranks[0].outcome.skipped, skipped) == (1, 4)
    before, after = (
        arena.train(Failing, arena.spec(job={"steps": steps}), 1, job_id=f"upto{steps}")[0]
        for steps in (3, 4)
    )
    for mine, theirs in zip(
        before.model.state_dict().values(), after.model.state_dict().values(), strict=True
    ):
        assert torch.equal(mine, theirs)


def test_the_state_of_all_optimizers_goes_through_a_checkpoint(arena, regression) -> None:
    task = of(regression)
    whole = arena.train(task, arena.spec(job={"steps": 8}), 1, job_id="whole")
    first = arena.spec(job={"steps": 8}, checkpoint={"every_steps": 4})
    (rank,) = ranks_of(arena, task, first, 1)
    arena.generation([rank], wrap=lambda _, inner: Cut(inner, 6, method="start"))
    rank.run.close()
    again = arena.start(task, first, name="w0")
    again.run.adopt_local(1, 4)
    arena.generation([again], generation=2)
    assert again.error is None
    assert again.outcome.digest == whole[0].outcome.digest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"build_optimizers": lambda self, named: None}, "returned NoneType"),
        ({"build_optimizers": lambda self, named: {"a b": 1}}, "returned dict"),
        ({"build_optimizers": lambda self, named: {"a": 1}}, r"\['a'\] of the task returned a int"),
        (
            {"build_optimizers": lambda self, named: {"a": torch.optim.SGD([named[0][1]])}},
            r"no optimizer the parameter generator\.0\.bias",
        ),
        (
            {
                "build_optimizers": lambda self, named: {
                    name: torch.optim.SGD([p for _, p in named]) for name in "ab"
                }
            },
            r"gave b the parameter generator\.0\.weight, which is in a as well",
        ),
        (
            {
                "build_optimizers": lambda self, named: {
                    "a": torch.optim.SGD([nn.Parameter(torch.ones(1))])
                }
            },
            "of no name, which is not trained",
        ),
        ({"build_optimizer": lambda self, params: None}, "keep one of the two"),
        ({"updates": lambda self, step: ["critics"]}, r"updates\(0\) .* \['critics'\]"),
        ({"updates": lambda self, step: []}, r"updates\(0\) .*return some of critic, generator"),
        ({"updates": lambda self, step: ["critic", "critic"]}, "each once at most"),
        ({"eval_dataset": lambda self: self.rows}, r"and no metrics\(\)"),
    ],
)
def test_what_does_not_fit_is_refused_at_warm_up(arena, regression, change, message) -> None:
    task = type("Task", (of(regression),), change)
    with pytest.raises(TaskError, match=message):
        arena.start(task, arena.spec())


@pytest.mark.parametrize("at_once", [True, False])
def test_state_that_is_of_no_parameter_is_refused(arena, regression, at_once) -> None:
    """At warm-up, or with the update that kept it."""

    class Counting(torch.optim.SGD):
        def __init__(self, parameters):
            super().__init__(parameters, lr=0.05)
            if at_once:
                self.state["count"] = 0

        def step(self):
            self.state["count"] = 1
            super().step()

    class Task(of(regression)):
        def build_optimizers(self, named_parameters):
            built = super().build_optimizers(named_parameters)
            return {name: Counting(one.param_groups[0]["params"]) for name, one in built.items()}

    with pytest.raises(TaskError, match="keeps 'count' beside a dict of values for each parameter"):
        arena.train(Task, arena.spec(), 1)


def test_lazy_parameters_of_several_optimizers(arena, regression) -> None:
    class Lazy(of(regression)):
        def build_model(self):
            model = Pair()
            model.generator[0], model.critic[0] = nn.LazyLinear(5), nn.LazyLinear(4)
            return model.double()

    class Named(Lazy):
        def updates(self, step):
            return ["critic", "generator"]

    with pytest.raises(TaskError, match=r"lazy parameters and several optimizers.*updates\(step\)"):
        arena.start(Lazy, arena.spec())
    ranks = arena.train(Named, arena.spec(), 2)
    assert ranks[0].digest == ranks[1].digest
