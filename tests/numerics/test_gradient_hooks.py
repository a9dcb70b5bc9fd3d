"""Hooks on gradients give what plain torch has, with every strategy, or are refused by name."""

from __future__ import annotations

import pytest
import torch

from dtd.engine.step_protocol import FRESH
from dtd.errors import TaskError

pytestmark = pytest.mark.numerics

SGD = {"name": "sgd", "lr": 0.1}
STRATEGIES = {
    "replicated": {},
    "stage 1": {"name": "sharded"},
    "stage 2": {"name": "sharded", "stage": 2},
    "stage 3": {"name": "sharded", "stage": 3},
}


def spec_of(arena, strategy: str, parts: int = 1, **tables):
    return arena.spec(
        optimizer=SGD,
        strategy=STRATEGIES[strategy],
        train={"grad_accumulation": parts},
        **tables,
    )


def hooked(regression, *, on: str):
    """A task with hooks that are exact: masks on parameters, clamps on activations; or watchers."""

    class Hooked(regression):
        def build_model(self):
            self.seen = 0
            model = super().build_model()
            if on == "parameters":
                model[0].weight.register_hook(lambda g: g * (torch.arange(6) % 3 > 0))
                model[2].bias.register_post_accumulate_grad_hook(self.reverse)
            elif on == "activations":
                model[1].register_full_backward_hook(lambda _, given, out: (given[0].sign() / 512,))
            elif on == "watch":
                model[0].weight.register_hook(self.watch)
                model[2].bias.register_post_accumulate_grad_hook(self.watch)
            return model

        def reverse(self, parameter):
            parameter.grad = parameter.grad * (torch.arange(3) > 0)

        def watch(self, tensor):
            self.seen += 1

    return Hooked


def assert_weights(ranks, expected) -> None:
    """Compare with a model of plain torch; in stage 3 a rank has only its part."""
    whole = {f"model.{name}": value.detach() for name, value in expected.named_parameters()}
    for rank in ranks:
        assert rank.recorder.warnings == []
        parts = [
            (piece.values, whole[one.name].reshape(-1)[piece.start : piece.stop])
            for one in (rank.replica.shards.tensors() if rank.replica.shards else ())
            for piece in one.pieces
        ] or zip(rank.parameters(), whole.values(), strict=True)
        for own, theirs in parts:
            torch.testing.assert_close(own, theirs, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("strategy", "world_size", "parts", "on"),
    [
        *(("replicated", 1, 1, "activations"), ("replicated", 3, 2, "parameters")),
        *(("replicated", 2, 1, "watch"), ("stage 1", 2, 1, "parameters")),
        *(("stage 1", 3, 2, "watch"), ("stage 2", 3, 2, "activations")),
        *(("stage 2", 2, 1, "parameters"), ("stage 3", 3, 2, "parameters")),
        *(("stage 3", 3, 2, "activations"), ("stage 3", 2, 1, "watch")),
    ],
)
def test_hooks_that_are_exact(
    arena, regression, plain_torch, strategy, world_size, parts, on
) -> None:
    spec, task = spec_of(arena, strategy, parts), hooked(regression, on=on)
    ranks = arena.train(task, spec, world_size)
    expected = plain_torch(task(), spec, lambda p: torch.optim.SGD(p, lr=0.1))
    assert_weights(ranks, expected)


@pytest.mark.parametrize("strategy", ["replicated", "stage 3"])
def test_a_hook_that_is_not_linear_is_refused_unless_it_sees_all(
    arena, regression, plain_torch, strategy
) -> None:
    class Clipped(regression):
        def build_model(self):
            model = super().build_model()
            model[0].weight.register_hook(lambda g: g.clamp(-0.01, 0.01))
            return model

    with pytest.raises(TaskError, match=r"gradient of 0\.weight is not linear"):
        arena.start(Clipped, spec_of(arena, strategy))
    if strategy == "replicated":
        spec = spec_of(arena, strategy, elastic={"max_workers": 1})
        ranks = arena.train(Clipped, spec, 1, job_id="alone")
        assert_weights(ranks, plain_torch(Clipped(), spec, lambda p: torch.optim.SGD(p, lr=0.1)))


@pytest.mark.parametrize("strategy", ["replicated", "stage 3"])
def test_a_job_that_begins_again_has_each_hook_once(arena, regression, strategy) -> None:
    class Halved(regression):
        def build_optimizer(self, parameters):
            parameters = list(parameters)
            parameters[0].register_hook(lambda g: g / 2)
            parameters[1].register_post_accumulate_grad_hook(self.halve)
            return torch.optim.SGD(parameters, lr=0.1)

        def halve(self, parameter):
            parameter.grad /= 2

    ranks = arena.train(Halved, spec_of(arena, strategy), 2)
    first = ranks[0].outcome.digest
    for rank in ranks:
        rank.run.forget()
        rank.run.adopt_local(*FRESH)
    arena.generation(ranks, generation=2)
    assert [rank.error for rank in ranks] == [None, None]
    assert {rank.outcome.digest for rank in ranks} == {first}


def test_hooks_of_several_optimizers_are_tried(arena, regression) -> None:
    class Pair(regression):
        def build_optimizers(self, named):
            parameters = [parameter for _, parameter in named]
            parameters[1].register_hook(lambda g: g / g.norm())
            return {
                "one": torch.optim.SGD(parameters[:1], lr=0.1),
                "others": torch.optim.SGD(parameters[1:], lr=0.1),
            }

        def loss(self, model, batch, update):
            assert update in {"one", "others"}
            return super().loss(model, batch)

    with pytest.raises(TaskError, match=r"Pair.build_optimizers.* 0\.bias is not linear"):
        arena.start(Pair, arena.spec())


@pytest.mark.parametrize("strategy", ["replicated", "stage 3"])
def test_a_gradient_that_is_cleared_later_is_named(arena, regression, strategy) -> None:
    class Clearing(regression):
        steps = 0

        def build_model(self):
            model = super().build_model()
            model[2].weight.register_post_accumulate_grad_hook(self.clear)
            return model

        def clear(self, parameter):
            if self.steps:
                parameter.grad = None

        def on_step(self, at):
            self.steps = at.step

    ranks = [arena.start(Clearing, spec_of(arena, strategy), name=f"w{i}") for i in range(2)]
    arena.copy_state(*ranks)
    arena.generation(ranks)
    errors = [rank.error for rank in ranks if isinstance(rank.error, TaskError)]
    assert errors
    for error in errors:
        assert "the gradient of 2.weight is cleared during backward" in str(error)
    assert ranks[0].run.committed_step == 1
