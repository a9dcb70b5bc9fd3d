"""Optimizers' entries: their types and shapes, and whether a state carries them unchanged."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dtd.errors import TaskError
from tests.numerics.cuts import Cut, ranks_of

pytestmark = pytest.mark.numerics

STAGES = pytest.mark.parametrize("stage", [1, 2, 3])


class Wide(torch.optim.Optimizer):
    """SGD with momentum in float32, whatever the type of the parameter."""

    def __init__(self, parameters) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        del closure
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state["mean"] = torch.zeros_like(parameter, dtype=torch.float32)
            state["mean"].mul_(0.9).add_(parameter.grad)
            parameter.sub_(0.1 * state["mean"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("optimizer", [torch.optim.NAdam, torch.optim.ASGD, Wide])
def test_a_state_carries_entries_of_other_types_than_their_parameters(
    arena, regression, optimizer, dtype
) -> None:
    class Task(regression):
        def build_model(self):
            return super().build_model().to(dtype)

        def build_optimizer(self, parameters):
            return optimizer(list(parameters))

        def loss(self, model, batch):
            return super().loss(model, tuple(one.to(dtype) for one in batch))

    donor = arena.train(Task(), arena.spec(job={"steps": 3}), 1)[0]
    joiner = arena.start(Task(), arena.spec(job={"steps": 3}), name="joiner")
    arena.copy_state(donor, joiner)
    assert joiner.digest == donor.digest


class Counting(torch.optim.Optimizer):
    """Claims to be elementwise, and counts its updates in a vector of one element."""

    elementwise = True

    def __init__(self, parameters) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        del closure
        for parameter in self.param_groups[0]["params"]:
            count = self.state[parameter].setdefault("count", torch.zeros(1))
            count += 1
            parameter.sub_(parameter.grad * 0.1)


@STAGES
def test_undivided_entries_are_named_in_the_first_step(arena, regression, stage) -> None:
    class Task(regression):
        def build_optimizer(self, parameters):
            return Counting(list(parameters))

    spec = arena.spec(strategy={"name": "sharded", "stage": stage})
    ranks = [arena.start(Task(), spec, name=f"w{i}") for i in range(2)]
    arena.copy_state(*ranks)
    arena.generation(ranks)
    errors = [rank.error for rank in ranks if isinstance(rank.error, TaskError)]
    assert errors
    for error in errors:
        assert "keeps count of shape (1,)" in error.message
    assert not ranks[0].recorder.steps


class Nested(torch.optim.Optimizer):
    """SGD by the last gradients, kept in lists and dicts, and changed there."""

    elementwise = True

    def __init__(self, parameters, lr, *, tensors: bool = True) -> None:
        super().__init__(parameters, {"lr": lr, "limits": [np.float64(0.5), {"most": math.inf}]})
        self.tensors = tensors

    @torch.no_grad()
    def step(self, closure=None):
        del closure
        for group in self.param_groups:
            group["limits"][1]["steps"] = group["limits"][1].get("steps", 0) + 1
            for parameter in (one for one in group["params"] if one.grad is not None):
                state = self.state[parameter]
                if not state:
                    state["norms"] = {"count": np.int64(0), 2: (torch.zeros(()), [1.0])}
                    state["last"] = []
                    state["kind"] = "nested"
                norms = state["norms"]
                assert state["kind"] == "nested"
                norms["count"] += 1
                norms[2][0].add_(1.0)
                norms[2][1][0] *= 0.5
                if self.tensors:
                    state["last"] = [*state["last"][-2:], parameter.grad.clone()]
                rate = group["lr"] * (1 + norms[2][1][0]) / float(norms[2][0]) ** 0.5
                for gradient in state["last"] or [parameter.grad]:
                    parameter.sub_(gradient * rate)


RATES = {
    "float": lambda: 0.1,
    "tensor": lambda: torch.tensor(0.1),
    "float64 tensor": lambda: torch.tensor(0.1, dtype=torch.float64),
    "numpy": lambda: np.float32(0.1),
    "numpy float64": lambda: np.float64(0.1),
}


def nested(regression, rate: str, **options):
    class Task(regression):
        def build_optimizer(self, parameters):
            return Nested(list(parameters), RATES[rate](), **options)

        def on_step(self, at):
            self.lr = at.metrics["lr"]

    return Task


@pytest.mark.parametrize("rate", RATES)
def test_nested_state_and_any_learning_rate_are_plain_torchs(
    arena, regression, plain_torch, rate
) -> None:
    task, spec = nested(regression, rate), arena.spec(job={"steps": 7})
    (rank,) = arena.train(task, spec, 1)
    expected = plain_torch(task(), spec, lambda p: Nested(p, RATES[rate]()))
    assert all(map(torch.equal, rank.parameters(), expected.parameters()))
    own, theirs = rank.replica.optimizer.param_groups[0]["lr"], RATES[rate]()
    assert (type(own), own) == (type(theirs), theirs)
    ranks = arena.train(task, spec, 3, job_id="three")
    assert len({one.outcome.digest for one in ranks}) == 1


@pytest.mark.parametrize("rate", ["tensor", "numpy"])
@pytest.mark.parametrize("schedule", [False, True])
def test_nested_state_is_saved_sent_and_redone(arena, regression, rate, schedule) -> None:
    class Task(nested(regression, rate)):
        if schedule:

            def build_schedule(self, optimizer, total_steps):
                return torch.optim.lr_scheduler.OneCycleLR(
                    optimizer, 0.2, total_steps, cycle_momentum=False
                )

    spec = arena.spec(job={"steps": 9}, schedule={"name": "cosine"}, checkpoint={"every_steps": 4})
    whole = arena.train(Task, spec, 2, job_id="whole")[0].outcome.digest
    ranks = ranks_of(arena, Task, spec, 2)
    arena.generation(ranks, wrap=lambda _, inner: Cut(inner, 6))
    joiner = arena.start(Task, spec, name="joiner")
    for rank in ranks:
        rank.run.adopt_local(1, 6)
    arena.copy_state(ranks[0], joiner)
    assert joiner.digest == ranks[0].digest == ranks[1].digest
    arena.generation([joiner, ranks[1]], generation=2)
    assert {joiner.outcome.digest, ranks[1].outcome.digest} == {whole}
    resumed = [*ranks_of(arena, Task, spec, 1, name="other"), arena.start(Task, spec, name="w0")]
    resumed[1].run.adopt_local(1, 4)
    arena.copy_state(resumed[1], resumed[0])
    arena.generation(resumed, generation=3)
    assert {rank.outcome.digest for rank in resumed} == {whole}


def test_a_round_of_local_steps_with_nested_state_is_redone(arena, regression) -> None:
    class Task(nested(regression, "tensor")):
        def build_schedule(self, optimizer, total_steps):
            return torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=total_steps)

    spec = arena.spec(job={"steps": 9}, strategy={"name": "local_sgd", "inner_steps": 3})
    whole = arena.train(Task, spec, 2, job_id="whole")[0].outcome.digest
    ranks = ranks_of(arena, Task, spec, 2)
    arena.generation(ranks, wrap=lambda _, inner: Cut(inner, 1))
    for rank in ranks:
        rank.run.adopt_local(1, 3)
    arena.generation(ranks, generation=2)
    assert {rank.outcome.digest for rank in ranks} == {whole}


@STAGES
def test_tensors_in_lists_are_not_sharded(arena, regression, stage) -> None:
    spec = arena.spec(strategy={"name": "sharded", "stage": stage})
    ranks = [arena.start(nested(regression, "float"), spec, name=f"w{i}") for i in range(2)]
    arena.copy_state(*ranks)
    arena.generation(ranks)
    errors = [rank.error for rank in ranks if isinstance(rank.error, TaskError)]
    assert errors
    assert all("keeps last as a list with tensors in it" in error.message for error in errors)
    assert all("an entry of its own" in error.remedy for error in errors)
