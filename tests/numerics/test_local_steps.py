"""Rounds of local steps: plain torch's numbers, the same bytes when redone, rows exactly once."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from torch import nn

from dtd.engine.control_word import Flags
from dtd.engine.rounds import Rounds
from dtd.engine.sampler import Position, advance, slice_bounds
from dtd.errors import CheckpointError
from dtd.train.data.sampling import batch_rows
from dtd.train.record import InitFrom
from tests.numerics.cuts import Cut, a_row_of_the_second_step, poisonous, ranks_of

pytestmark = pytest.mark.numerics

TOLERANCE = 1e-12
SGD = {"name": "sgd", "lr": 0.1, "momentum": 0.9}
DILOCO = {"name": "diloco", "inner_steps": 4, "outer_lr": 0.7, "outer_momentum": 0.9}
LOCAL = {"name": "local_sgd", "inner_steps": 4}


def distance(first, second) -> float:
    pairs = zip(first, second, strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def written_out(task, spec, world_size, inner, outer=None, clip_norm=0.0, rates=None):
    """Local steps in plain torch: a replica a rank, and the mean of what they come to."""
    torch.manual_seed(spec.job.seed)
    model = task.build_model()
    replicas = [copy.deepcopy(model) for _ in range(world_size)]
    optimizers = [inner(replica.parameters()) for replica in replicas]
    outer_optimizer = outer(model.parameters()) if outer is not None else None
    data, position, step = task.train_dataset(), Position(0, 0), 0
    rounds = Rounds.of(spec.strategy)
    while step < spec.job.steps:
        end = rounds.end(step, spec.job.steps)
        for replica in replicas:
            replica.load_state_dict(model.state_dict())
        used = [0] * world_size
        for now in range(step, end):
            rows = batch_rows(
                seed=spec.job.seed,
                position=position,
                global_batch_size=spec.job.global_batch_size,
                length=len(data),
            )
            for rank in range(world_size):
                start, stop = slice_bounds(len(rows), world_size, rank)
                used[rank] += stop - start
                for group in optimizers[rank].param_groups:
                    group["lr"] = rates(now) if rates is not None else group["lr"]
                if start == stop:
                    continue
                batch = data.fetch(rows[start:stop], epoch=position.epoch, seed=spec.job.seed)
                optimizers[rank].zero_grad()
                task.loss(replicas[rank], batch).backward()
                if clip_norm:
                    torch.nn.utils.clip_grad_norm_(replicas[rank].parameters(), clip_norm)
                optimizers[rank].step()
            position = advance(position, len(rows), len(data))
        average(model, replicas, [count / sum(used) for count in used], outer_optimizer)
        step = end
    return model


def average(model, replicas, parts, outer) -> None:
    for name, parameter in model.named_parameters():
        mean = sum(
            part * dict(replica.named_parameters())[name].detach()
            for part, replica in zip(parts, replicas, strict=True)
        )
        if outer is None:
            parameter.data.copy_(mean)
        else:
            parameter.grad = parameter.detach() - mean
    if outer is not None:
        outer.step()
    for name, buffer in model.named_buffers():
        if buffer.is_floating_point():
            buffer.copy_(
                sum(
                    part * dict(replica.named_buffers())[name]
                    for part, replica in zip(parts, replicas, strict=True)
                )
            )


def cut_together(method: str, calls: int):
    meeting = threading.Barrier(2)
    return lambda _, inner: Cut(inner, 2, method=method, call=calls, meet=meeting.wait)


# --- the published algorithms --------------------------------------------------------------------


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("clip_norm", [0.0, 0.2])
def test_local_sgd_is_the_mean_of_weights(arena, regression, world_size, clip_norm) -> None:
    """18 steps: rounds of 4 and a last one of 2, over the ends of epochs with short batches."""
    spec = arena.spec(
        job={"steps": 18}, optimizer=SGD, strategy=LOCAL, train={"clip_norm": clip_norm}
    )
    ranks = arena.train(regression(), spec, world_size)
    expected = written_out(
        regression(),
        spec,
        world_size,
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        clip_norm=clip_norm,
    )
    assert distance(ranks[0].parameters(), expected.parameters()) < TOLERANCE
    assert len({rank.outcome.digest for rank in ranks}) == 1
    assert [record.step for record in ranks[0].recorder.steps] == [4, 8, 12, 16, 18]
    assert [record.steps for record in ranks[0].recorder.steps] == [4, 4, 4, 4, 2]
    assert not any(rank.replica.ledger.rows_missing for rank in ranks)
    assert not any(rank.replica.ledger.rows_repeated for rank in ranks)


def test_diloco_is_nesterovs_step_by_the_mean_change(arena, regression) -> None:
    spec = arena.spec(
        job={"steps": 14},
        optimizer={"name": "adamw", "lr": 0.01, "weight_decay": 0.1},
        schedule={"name": "cosine", "warmup_steps": 2},
        strategy=DILOCO,
    )
    ranks = arena.train(regression(), spec, 2)

    def rate(step: int) -> float:
        if step < 2:
            return 0.01 * (step + 1) / 2
        return 0.005 * (1.0 + float(torch.cos(torch.tensor((step - 2) / 12 * torch.pi).double())))

    expected = written_out(
        regression(),
        spec,
        2,
        lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, lr=0.7, momentum=0.9, nesterov=True),
        rates=rate,
    )
    assert distance(ranks[0].parameters(), expected.parameters()) < 1e-9
    assert len({rank.outcome.digest for rank in ranks}) == 1
    assert [record.lr for record in ranks[0].recorder.steps] == pytest.approx(
        [rate(step) for step in (3, 7, 11, 13)]
    )


def test_a_round_of_one_step_is_a_replicated_step(arena, regression, plain_torch) -> None:
    strategy = {"name": "diloco", "inner_steps": 1, "outer_lr": 1.0, "outer_momentum": 0.0}
    spec = arena.spec(optimizer={"lr": 0.2}, strategy=strategy)
    ranks = arena.train(regression(48), spec, 3)
    expected = plain_torch(regression(48), spec, lambda p: torch.optim.SGD(p, lr=0.2))
    assert distance(ranks[0].parameters(), expected.parameters()) < TOLERANCE


def test_training_is_replicated_until_the_start_step(arena, regression, plain_torch) -> None:
    """Adam and clipping: in local steps of one each the numbers would be others."""
    early = arena.spec(
        job={"steps": 6},
        optimizer={"name": "adam", "lr": 0.01},
        train={"clip_norm": 0.3},
    )
    spec = arena.spec(
        job={"steps": 6},
        optimizer={"name": "adam", "lr": 0.01},
        train={"clip_norm": 0.3},
        strategy={**LOCAL, "local_start_step": 6},
    )
    ranks = arena.train(regression(), spec, 3)
    expected = plain_torch(
        regression(), early, lambda p: torch.optim.Adam(p, lr=0.01), clip_norm=0.3
    )
    assert distance(ranks[0].parameters(), expected.parameters()) < TOLERANCE


def test_rounds_begin_at_the_start_step_and_grow(arena, regression) -> None:
    strategy = {
        "name": "local_sgd",
        "inner_steps": 2,
        "local_start_step": 3,
        "inner_steps_double_every": 4,
        "inner_steps_max": 8,
    }
    ranks = arena.train(regression(), arena.spec(job={"steps": 23}, strategy=strategy), 2)
    steps = [record.step for record in ranks[0].recorder.steps]
    assert steps == [1, 2, 3, 5, 7, 11, 19, 23]
    assert len({rank.outcome.digest for rank in ranks}) == 1


def test_running_buffers_are_averaged_at_each_round(arena, regression) -> None:
    class Task(WithBatchNorm, regression):
        pass

    spec = arena.spec(job={"steps": 8}, strategy=LOCAL)
    ranks = arena.train(Task(48), spec, 2)
    expected = written_out(Task(48), spec, 2, lambda p: torch.optim.SGD(p, lr=0.1))
    names = [name for name, b in expected.named_buffers() if b.is_floating_point()]
    for name in names:
        mine, theirs = ranks[0].model.get_buffer(name), expected.get_buffer(name)
        assert distance([mine], [theirs]) < TOLERANCE
    assert distance(ranks[0].parameters(), expected.parameters()) < TOLERANCE


class WithBatchNorm:
    """A regression task's network with BatchNorm."""

    def build_model(self):
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()


def test_statistics_are_those_of_the_weights_after_the_outer_step(arena, regression) -> None:
    """Two batches of the last round, of each rank, go through the final weights."""

    class Task(WithBatchNorm, regression):
        pass

    spec = arena.spec(job={"steps": 12}, optimizer=SGD, strategy=DILOCO)
    ranks = arena.train(Task(48), spec, 2)
    linear, norm, _ = ranks[0].model
    means, variances = [], []
    for weight, offset in ((0.9, 32), (1.0, 40)):  # momentum 0.1, corrected: a mean of the two
        rows = batch_rows(seed=3, position=Position(1, offset), global_batch_size=8, length=48)
        for half in (rows[:4], rows[4:]):
            inner = linear(Task(48).rows.x[half])
            means.append(inner.mean(0) * weight / 1.9 / 2)
            variances.append(inner.var(0) * weight / 1.9 / 2)
    assert distance([norm.running_mean, norm.running_var], [sum(means), sum(variances)]) < TOLERANCE
    assert int(norm.num_batches_tracked) == 12, "those of training"
    assert not ranks[0].outcome.rows_repeated
    assert len({rank.outcome.digest for rank in ranks}) == 1


# --- what dtd promises ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "call"), [("start", 0), ("start", 1), ("wait", 1), ("gather", 0)]
)
def test_a_redone_round_has_the_same_bytes(arena, regression, method, call) -> None:
    """Adam's state is each rank's own, and BatchNorm's statistics change with every forward."""

    class Task(WithBatchNorm, regression):
        pass

    spec = arena.spec(job={"steps": 18}, optimizer={"name": "adam", "lr": 0.01}, strategy=DILOCO)
    whole = arena.train(Task(48), spec, 2, job_id="whole")[0].outcome.digest
    ranks = ranks_of(arena, Task(48), spec, 2, name=f"{method}{call}")

    arena.generation(ranks, wrap=cut_together(method, call))
    assert {rank.run.held().step for rank in ranks} == {8}, "the third round is not committed"
    prepared = {rank.run.prepared_key for rank in ranks}
    assert prepared == ({(1, 12)} if method == "gather" else {None})
    for rank in ranks:
        rank.run.adopt_local(1, 8)
    arena.generation(ranks, generation=2)
    assert {rank.outcome.digest for rank in ranks} == {whole}


def test_survivors_commit_a_prepared_round(arena, regression) -> None:
    spec = arena.spec(job={"steps": 18}, optimizer=SGD, strategy=DILOCO)
    whole = arena.train(regression(), spec, 2, job_id="whole")[0].outcome.digest
    ranks = ranks_of(arena, regression(), spec, 2)
    arena.generation(ranks, wrap=cut_together("gather", 0))
    for rank in ranks:
        rank.run.adopt_local(1, 12)
    assert {rank.run.held().step for rank in ranks} == {12}
    assert {rank.replica.ledger.rows_missing for rank in ranks} == {0}
    arena.generation(ranks, generation=2)
    assert {rank.outcome.digest for rank in ranks} == {whole}


def test_a_joiner_begins_with_no_inner_state_and_the_shared_outer_momentum(
    arena, regression
) -> None:
    spec = arena.spec(job={"steps": 16}, optimizer=SGD, strategy=DILOCO)
    donor = ranks_of(arena, regression(), spec, 1)[0]
    donor.recorder.ask = lambda steps: Flags(yield_=steps == 1)
    arena.generation([donor])
    assert donor.outcome.step == 8
    assert donor.replica.optimizer.state
    (joiner,) = ranks_of(arena, regression(), spec, 1, name="j")
    arena.copy_state(donor, joiner)
    assert not joiner.replica.optimizer.state
    assert distance(joiner.replica.shared.values(), donor.replica.shared.values()) == 0.0
    assert any(tensor.any() for tensor in joiner.replica.shared.values())
    assert joiner.digest == donor.digest
    donor.run.adopt_local(1, 8)
    arena.generation([donor, joiner], generation=2)
    assert donor.outcome.digest == joiner.outcome.digest


def test_a_change_that_is_not_finite_is_skipped_by_all(arena, regression) -> None:
    """The loss of a row of one rank is NaN: all skip that round, and no other."""
    task = poisonous(regression(48), rows=[a_row_of_the_second_step()])
    spec = arena.spec(job={"steps": 6}, optimizer=SGD, strategy={**DILOCO, "inner_steps": 2})
    ranks = arena.train(task, spec, 2)
    assert [record.skipped for record in ranks[1].recorder.steps] == [True, False, False]
    assert {rank.outcome.skipped for rank in ranks} == {2}
    assert len({rank.outcome.digest for rank in ranks}) == 1
    spec = arena.spec(job={"steps": 2}, strategy={**DILOCO, "inner_steps": 2})
    fresh = arena.train(task, spec, 2, job_id="f")
    torch.manual_seed(3)
    assert distance(fresh[0].parameters(), task.build_model().parameters()) == 0.0


def test_what_falls_due_in_a_round_happens_at_its_end(arena, regression) -> None:
    class Task(regression):
        def eval_dataset(self):
            return self.rows

        def metrics(self, model, batch):
            x, y = batch
            return {"loss": (((model(x) - y) ** 2).mean(1).sum(), len(x))}

    spec = arena.spec(
        job={"epochs": 3},
        strategy=LOCAL,
        train={"eval_every": 6},
        checkpoint={"every_steps": 5},
    )
    ranks = arena.train(Task(50), spec, 2)
    recorder = ranks[0].recorder
    assert [record.step for record in recorder.steps] == [4, 8, 12, 16, 20, 21]
    assert [record.step for record in recorder.evals] == [8, 12, 20, 21]
    assert [record.step for record in recorder.checkpoints] == [8, 12, 16, 20, 21]
    assert ranks[0].outcome.rows_missing == ranks[0].outcome.rows_repeated == 0


def test_a_loaded_checkpoint_goes_on_with_the_outer_momentum(arena, regression) -> None:
    """With plain SGD inside there is no inner state, so it ends as if it had not been loaded."""
    spec = arena.spec(
        job={"steps": 16}, strategy=DILOCO, checkpoint={"every_steps": 8}, optimizer={"lr": 0.1}
    )
    whole = arena.train(regression(), spec, 2, job_id="whole")[0].outcome.digest
    ranks = ranks_of(arena, regression(), spec, 2)
    ranks[0].recorder.ask = lambda steps: Flags(stop=steps == 1)
    arena.generation(ranks, writers=frozenset({0, 1}))
    assert {rank.outcome.step for rank in ranks} == {8}
    again = [arena.start(regression(), spec, name=f"w{i}") for i in range(2)]
    for rank in again:
        held = rank.run.held()
        assert (held.where, held.step) == ("checkpoint", 8)
        rank.run.adopt_local(held.generation, held.step)
    arena.generation(again, generation=2)
    assert {rank.outcome.digest for rank in again} == {whole}


def test_a_state_of_another_strategy_is_refused(arena, regression) -> None:
    arena.train(regression(), arena.spec(job={"steps": 4}), 1, job_id="parent")
    spec = arena.spec(job={"steps": 8}, strategy=DILOCO)
    parent = InitFrom(job_id="parent", step=None, mode="resume")
    rank = arena.start(regression(), spec, name="w0", init_from=parent)
    with pytest.raises(CheckpointError, match='"replicated", and this one has "diloco"') as caught:
        rank.run.adopt_local(1, 4)
    assert "weights only" in caught.value.remedy


def test_averages_and_a_schedule_of_the_task_count_local_steps(arena, regression) -> None:
    class Task(regression):
        def build_schedule(self, optimizer, total_steps):
            return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))

    spec = arena.spec(job={"steps": 10}, strategy=LOCAL, train={"ema_decay": 0.5})
    ranks = arena.train(Task(), spec, 2)
    expected = written_out(
        Task(), spec, 2, lambda p: torch.optim.SGD(p, lr=0.1), rates=lambda step: 0.1 / (1 + step)
    )
    assert distance(ranks[0].parameters(), expected.parameters()) < TOLERANCE
    assert ranks[0].replica.schedule.state({})["last_epoch"] == 10
    assert len({rank.outcome.digest for rank in ranks}) == 1


@pytest.mark.parametrize("codec", ["bfloat16", "float16", "int8", "powersgd"])
def test_changes_travel_as_the_codec_says(arena, regression, codec) -> None:
    class Task(regression):
        def build_model(self):
            return nn.Sequential(nn.Linear(6, 48), nn.Linear(48, 3))

        def loss(self, model, batch):
            return ((model(batch[0].float()) - batch[1].float()) ** 2).mean()

    strategy = {**LOCAL, "codec": codec, **({"rank": 2} if codec == "powersgd" else {})}
    spec = arena.spec(job={"steps": 16}, strategy=strategy, sync={"bucket_mib": 0.01})
    ranks = arena.train(Task(), spec, 2)
    expected = written_out(Task(), spec, 2, lambda p: torch.optim.SGD(p, lr=0.1))
    near = 0.1 if codec == "powersgd" else 0.01
    assert 0.0 < distance(ranks[0].parameters(), expected.parameters()) < near
    assert len({rank.outcome.digest for rank in ranks}) == 1
