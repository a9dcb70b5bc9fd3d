"""Parameter servers own the state: the results of replicated training, and no step lost."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from dtd.engine.shards import NOTHING, WHOLE, Division, united
from dtd.train.state import replica
from dtd.train.warm_up.model_setup import LossScaler

pytestmark = pytest.mark.numerics

STAGES = pytest.mark.parametrize("stage", [1, 2, 3])
ADAM = {"name": "adam", "lr": 0.01}


def served(arena, *, mirrors: int = 1, stage: int = 1, **tables):
    strategy = {"name": "sharded", "owners": "servers", "mirrors": mirrors, "stage": stage}
    strategy |= tables.pop("strategy", {})
    return arena.spec(strategy=strategy, optimizer=ADAM, **tables)


def losses(rank) -> list[float]:
    return [one.loss for one in rank.recorder.steps]


def weights(ranks) -> dict[str, torch.Tensor]:
    """The whole weights, from the parts of all ranks."""
    whole: dict[str, torch.Tensor] = {}
    for rank in ranks:
        for one in rank.replica.shards.tensors():
            flat = whole.setdefault(
                one.name, torch.full([math.prod(one.shape)], torch.nan).double()
            )
            for piece in one.pieces:
                flat[piece.start : piece.stop] = piece.values
    return {name: value for name, value in whole.items() if name.startswith("model.")}


def assert_no_error(ranks) -> None:
    for rank in ranks:
        if rank.error is not None:
            raise rank.error


@pytest.mark.parametrize(
    ("trainers", "servers", "mirrors", "stage"),
    [
        *((1, 1, 0, 3), (2, 1, 1, 1), (2, 1, 1, 3), (1, 2, 1, 2)),
        *((3, 2, 0, 1), (3, 2, 0, 3), (2, 3, 1, 2), (2, 3, 1, 3)),
    ],
)
def test_results_are_those_of_replicated_training(
    arena, regression, trainers, servers, mirrors, stage
) -> None:
    expected = arena.train(regression(), arena.spec(optimizer=ADAM), trainers, job_id="whole")
    spec = served(arena, mirrors=mirrors, stage=stage)
    got = arena.train(regression(), spec, trainers + servers, servers)
    division = Division(world_size=trainers + servers, mirrors=mirrors, servers=servers)
    for index, rank in enumerate(got):
        assert losses(rank) == pytest.approx(losses(expected[0]), rel=1e-9)
        assert rank.replica.held_part == division.shards(index)
        assert rank.run.held().where == "memory"
    assert len({rank.outcome.digest for rank in got}) == 1
    names = {f"model.{name}": one for name, one in expected[0].model.named_parameters()}
    found = weights(got)
    assert found.keys() == names.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, names[name].detach().reshape(-1), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("stage", [1, 3])
def test_a_worker_has_no_optimizer_state_and_a_server_no_rows(arena, regression, stage) -> None:
    got = arena.train(regression(), served(arena, mirrors=0, stage=stage), 4, 2)
    assert [rank.replica.shards.size_bytes for rank in got[:2]] == [0, 0]
    assert all(rank.replica.shards.size_bytes > 0 for rank in got[2:])
    assert [rank.replica.held_part for rank in got[:2]] == [NOTHING, NOTHING]


@pytest.mark.parametrize(("dies", "stage"), [(0, 1), (3, 2), (0, 3), (3, 3)])
def test_the_loss_of_a_worker_or_server_costs_no_step(arena, regression, dies, stage) -> None:
    class Dies(Exception):
        pass

    def ask(step):
        if step == 4:
            raise Dies
        from dtd.engine.control_word import Flags

        return Flags()

    task, spec = regression(), served(arena, stage=stage)
    expected = arena.train(task, spec, 4, 2, job_id="whole")
    ranks = [
        arena.start(task, spec, name=f"w{i}", **({"ask": ask} if i == dies else {}))
        for i in range(4)
    ]
    for rank in ranks[1:]:
        arena.copy_state(ranks[0], rank)
    arena.generation(ranks, servers=2)
    assert isinstance(ranks[dies].error, Dies)
    survivors = [rank for index, rank in enumerate(ranks) if index != dies]
    held = [rank.run.held() for rank in survivors]
    assert {(one.where, one.step) for one in held} == {("memory", 4)}
    assert united(one.part for one in held) == WHOLE
    for rank in survivors:
        rank.run.adopt_local(held[0].generation, held[0].step)
    servers = 2 if dies == 0 else 1
    arena.generation(survivors, generation=2, servers=servers)
    assert_no_error(survivors)
    assert losses(survivors[-1]) == pytest.approx(losses(expected[0]), rel=1e-9)


def test_gradient_accumulation_clipping_and_evaluation(arena, regression) -> None:
    def spec(**strategy):
        return arena.spec(
            optimizer=ADAM,
            train={"grad_accumulation": 2, "clip_norm": 0.05, "eval_every": 3},
            strategy=strategy,
        )

    expected = arena.train(regression(), spec(), 2, job_id="whole")
    for stage in (2, 3):
        strategy = {"name": "sharded", "owners": "servers", "stage": stage}
        got = arena.train(regression(), spec(**strategy), 4, 2, job_id=f"job-{stage}")
        assert losses(got[0]) == pytest.approx(losses(expected[0]), rel=1e-9)
        for rank in got:
            seen = [one.metrics for one in rank.recorder.evals]
            assert seen == [pytest.approx(one.metrics) for one in expected[0].recorder.evals]


@STAGES
def test_a_step_that_is_not_finite_is_skipped_by_workers_and_servers(
    arena, regression, monkeypatch, stage
) -> None:
    """With a scaled loss, as in float16; a server has no loss of its own that could tell it."""
    monkeypatch.setattr(
        replica, "loss_scaler", lambda precision: LossScaler(enabled=True, scale=2.0**10)
    )

    class Task(regression):
        def loss(self, model, batch):
            loss = super().loss(model, batch)
            return loss * math.nan if bool((batch[0] == self.rows.x[5]).all(1).any()) else loss

    expected = arena.train(Task(), arena.spec(optimizer=ADAM), 2, job_id="whole")
    got = arena.train(Task(), served(arena, stage=stage), 4, 2)
    assert [[one.skipped for one in rank.recorder.steps] for rank in got] == [
        [one.skipped for one in expected[0].recorder.steps]
    ] * 4
    assert sum(one.skipped for one in expected[0].recorder.steps) == 1
    assert {rank.replica.scaler.scale for rank in got} == {2.0**9}
    found = weights(got)
    for name, value in expected[0].model.named_parameters():
        wanted = value.detach().reshape(-1)
        torch.testing.assert_close(found[f"model.{name}"], wanted, rtol=1e-9, atol=1e-12)


def test_running_statistics_are_those_of_the_rows(arena, regression) -> None:
    class Normed(regression):
        def build_model(self):
            torch.manual_seed(0)
            return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).double()

    task = Normed(48)
    expected = arena.train(task, arena.spec(optimizer=ADAM), 2, job_id="whole")
    got = arena.train(task, served(arena), 3, 1)
    for rank in got:
        for name, buffer in rank.model.named_buffers():
            torch.testing.assert_close(buffer, expected[0].model.get_buffer(name))
