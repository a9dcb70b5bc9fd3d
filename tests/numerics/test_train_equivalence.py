"""Any number of ranks trains the same model as one process with plain torch."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.numerics

TOLERANCE = 1e-12
WORLDS = [1, 3, 4]


def distance(first, second) -> float:
    pairs = zip(first, second, strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("accumulation", [1, 3])
def test_momentum_and_clipping(arena, regression, plain_torch, world_size, accumulation) -> None:
    spec = arena.spec(
        optimizer={"name": "sgd", "lr": 0.2, "momentum": 0.9, "weight_decay": 0.01},
        train={"clip_norm": 0.3, "grad_accumulation": accumulation},
    )
    ranks = arena.train(regression(), spec, world_size)
    expected = plain_torch(
        regression(),
        spec,
        lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.9, weight_decay=0.01),
        clip_norm=0.3,
    )
    assert any(record.grad_norm > 0.3 for record in ranks[0].recorder.steps), "nothing was clipped"
    assert distance(ranks[0].parameters(), expected.parameters()) < TOLERANCE
    assert len({rank.outcome.digest for rank in ranks}) == 1
    assert [r.loss for r in ranks[0].recorder.steps] == [r.loss for r in ranks[-1].recorder.steps]


def test_one_rank_is_plain_torch_bit_for_bit(arena, regression, plain_torch) -> None:
    spec = arena.spec(optimizer={"name": "adamw", "lr": 0.01, "weight_decay": 0.1})
    (rank,) = arena.train(regression(), spec, 1)
    expected = plain_torch(
        regression(), spec, lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, fused=True)
    )
    assert distance(rank.parameters(), expected.parameters()) == 0.0


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_without_rows_contribute_nothing(arena, regression, plain_torch, world_size) -> None:
    task, spec = regression(length=13), arena.spec(job={"global_batch_size": 3, "steps": 10})
    ranks = arena.train(task, spec, world_size)
    expected = plain_torch(task, spec, lambda p: torch.optim.SGD(p, lr=0.1))
    assert distance(ranks[0].parameters(), expected.parameters()) < TOLERANCE
    assert {record.rows for record in ranks[0].recorder.steps} == {3, 1}


@pytest.mark.parametrize("world_size", WORLDS)
def test_weighted_loss(arena, regression, plain_torch, world_size) -> None:
    class Weighted(regression):
        def loss(self, model, batch):
            x, y = batch
            weights = (x[:, 0] > 0).double() + 0.25
            return (((model(x) - y) ** 2).mean(1) * weights).sum(), weights.sum()

    spec = arena.spec(train={"grad_accumulation": 2})
    ranks = arena.train(Weighted(), spec, world_size)
    expected = plain_torch(Weighted(), spec, lambda p: torch.optim.SGD(p, lr=0.1))
    assert distance(ranks[0].parameters(), expected.parameters()) < TOLERANCE


class Branches(nn.Module):
    """`never` gets no gradient, `sometimes` one for some rows only, `tied` is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.tied = nn.Linear(6, 6)
        self.again = self.tied
        self.never = nn.Linear(6, 6)
        self.sometimes = nn.Linear(6, 3)
        self.always = nn.Linear(6, 3)
        self.frozen = nn.Linear(3, 3)
        self.frozen.requires_grad_(requires_grad=False)

    def forward(self, x):
        x = self.again(torch.tanh(self.tied(x)))
        chosen = x[:, 0] > 0.5
        out = self.always(x)
        if chosen.any():
            out = out + chosen.double()[:, None] * self.sometimes(x)
        return self.frozen(out)


@pytest.mark.parametrize("world_size", WORLDS)
def test_missing_shared_and_frozen_parameters(arena, regression, plain_torch, world_size) -> None:
    class Task(regression):
        def build_model(self):
            return Branches().double()

    # Momentum and weight decay would move a parameter whose gradient is zero instead of None.
    spec = arena.spec(optimizer={"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1})
    ranks = arena.train(Task(), spec, world_size)
    expected = plain_torch(
        Task(), spec, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1)
    )
    assert distance(ranks[0].parameters(), expected.parameters()) < TOLERANCE
    torch.manual_seed(spec.job.seed)
    assert torch.equal(ranks[0].model.never.weight, Branches().double().never.weight)
    assert all(parameter.grad is None for parameter in ranks[0].model.parameters())


class Normed(nn.Module):
    """BatchNorm, and a constant buffer that must stay as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.norm = nn.BatchNorm1d(5)
        self.last = nn.Linear(5, 3)
        self.register_buffer("constant", torch.tensor([0.1, float("-inf"), 1 / 3]))

    def forward(self, x):
        return self.last(self.norm(self.first(x)))


def normed(regression):
    class Task(regression):
        def build_model(self):
            return Normed().double()

    return Task()


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_batch_norm_buffers_are_averaged_by_rows(arena, regression, world_size) -> None:
    task = normed(regression)
    spec = arena.spec(job={"steps": 1, "global_batch_size": 7})
    ranks = arena.train(task, spec, world_size)

    torch.manual_seed(spec.job.seed)
    model = task.build_model()
    rows = list(ranks[0].run._session.plan.share(0, rank=0, world_size=1).requests[0].rows)
    mean, cuts = torch.zeros(5).double(), [7 * r // world_size for r in range(world_size + 1)]
    for start, stop in itertools.pairwise(cuts):
        hidden = model.first(task.rows.x[rows[start:stop]])
        mean += (stop - start) / 7 * 0.1 * hidden.mean(0)
    norm = ranks[0].model.norm
    assert distance([norm.running_mean], [mean]) < TOLERANCE
    assert int(norm.num_batches_tracked) == 1
    assert torch.equal(ranks[0].model.constant, model.constant)
    assert len({rank.outcome.digest for rank in ranks}) == 1


class Keeping(nn.Module):
    """A linear layer that keeps what no float64 holds, and maxima that begin at -inf."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("rows", torch.tensor(2**53 + 1))
        self.register_buffer("top", torch.full((3,), float("-inf")))
        self.register_buffer("begun", torch.tensor(1e300, dtype=torch.float64))
        self.register_buffer("narrow", torch.zeros(3, dtype=torch.bfloat16))

    def forward(self, x):
        out = self.linear(x)
        with torch.no_grad():
            self.rows += 2
            self.top = torch.maximum(self.top, out.float().amax(0))
            self.begun.fill_(1 / 3)
            self.narrow.copy_(out.mean(0))
        return out


@pytest.mark.parametrize("world_size", [1, 3])
def test_buffers_of_every_type_stay_what_they_are(
    arena, regression, plain_torch, world_size
) -> None:
    class Task(regression):
        def build_model(self):
            model = Keeping()
            model.linear.double()
            return model

        def loss(self, model, batch):
            x, y = batch
            return ((model(x) - y) ** 2).mean()

    spec = arena.spec()
    ranks = arena.train(Task(), spec, world_size)
    expected = plain_torch(Task(), spec, lambda p: torch.optim.SGD(p, lr=0.1, fused=True))
    assert len({rank.outcome.digest for rank in ranks}) == 1
    for name, buffer in expected.named_buffers():
        own = ranks[0].model.get_buffer(name)
        assert own.dtype == buffer.dtype
        assert torch.isfinite(own).all()
        if world_size == 1 or name in ("rows", "begun"):
            assert torch.equal(own, buffer), name


def test_a_rank_without_rows_takes_over_the_buffers(arena, regression) -> None:
    class Task(regression):
        def build_model(self):
            return nn.Sequential(
                nn.Unflatten(1, (1, 2, 3)), nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(6, 3)
            ).double()

    spec = arena.spec(job={"steps": 4, "global_batch_size": 2})
    ranks = arena.train(Task(), spec, 3)
    assert len({rank.outcome.digest for rank in ranks}) == 1
    assert int(ranks[0].model[1].num_batches_tracked) == 4
    assert float(ranks[0].model[1].running_mean) != 0.0


def test_slices_never_become_too_small_for_batch_statistics(arena, regression) -> None:
    ranks = arena.train(normed(regression), arena.spec(), 6)  # 8 rows a step, 2 in the last one
    assert {rank.outcome.kind for rank in ranks} == {"finished"}
    assert len({rank.outcome.digest for rank in ranks}) == 1
    assert (ranks[0].outcome.rows_missing, ranks[0].outcome.rows_repeated) == (0, 0)


@pytest.mark.parametrize("world_size", [1, 3])
def test_skipped_steps_change_nothing_but_the_counters(arena, regression, world_size) -> None:
    bad_row = 5

    class Poisoned(regression):
        def build_model(self):
            return Normed().double()

        def loss(self, model, batch):
            x, y = batch
            loss = ((model(x) - y) ** 2).mean()
            poison = (x == self.rows.x[bad_row]).all(1).any()
            return loss * float("nan") if poison else loss

    spec = arena.spec(
        job={"epochs": 1, "global_batch_size": 10},
        optimizer={"name": "adam", "lr": 0.01},
        schedule={"name": "cosine"},
    )
    ranks = arena.train(Poisoned(), spec, world_size)
    for rank in ranks:
        skipped = [record.skipped for record in rank.recorder.steps]
        assert skipped.count(True) == 1
        counts = [record.skipped_steps for record in rank.recorder.steps]
        assert counts == list(itertools.accumulate(map(int, skipped)))
        assert rank.outcome.skipped == 1
        assert rank.replica.updates == 4
        assert (rank.replica.step, rank.replica.epoch, rank.replica.offset) == (5, 1, 0)
        assert int(rank.model.norm.num_batches_tracked) == 4
        assert int(rank.replica.optimizer.state_dict()["state"][0]["step"]) == 4
    assert len({rank.outcome.digest for rank in ranks}) == 1
    assert ranks[0].outcome.rows_missing == ranks[0].outcome.rows_repeated == 0


@pytest.mark.parametrize("world_size", [2, 4])
def test_bucket_sizes_do_not_change_the_sum_of_two(
    arena, regression, plain_torch, world_size
) -> None:
    results = []
    for sync in ({"bucket_mib": 0.0001, "first_bucket_mib": 0.00005}, {"bucket_mib": 4.0}):
        ranks = arena.train(regression(), arena.spec(sync=sync), world_size)
        results.append(ranks[0].parameters())
    assert distance(*results) < TOLERANCE


@pytest.mark.parametrize("world_size", [1, 2])
def test_activation_checkpointing_changes_nothing(arena, regression, world_size) -> None:
    class Task(regression):
        def build_model(self):
            return nn.Sequential(
                nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)
            ).double()

    digests = [
        arena.train(
            Task(length=48), arena.spec(train={"activation_checkpointing": flag}), world_size
        )[0].outcome.digest
        for flag in (False, True)
    ]
    assert digests[0] == digests[1]


def test_evaluation_does_not_depend_on_the_number_of_ranks(arena, regression) -> None:
    class Task(regression):
        def eval_dataset(self):
            return self.rows

        def metrics(self, model, batch):
            x, y = batch
            error = (model(x) - y).abs()
            return {"error": (error.sum(), error.numel())}

    results = {}
    for world_size in WORLDS:
        spec = arena.spec(job={"steps": 7}, train={"eval_every": 3, "eval_batch_size": 4})
        ranks = arena.train(Task(), spec, world_size)
        assert [record.step for record in ranks[0].recorder.evals] == [3, 6, 7]
        for rank in ranks:
            own = [record.metrics for record in rank.recorder.evals]
            assert own == [record.metrics for record in ranks[0].recorder.evals]
            assert rank.outcome.metrics == own[-1]
        results[world_size] = ranks[0].recorder.evals[-1].metrics
    for metrics in results.values():
        assert metrics == pytest.approx(results[1], abs=1e-10)
    assert set(results[1]) == {"error", "loss"}
