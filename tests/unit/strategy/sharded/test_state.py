"""Slices of parameters and of optimizer state, for any set of shards."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dtd.engine.shards import NOTHING, WHOLE, ShardSet
from dtd.errors import CheckpointError, TaskError
from dtd.exchange.schedule.buckets import plan_buckets
from dtd.strategy.buckets import parameter_shapes
from dtd.strategy.sharded.parameters import FlatParameters
from dtd.strategy.sharded.state import ShardedState
from tests.shards import held_segments, held_shards


class Model(nn.Module):
    """Parameters of several sizes, among them a scalar and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.matrix = nn.Parameter(torch.randn(5, 7))
        self.vector = nn.Parameter(torch.randn(11))
        self.scalar = nn.Parameter(torch.randn(()))


class Bound:
    """A model whose optimizer has slices, and gradients for them."""

    def __init__(self, build=None) -> None:
        self.model = Model()
        named = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        plan = plan_buckets(parameter_shapes(named), bucket_bytes=64, first_bucket_bytes=64)
        trained = [parameter for _, parameter in named]
        self.flats = FlatParameters(trained, plan, self.model).flats
        self.gradients = [torch.zeros_like(flat) for flat in self.flats]
        self.state = ShardedState([name for name, _ in named], trained, plan, self.flats)
        build = build or (lambda parameters: torch.optim.Adam(parameters, lr=0.1))
        self.optimizer = build(list(self.model.parameters()))
        self.state.bind(self.optimizer)

    def update(self, seed: int, present=(True, True, True)) -> None:
        generator = torch.Generator().manual_seed(seed)
        for gradient in self.gradients:
            gradient.copy_(torch.randn(gradient.shape, generator=generator))
        self.state.set_gradients(lambda at, a, b: self.gradients[at][a:b], present)
        self.optimizer.step()
        self.state.release_gradients()

    def cut(self, rank: int, world_size: int, mirrors: int = 0) -> None:
        segments = held_segments(rank, world_size, mirrors)
        self.state.stage([ShardSet.segments([index], world_size) for index in segments])

    def held(self) -> dict[str, list[tuple[int, int, torch.Tensor]]]:
        return {
            tensor.name: [(p.start, p.stop, p.values.clone()) for p in tensor.pieces]
            for tensor in self.state.tensors()
        }


def assert_parts_of(part: Bound, whole: Bound) -> None:
    """The part's values are those of the whole in its places."""
    everything = whole.held()
    for name, pieces in part.held().items():
        ((_, _, values),) = everything[name]
        for start, stop, mine in pieces:
            torch.testing.assert_close(mine, values[start:stop], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
@pytest.mark.parametrize("mirrors", [0, 1])
def test_ranks_together_compute_what_one_computes_alone(world_size, mirrors) -> None:
    whole, ranks = Bound(), [Bound() for _ in range(world_size)]
    for one in (whole, *ranks):
        one.update(1)
    for rank, one in enumerate(ranks):
        one.cut(rank, world_size, mirrors)
        one.state.keep()
        assert one.state.holds == held_shards(rank, world_size, mirrors)
    for one in (whole, *ranks):
        one.update(2)
        one.update(3, present=(True, False, True))
    for one in ranks:
        assert_parts_of(one, whole)
    counted = sum(one.state.size_bytes for one in ranks)
    assert counted == whole.state.size_bytes * min(mirrors + 1, world_size)


def test_a_slice_that_stays_needs_no_memory_while_a_cut_is_staged() -> None:
    whole, bound = Bound(), Bound()
    for one in (whole, bound):
        one.update(1)
    bound.cut(1, 3)
    bound.state.keep()

    def places() -> list[int]:
        return [p.values.data_ptr() for one in bound.state.tensors() for p in one.pieces]

    before = places()
    bound.cut(1, 3)
    assert places() == before
    bound.state.put_back()
    assert places() == before
    for seed, ends in ((2, bound.state.put_back), (3, bound.state.keep)):
        bound.cut(1, 3)
        ends()
        for one in (whole, bound):
            one.update(seed)
        assert_parts_of(bound, whole)


def test_a_part_is_loaded_from_pieces() -> None:
    source, target = Bound(), Bound()
    source.update(1)
    holds = held_shards(1, 3, 1)
    target.state.bind(target.state.unbind(), NOTHING, source.state.entries())
    assert target.state.holds == NOTHING
    assert all(not one.pieces for one in target.state.tensors())
    target.state.load(source.held(), holds)
    assert target.state.holds == holds
    assert_parts_of(target, source)


def test_pieces_of_another_model_are_refused() -> None:
    source, target = Bound(), Bound()
    source.update(1)
    target.state.bind(target.state.unbind(), NOTHING, source.state.entries())
    given = source.held()
    (start, stop, values) = given["optimizer.1.exp_avg"][0]
    given["optimizer.1.exp_avg"] = [(start, stop - 1, values[:-1])]
    with pytest.raises(CheckpointError, match=r"lacks elements of .* optimizer\.1\.exp_avg"):
        target.state.load(given, WHOLE)
    given["optimizer.1.exp_avg"] = [(start, stop, values.double())]
    with pytest.raises(CheckpointError, match=r"another optimizer\.1\.exp_avg"):
        target.state.load(given, WHOLE)


def test_an_entry_that_has_not_its_parameters_shape_is_refused() -> None:
    def build(parameters):
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        optimizer.state[parameters[1]]["rows"] = torch.zeros(5)
        return optimizer

    with pytest.raises(TaskError, match=r"keeps rows of shape \(5,\) for a parameter of"):
        Bound(build)
