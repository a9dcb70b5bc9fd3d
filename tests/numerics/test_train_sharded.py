"""Sharded training: the same results as replicated training, and no step lost with a rank."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from dtd.errors import TaskError
from dtd.train.data.rows import probed_rows
from dtd.train.state import replica
from dtd.train.warm_up.model_setup import LossScaler
from tests.numerics.sharded_training import ADAM, STAGES, assert_same_weights, sharded
from tests.shards import held_shards

pytestmark = pytest.mark.numerics


SGD = {"name": "sgd", "lr": 0.1, "momentum": 0.9}


def losses(rank) -> list[float]:
    return [one.loss for one in rank.recorder.steps]


def assert_same_results(got, expected) -> None:
    for rank in got:
        assert losses(rank) == pytest.approx(losses(expected), rel=1e-9)
    assert_same_weights(got, expected)


@pytest.mark.parametrize(
    ("world_size", "mirrors", "optimizer", "stage"),
    [
        *((1, 0, ADAM, 3), (2, 0, SGD, 1), (2, 0, ADAM, 2), (2, 1, SGD, 3)),
        *((3, 1, SGD, 2), (3, 0, ADAM, 3), (4, 2, ADAM, 1), (5, 4, SGD, 2), (5, 1, ADAM, 3)),
    ],
)
def test_results_are_those_of_replicated_training(
    arena, regression, world_size, mirrors, optimizer, stage
) -> None:
    plain = arena.spec(optimizer=optimizer)
    spec = sharded(arena, mirrors=mirrors, optimizer=optimizer, stage=stage)
    expected = arena.train(regression(), plain, world_size, job_id="whole")
    got = arena.train(regression(), spec, world_size)
    assert_same_results(got, expected[0])
    assert len({rank.outcome.digest for rank in got}) == 1
    for index, rank in enumerate(got):
        assert rank.replica.held_part == held_shards(index, world_size, mirrors)


class TiedAndFrozen(nn.Module):
    """A tied weight that the parent uses directly, a frozen layer, an unused one, a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.frozen = nn.Linear(6, 6).requires_grad_(requires_grad=False)
        self.unused = nn.Linear(2, 3)
        self.gain = nn.Parameter(torch.tensor(1.5))
        self.tied = nn.Linear(6, 6)
        self.tied.weight = self.first.weight
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        hidden = self.norm(torch.tanh(nn.functional.linear(x, self.first.weight) * self.gain))
        return self.last(self.tied(self.frozen(hidden)))


@pytest.mark.parametrize(("world_size", "stage"), [(1, 2), (3, 1), (3, 3)])
def test_tied_frozen_unused_and_scalar_parameters(arena, regression, world_size, stage) -> None:
    class Task(regression):
        def build_model(self):
            return TiedAndFrozen().double()

        def build_optimizer(self, parameters):
            decayed = [parameter for parameter in parameters if parameter.dim() > 1]
            other = [parameter for parameter in parameters if parameter.dim() <= 1]
            return torch.optim.AdamW(
                [{"params": decayed, "weight_decay": 0.1}, {"params": other}], lr=0.01
            )

    def spec(**strategy):
        return arena.spec(
            train={"clip_norm": 0.05}, job={"steps": 6, "global_batch_size": 12}, strategy=strategy
        )

    expected = arena.train(Task(48), spec(), world_size, job_id="whole")
    got = arena.train(Task(48), spec(name="sharded", stage=stage), world_size)
    assert_same_results(got, expected[0])
    state = got[0].replica.shards
    unused = got[0].replica.shards.entries().keys()
    trained = [name for name, _ in got[0].replica.trained]
    assert len(unused) == 2 * (len(trained) - 3)
    assert state.size_bytes > 0


@pytest.mark.parametrize(
    ("train", "stage"),
    [
        ({"grad_accumulation": 3}, 1),
        ({"grad_accumulation": 3}, 3),
        ({"activation_checkpointing": True}, 2),
        ({"activation_checkpointing": True}, 3),
    ],
)
def test_accumulation_and_activation_checkpointing(arena, regression, train, stage) -> None:
    class Task(regression):
        def build_model(self):
            block = nn.Sequential(nn.Linear(6, 8), nn.Tanh())
            return nn.Sequential(block, nn.Sequential(nn.Linear(8, 3))).double()

    expected = arena.train(Task(), arena.spec(optimizer=ADAM), 2, job_id="whole")
    got = arena.train(
        Task(), sharded(arena, stage=stage, mirrors=0, optimizer=ADAM, train=train), 2
    )
    assert_same_results(got, expected[0])


@STAGES
def test_many_buckets_and_unequal_numbers_of_micro_batches(arena, regression, stage) -> None:
    """Three ranks have 2, 3 and 3 of eight rows; there are more buckets than memory for them."""

    class Task(regression):
        def build_model(self):
            layers = (nn.Linear(6, 6) for _ in range(9))
            return nn.Sequential(*layers, nn.Tanh(), nn.Linear(6, 3)).double()

    job, train = {"steps": 4}, {"grad_accumulation": 3}
    expected = arena.train(Task(), arena.spec(job=job, optimizer=ADAM), 3, job_id="whole")
    spec = sharded(arena, stage=stage, mirrors=1, job=job, optimizer=ADAM, train=train)
    assert_same_results(arena.train(Task(), spec, 3), expected[0])


@STAGES
def test_a_step_that_is_not_finite_is_skipped_by_all(arena, regression, monkeypatch, stage) -> None:
    """With a scaled loss, as in float16, and a schedule of the task, which both go by updates."""
    monkeypatch.setattr(
        replica, "loss_scaler", lambda precision: LossScaler(enabled=True, scale=2.0**10)
    )

    class Task(regression):
        def build_schedule(self, optimizer, total_steps):
            return torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)

        def loss(self, model, batch):
            loss = super().loss(model, batch)
            return loss * float("nan") if bool((batch[0] == self.rows.x[5]).all(1).any()) else loss

    expected = arena.train(Task(), arena.spec(optimizer=ADAM), 3, job_id="whole")
    got = arena.train(Task(), sharded(arena, stage=stage, mirrors=1, optimizer=ADAM), 3)
    assert sum(one.skipped for one in got[1].recorder.steps) == 1
    assert {rank.replica.scaler.scale for rank in got} == {2.0**9}
    assert [s.lr for s in got[0].recorder.steps] == [s.lr for s in expected[0].recorder.steps]
    assert_same_weights(got, expected[0])


@pytest.mark.parametrize(
    ("codec", "stage"), [("bfloat16", 1), ("float16", 2), ("bfloat16", 3), ("float16", 3)]
)
def test_rounded_gradients(arena, regression, codec, stage) -> None:
    class Task(regression):
        def build_model(self):
            return super().build_model().float()

        def loss(self, model, batch):
            return super().loss(model, tuple(one.float() for one in batch))

    spec = sharded(arena, stage=stage, mirrors=1, optimizer=SGD, strategy={"codec": codec})
    got = arena.train(Task(), spec, 3)
    exact = arena.train(Task(), arena.spec(optimizer=SGD), 3, job_id="whole")
    assert len({rank.outcome.digest for rank in got}) == 1
    assert losses(got[0]) == pytest.approx(losses(exact[0]), rel=0.02)


@STAGES
def test_evaluations_and_callbacks_see_the_whole_model(arena, regression, stage) -> None:
    class Task(regression):
        def eval_dataset(self):
            return self.rows

    spec = {"train": {"eval_every": 2}, "optimizer": ADAM}
    expected = arena.train(Task(), arena.spec(**spec), 3, job_id="whole")
    got = arena.train(Task(), sharded(arena, stage=stage, mirrors=0, **spec), 3)
    for one, other in zip(got[2].recorder.evals, expected[0].recorder.evals, strict=True):
        assert one.metrics == pytest.approx(other.metrics, rel=1e-9)


class Transformer(nn.Module):
    """Two blocks between an embedding and a head that share their weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(6, 8, bias=False)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        hidden = self.embedding(x).unsqueeze(1)
        for block in self.blocks:
            hidden = block(hidden)
        return self.last(nn.functional.linear(hidden.squeeze(1), self.embedding.weight.t()))


class Residual(nn.Module):
    """Convolutions with BatchNorm around a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(1, 4, 3, padding=1), nn.BatchNorm1d(4), nn.ReLU())
        self.inner = nn.Sequential(
            nn.Conv1d(4, 4, 3, padding=1), nn.BatchNorm1d(4), nn.ReLU(inplace=True)
        )
        self.head = nn.Linear(24, 3)

    def forward(self, x):
        hidden = self.stem(x.unsqueeze(1))
        return self.head((hidden + self.inner(hidden)).flatten(1))


@pytest.mark.parametrize(
    ("model", "train"), [(Transformer, {}), (Residual, {"activation_checkpointing": True})]
)
def test_parameters_that_are_gathered_layer_by_layer(arena, regression, model, train) -> None:
    class Task(regression):
        def build_model(self):
            return model().double()

    tables = {"job": {"steps": 4}, "train": {"clip_norm": 0.1, **train}, "optimizer": ADAM}
    expected = arena.train(Task(), arena.spec(**tables), 3, job_id="whole")
    got = arena.train(Task(), sharded(arena, stage=3, mirrors=1, **tables), 3)
    assert_same_results(got, expected[0])


@pytest.mark.parametrize(("stage", "mirrors"), [(1, 1), (2, 0), (3, 0), (3, 1)])
def test_memory_of_the_state(arena, regression, mirrors, stage) -> None:
    """Sizes of parameters, gradients and Adam's state; the pool and the unit in use count apart."""

    class Task(regression):
        def build_model(self):
            return nn.Sequential(*(nn.Linear(6, 6) for _ in range(6)), nn.Linear(6, 3)).double()

    spec = sharded(arena, stage=stage, mirrors=mirrors, optimizer=ADAM, job={"steps": 2})
    got = arena.train(Task(), spec, 4)
    whole = 8 * sum(parameter.numel() for parameter in Task().build_model().parameters())
    share, slack = (mirrors + 1) / 4, 8 * 2 * 14
    for rank in got:
        strategy, optimizer = rank.run._session.strategy, rank.replica.optimizer
        held = [p for group in optimizer.param_groups for p in group["params"]]
        parameters = sum(f.untyped_storage().nbytes() for f in strategy._parameters.flats)
        parameters += sum(p.nbytes for p in held) if stage == 3 else 0
        state = [v for p in held for v in optimizer.state[p].values() if v.dim()]
        assert abs(sum(one.nbytes for one in state) - 2 * share * whole) <= 2 * slack
        assert abs(parameters - (share if stage == 3 else 1) * whole) <= slack
        gradients = strategy.size_bytes - len(strategy._scalars.memory.view)
        pool = 0 if stage == 1 else 4 * 8 * (36 + 6)
        assert gradients - pool <= (1 if stage == 1 else share) * whole + slack


class Branches(nn.Module):
    """Rows go through two layers, flagged ones the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        layers = (self.two, self.one) if self.is_flagged(x) else (self.one, self.two)
        for layer in layers:
            x = torch.tanh(layer(x))
        return self.last(x)

    def is_flagged(self, x):
        return float(x.detach().max()) > 10.0


class Chances(Branches):
    """As layers that are dropped at random."""

    def is_flagged(self, x):
        return float(torch.rand(())) < 0.7


@pytest.mark.parametrize("model", [Branches, Chances])
def test_an_order_that_differs_by_row_or_chance_is_refused_at_warm_up(
    arena, regression, model
) -> None:
    class Task(regression):
        def __init__(self):
            super().__init__()
            self.rows.x[9::10] = 11.0  # every tenth row, whatever their order

        def build_model(self):
            return model().double()

    with pytest.raises(TaskError, match=r"another order than in the first pass") as caught:
        arena.start(Task(), sharded(arena, stage=3, mirrors=0))
    assert re.search(r"(one|two)\.weight where it used (one|two)\.weight", caught.value.message)
    assert "strategy.stage = 2" in caught.value.remedy
    arena.train(Task(), sharded(arena, stage=2, mirrors=0, job={"steps": 2}), 2)


@pytest.mark.parametrize("sample", [0, 1])
def test_rows_may_leave_a_parameter_out(arena, regression, sample) -> None:
    """Whether in the warm-up it is used by the first few rows, or by others only."""

    class Scaled(Branches):
        def __init__(self) -> None:
            super().__init__()
            self.scales = nn.Module()
            self.scales.one, self.scales.two = (
                nn.Parameter(torch.ones(6)),
                nn.Parameter(torch.ones(6)),
            )

        def forward(self, x):
            x = x * self.scales.one
            if self.is_flagged(x):
                x = x / self.scales.two
            return self.last(torch.tanh(self.one(x)))

    class Task(regression):
        def __init__(self):
            super().__init__()
            self.rows.x[probed_rows(self.rows, 3)[4 + sample :: 4], 0] = 11.0

        def build_model(self):
            return Scaled().double()

    tables = {"job": {"steps": 9, "global_batch_size": 4}, "optimizer": SGD | {"lr": 0.01}}
    expected = arena.train(Task(), arena.spec(**tables), 2, job_id="whole")
    got = arena.train(Task(), sharded(arena, stage=3, mirrors=0, **tables), 2)
    assert_same_results(got, expected[0])


def test_another_order_than_in_the_warm_up_is_named(arena, regression) -> None:
    class Turning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
            self.head = nn.Linear(6, 3)
            self.passes = 0

        def forward(self, x):
            self.passes += 1
            for layer in self.layers if self.passes < 8 else reversed(self.layers):
                x = layer(x)
            return self.head(x)

    class Task(regression):
        def build_model(self):
            return Turning().double()

    rank = arena.start(Task(), sharded(arena, stage=3, mirrors=0))
    arena.generation([rank])
    assert isinstance(rank.error, TaskError)
    assert "in another order" in str(rank.error)
    assert "strategy.stage = 2" in rank.error.remedy
