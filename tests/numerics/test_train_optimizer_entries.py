"""What optimizers keep: of which types and shapes, and whether a state carries it unchanged."""

from __future__ import annotations

import pytest
import torch

from dtd.errors import TaskError

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
def test_entries_that_cannot_be_divided_are_named_in_the_first_step(
    arena, regression, stage
) -> None:
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
        assert "tensor without dimensions" in error.remedy
    assert not ranks[0].recorder.steps
