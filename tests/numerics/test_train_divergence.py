"""Replicas that differ: what differs first is named, and who has copied a state does not vote."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dtd.errors import DivergenceError, TaskError

pytestmark = pytest.mark.numerics

SGD = {"name": "sgd", "lr": 0.05, "momentum": 0.9}


def together(arena, task, spec, world_size: int):
    ranks = [arena.start(task, spec, name=f"w{i}") for i in range(world_size)]
    for rank in ranks[1:]:
        arena.copy_state(ranks[0], rank)
    return arena.generation(ranks)


def differing(ranks) -> tuple[int, str, str]:
    """Step, entry and words of what all ranks have found."""
    for rank in ranks:
        assert isinstance(rank.error, DivergenceError), rank.error
    assert len({(one.error.step, one.error.entry) for one in ranks if one.error.entry}) == 1
    error = next(one.error for one in ranks if one.error.entry)
    return error.step, error.entry, str(error)


def test_a_second_optimizer_that_steps_inside_loss_is_named(arena, regression) -> None:
    class Gan(regression):
        def build_model(self):
            model = nn.ModuleDict({"g": super().build_model(), "d": nn.Linear(3, 1).double()})
            self.second = torch.optim.Adam(model["d"].parameters(), lr=0.1)
            return model

        def loss(self, model, batch):
            x, y = batch
            self.second.zero_grad()
            (model["d"](y).mean() - model["d"](model["g"](x).detach()).mean()).backward()
            self.second.step()
            for parameter in model["d"].parameters():
                parameter.grad = None
            return ((model["g"](x) - y) ** 2).mean() - model["d"](model["g"](x)).mean()

    ranks = together(arena, Gan(), arena.spec(), 2)
    assert {rank.run.committed_step for rank in ranks} == {0}
    errors = [rank.error for rank in ranks if isinstance(rank.error, TaskError)]
    assert errors
    for error in errors:
        assert "calls backward() itself: d." in error.message  # one optimizer, two threads
        assert "build_optimizers()" in error.remedy


class Counting:
    """A model with a buffer."""

    @staticmethod
    def of(regression):
        class Task(regression):
            def build_schedule(self, optimizer, total_steps):
                return torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=1.0)

            def build_model(self):
                model = super().build_model()
                model.register_buffer("seen", torch.zeros(5))
                model.register_parameter("fixed", nn.Parameter(torch.zeros(6).double()))
                model.fixed.requires_grad = False
                return model

        return Task()


def momentum(replica) -> None:
    next(iter(replica.optimizer.state.values()))["momentum_buffer"].view(-1)[0] += 1e-9


def group(replica) -> None:
    replica.optimizer.param_groups[0]["weight_decay"] = 1e-30


def parameter(replica) -> None:
    replica.model[0].weight.data[0, 0] += 1e-9


def fixed(replica) -> None:
    replica.model.fixed.data[2] = 1.0


def averaged(replica) -> None:
    replica.averages.named["0.bias"][1] += 1e-9


def schedule(replica) -> None:
    replica.schedule._scheduler.gamma = 0.5


def buffer(replica) -> None:
    replica.model.seen[3] = 1.0


@pytest.mark.parametrize(
    ("change", "entry", "meaning"),
    [
        (parameter, "model.0.weight", "the parameter 0.weight; all ranks update it by the same"),
        (fixed, "model.fixed", "the parameter fixed, which dtd does not train"),
        (averaged, "ema.0.bias", "the average of 0.bias"),
        (schedule, "schedule", "the state of the schedule that build_schedule"),
        (buffer, "model.seen", "the buffer seen"),
        (momentum, "optimizer.0.momentum_buffer", "in the optimizer's state of 0.weight"),
        (group, "optimizer_groups", "optimizer_groups, which is no tensor"),
    ],
)
def test_what_else_may_differ_is_named(arena, regression, change, entry, meaning) -> None:
    spec = arena.spec(optimizer=SGD, train={"digest_every": 4, "ema_decay": 0.5})
    ranks = [arena.start(Counting.of(regression), spec, name=f"w{i}") for i in range(2)]
    arena.copy_state(ranks[0], ranks[1])
    record = ranks[1].recorder.step_committed

    def committed(step) -> None:
        record(step)
        if step.step == 4:
            change(ranks[1].replica)

    ranks[1].recorder.step_committed = committed
    found = differing(arena.generation(ranks))
    assert found[:2] == (4, entry)
    assert meaning in found[2]


@pytest.mark.parametrize("wrong", [0, 2], ids=["the holder", "a copy"])
def test_one_state_of_three_is_outvoted_whoever_copied_it(arena, regression, wrong) -> None:
    """The copies come from the holder: either it has changed since, or one of them went wrong."""
    for rank in _copied(arena, regression, wrong=[wrong]):
        assert isinstance(rank.error, DivergenceError)
        assert (rank.error.dissenters, rank.error.majority) == ((wrong,), True)


def _copied(arena, regression, *, wrong: list[int]):
    """Three ranks that have the state of the first, some of them with another value in it."""
    ranks = [arena.start(regression(), arena.spec(), name=f"w{i}") for i in range(3)]
    for rank in ranks[1:]:
        arena.copy_state(ranks[0], rank)
    for index in wrong:
        with torch.no_grad():
            next(ranks[index].model.parameters()).view(-1)[0] += 1.0
    arena.generation(ranks, voters=frozenset({0}))
    return ranks
