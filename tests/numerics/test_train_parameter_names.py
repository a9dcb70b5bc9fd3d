"""A state finds its parameters by name, in whatever order the optimizer has them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dtd.engine.control_word import Flags
from dtd.engine.step_protocol import FRESH
from dtd.errors import CheckpointError
from dtd.train.record import InitFrom

pytestmark = pytest.mark.numerics

SHARDED = {"name": "sharded", "mirrors": 1}
PARENT = InitFrom(job_id="parent", step=None, mode="resume")


class Equal(nn.Module):
    """Layers of one shape, so that nothing but a name tells one from the other."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(6, 6) for _ in range(3))
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        return self.out(torch.tanh(self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))))


@pytest.fixture
def layers(regression):
    """A task whose optimizer has the named layers, group by group, in the given order."""

    class Task(regression):
        def __init__(self, *groups: str, frozen: str = "", build=torch.optim.Adam) -> None:
            super().__init__()
            self.groups, self.frozen, self.build = groups or ("abco",), frozen, build

        def build_model(self):
            model = Equal().double()
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(name[0] not in self.frozen)
            return model

        def build_optimizer(self, named_parameters):
            named = list(named_parameters)
            groups = [
                {"params": [p for layer in group for name, p in named if name[0] == layer]}
                for group in self.groups
            ]
            return self.build(groups, lr=0.01)

    return Task


def resumed(arena, task, spec):
    """A rank of another job that goes on from the newest checkpoint of `parent`."""
    rank = arena.start(
        task, spec, name="w0", job_id=f"child-{len(arena.started)}", init_from=PARENT
    )
    held = rank.run.held()
    assert held.where == "checkpoint"
    rank.run.adopt_local(held.generation, held.step)
    return rank


def finished(arena, ranks, generation=2):
    for rank in arena.generation(ranks, generation=generation):
        if rank.error is not None:
            raise rank.error
    return ranks


@pytest.mark.parametrize("strategy", [{}, SHARDED], ids=["replicated", "sharded"])
def test_a_job_goes_on_with_its_parameters_in_another_order(arena, layers, strategy) -> None:
    spec = arena.spec(job={"steps": 12}, strategy=strategy)
    (expected,) = arena.train(layers(), spec, 1, job_id="whole")
    arena.train(layers(), arena.spec(job={"steps": 5}), 1, job_id="parent")
    (rank,) = finished(arena, [resumed(arena, layers("ocba"), spec)])
    assert all(map(torch.equal, rank.parameters(), expected.parameters()))


def test_parts_of_a_state_go_on_with_parameters_in_another_order(arena, layers) -> None:
    spec = arena.spec(job={"steps": 8}, strategy=SHARDED)
    (expected,) = arena.train(layers(), spec, 1, job_id="whole")
    ranks = [
        arena.start(layers(), spec, name=f"w{index}", ask=lambda step: Flags(stop=step == 4))
        for index in range(2)
    ]
    for rank in ranks:
        rank.run.adopt_local(*FRESH)
    arena.generation(ranks, writers=frozenset({0, 1}))
    for rank in ranks:
        rank.run.close()
    again = [arena.start(layers("cabo"), spec, name=f"w{index}") for index in range(2)]
    for rank in again:
        held = rank.run.held()
        assert (held.where, held.step) == ("checkpoint", 5)
        rank.run.adopt_local(held.generation, held.step)
    finished(arena, again)
    for rank in again:
        for mine, theirs in zip(rank.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


def test_workers_with_parameters_in_another_order_do_not_train_together(arena, layers) -> None:
    tasks = (layers(), layers(), layers("baco"), layers("ab", "co"))
    plans = [arena.start(task, arena.spec()).run.prepare().plan_digest for task in tasks]
    assert plans[0] == plans[1]
    assert len(set(plans)) == 3


def test_names_that_an_optimizer_keeps_itself_are_no_settings(arena, layers) -> None:
    def named(groups, lr):
        (group,) = groups
        return torch.optim.Adam([(f"p{i}", p) for i, p in enumerate(group["params"])], lr=lr)

    spec = arena.spec(job={"steps": 8})
    (expected,) = arena.train(layers(), spec, 1, job_id="whole")
    arena.train(layers(build=named), arena.spec(job={"steps": 5}), 1, job_id="parent")
    for task in (layers("cbao"), layers("cbao", build=named)):
        (rank,) = finished(arena, [resumed(arena, task, spec)])
        assert all(map(torch.equal, rank.parameters(), expected.parameters()))


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ((), ("bco", "a"), "a.weight is only in the state's; a.bias is only in the state's"),
        (("aco", "b"), (), "b.weight is only in this job's; b.bias is only in this job's"),
        (
            ("ao", "b", "c"),
            ("o", "b", "ac"),
            "a.weight is in group 0 of the state's and in group 1",
        ),
    ],
    ids=["frozen", "trained", "moved"],
)
def test_what_does_not_match_is_refused_by_name(arena, layers, before, now, words) -> None:
    def task(*parts):
        """The layers of groups, with those that are frozen in the second place."""
        groups, frozen = parts[:1] + parts[2:], parts[1] if parts[1:] else ""
        return layers(*groups, frozen=frozen)

    arena.train(task(*before), arena.spec(job={"steps": 5}), 1, job_id="parent")
    with pytest.raises(CheckpointError) as caught:
        resumed(arena, task(*now), arena.spec(job={"steps": 8}))
    assert words in caught.value.message
    assert "--weights-from" in caught.value.remedy
