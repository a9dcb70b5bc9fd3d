"""Averaged weights, and what may change where: torch's numbers, through breaks and checkpoints."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from dtd.checkpoint.format import list_checkpoints
from dtd.errors import RingBroken, TaskError
from dtd.train.record import Flags, InitFrom
from dtd.train.state.weights import load_weights
from tests.numerics.cuts import Cut

pytestmark = pytest.mark.numerics

DECAY = 0.9
SGD = {"name": "sgd", "lr": 0.1, "momentum": 0.9}
EMA = {"ema_decay": DECAY}


def plain_sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, fused=True)


def normed(regression):
    class Task(regression):
        def build_model(self):
            model = nn.Sequential(
                nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3), nn.Linear(3, 3)
            ).double()
            model[4].requires_grad_(requires_grad=False)
            return model

        def eval_dataset(self):
            return self.rows

    return Task(48)


def averaged_by_torch(plain_torch, task, spec):
    kept = []

    def after(_optimizer, model):
        averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
        kept.append(averaged)
        return lambda: averaged.update_parameters(model)

    return plain_torch(task, spec, plain_sgd, after=after), kept[0].module


def test_one_rank_is_torchs_averaged_model(arena, regression, plain_torch) -> None:
    task, spec = normed(regression), arena.spec(optimizer=SGD, train={**EMA, "eval_every": 4})
    (rank,) = arena.train(task, spec, 1)
    model, averaged = averaged_by_torch(plain_torch, task, spec)
    assert all(map(torch.equal, rank.parameters(), model.parameters()))
    own = rank.replica.averages.named
    expected = dict(averaged.named_parameters())
    assert own.keys() == {name for name, p in expected.items() if p.requires_grad}
    for name, value in own.items():
        assert torch.equal(value, expected[name]), name
    assert any(
        not torch.equal(value, dict(model.named_parameters())[n]) for n, value in own.items()
    )

    averaged.eval()
    x, y = task.rows.x, task.rows.y
    loss = float(((averaged(x) - y) ** 2).mean().detach())
    assert rank.outcome.metrics["loss"] == pytest.approx(loss, abs=1e-12)


def test_checkpoints_hold_both(arena, regression, plain_torch) -> None:
    task, spec = normed(regression), arena.spec(optimizer=SGD, train=EMA)
    (rank,) = arena.train(task, spec, 1)
    saved = list_checkpoints(arena.directory / "w0/checkpoints", "job")[0]
    model, averaged = averaged_by_torch(plain_torch, task, spec)
    loaded, last = task.build_model(), task.build_model()
    load_weights(last, saved / "model.safetensors")
    assert all(map(torch.equal, last.state_dict().values(), model.state_dict().values()))
    load_weights(loaded, saved / "model.safetensors", saved / "ema.safetensors")
    assert all(map(torch.equal, loaded.parameters(), averaged.parameters()))
    assert all(map(torch.equal, loaded.buffers(), model.buffers()))
    assert load_file(saved / "ema.safetensors").keys() == rank.replica.averages.named.keys()


def test_a_broken_job_a_joiner_and_a_stopped_one_end_alike(arena, regression) -> None:
    task = normed(regression)
    spec = arena.spec(optimizer=SGD, train={**EMA, "eval_every": 3})
    (whole,) = arena.train(task, spec, 1, job_id="whole")

    broken = arena.start(task, spec, name="broken", job_id="broken")
    arena.generation([broken], wrap=lambda _, inner: Cut(inner, 5))
    assert isinstance(broken.error, RingBroken)
    broken.run.adopt_local(1, 5)
    joiner = arena.start(task, spec, name="joiner", job_id="broken")
    arena.copy_state(broken, joiner)
    assert joiner.digest == broken.digest
    arena.generation([joiner], generation=2)
    assert joiner.outcome.digest == whole.outcome.digest

    first = arena.start(task, spec, job_id="halves", ask=lambda step: Flags(stop=step == 5))
    arena.generation([first])
    first.run.close()
    second = arena.start(task, spec, job_id="halves")
    held = second.run.held()
    second.run.adopt_local(held.generation, held.step)
    arena.generation([second], generation=2)
    assert second.outcome.digest == whole.outcome.digest
    assert second.outcome.metrics == whole.outcome.metrics


def test_ranks_hold_the_same_averages_and_they_are_in_the_digest(arena, regression) -> None:
    ranks = arena.train(normed(regression), arena.spec(optimizer=SGD, train=EMA), 3)
    assert len({rank.outcome.digest for rank in ranks}) == 1
    first = next(iter(ranks[1].replica.averages.named.values()))
    first.view(-1)[0] += 1e-9
    assert ranks[1].digest != ranks[0].digest


def test_a_skipped_step_moves_nothing_and_a_fresh_start_forgets(arena, regression) -> None:
    class Task(regression):
        def loss(self, model, batch):
            return super().loss(model, batch) * float("nan")

    rank = arena.start(Task(), arena.spec(train=EMA))
    before = {name: value.clone() for name, value in rank.replica.averages.named.items()}
    arena.generation([rank])
    assert rank.outcome.skipped == 9
    for name, value in rank.replica.averages.named.items():
        assert torch.equal(value, before[name])

    (trained,) = arena.train(regression(), arena.spec(train=EMA), 1, job_id="trained")
    fresh = trained.run
    fresh._session.reset()
    for name, parameter in trained.model.named_parameters():
        assert torch.equal(trained.replica.averages.named[name], parameter)


@pytest.mark.parametrize("mode", ["resume", "weights"])
def test_averages_begin_where_another_job_had_none(arena, regression, mode) -> None:
    arena.train(regression(), arena.spec(), 1, job_id="parent")
    spec = arena.spec(job={"steps": 12}, train=EMA)
    child = arena.start(
        regression(),
        spec,
        name="w0",
        job_id="child",
        init_from=InitFrom(job_id="parent", step=None, mode=mode),
    )
    held = child.run.held()
    child.run.adopt_local(held.generation, held.step)
    for name, parameter in child.model.named_parameters():
        assert torch.equal(child.replica.averages.named[name], parameter)
    arena.generation([child], generation=2)
    assert child.outcome.kind == "finished"


# --- what may change where ---------------------------------------------------------------------


def changing(regression, change):
    class Task(regression):
        def build_model(self):
            model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
            model[2].requires_grad_(requires_grad=False)
            return model

        def loss(self, model, batch):
            change(model)
            return super().loss(model, batch)

    return Task()


def second_optimizer(model) -> None:
    optimizer = torch.optim.SGD([model[0].weight], lr=0.1)
    model[0].weight.square().sum().backward()
    optimizer.step()
    model[0].weight.grad = None


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (
            lambda model: model[0].weight.data.clamp_(-0.1, 0.1),
            "changes parameters itself: 0.weight",
        ),
        (lambda model: model[2].bias.add_(1.0), "changes parameters itself: 2.bias"),
        (second_optimizer, r"calls backward\(\) itself: 0.weight"),
    ],
)
def test_a_loss_that_changes_parameters_is_named_at_once(arena, regression, change, what) -> None:
    rank = arena.start(changing(regression, change), arena.spec())
    arena.generation([rank])
    assert rank.run.committed_step == 0
    with pytest.raises(TaskError, match=rf"loss\(\) of the task {what}"):
        raise rank.error


class Kept(nn.Module):
    """Keeps an average of its weight in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 3), nn.BatchNorm1d(3)
        self.register_buffer("kept", torch.zeros(3, 6))

    def forward(self, x):
        return self.norm(self.linear(x))

    def keep(self, *_) -> None:
        with torch.no_grad():
            self.kept.lerp_(self.linear.weight, 0.25)
            self.norm.running_mean.clamp_(-0.1, 0.1)


@pytest.mark.parametrize("world_size", [1, 3])
def test_buffers_that_a_hook_of_the_optimizer_changes_are_state(
    arena, regression, plain_torch, world_size
) -> None:
    class Task(regression):
        def build_model(self):
            self.model = Kept().double()
            return self.model

        def build_optimizer(self, params):
            optimizer = plain_sgd(params)
            optimizer.register_step_post_hook(self.model.keep)
            return optimizer

    spec = arena.spec()
    ranks = arena.train(Task(), spec, world_size)
    assert len({rank.outcome.digest for rank in ranks}) == 1
    task = Task()
    expected = plain_torch(task, spec, task.build_optimizer)
    assert float(expected.kept.abs().max()) > 0.01
    for name, buffer in expected.named_buffers():
        if world_size == 1:
            assert torch.equal(ranks[0].model.get_buffer(name), buffer), name
    assert float(ranks[-1].model.norm.running_mean.abs().max()) <= 0.1
