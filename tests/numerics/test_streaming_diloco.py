"""Streaming DiLoCo: the published algorithm, the same bytes when redone, drift kept apart."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from dtd.engine.control_word import Flags
from dtd.engine.sampler import Position, advance, slice_bounds
from dtd.errors import TaskError
from dtd.strategy.diloco import cut
from dtd.train.data.sampling import batch_rows
from tests.numerics.cuts import a_row_of_the_second_step, poisonous, ranks_of
from tests.numerics.test_local_steps import cut_together, distance

pytestmark = pytest.mark.numerics

STREAMING = {
    "name": "streaming_diloco",
    "inner_steps": 6,
    "fragments": 3,
    "mixing": 0.25,
    "outer_lr": 0.7,
    "outer_momentum": 0.9,
}
ADAM = {"name": "adam", "lr": 0.02}


def written_out(task, spec, world_size, inner):
    """The algorithm of arXiv:2501.18512 as it stands there: each worker keeps its own weights."""
    table = spec.strategy
    torch.manual_seed(spec.job.seed)
    model = task.build_model()
    workers = [copy.deepcopy(model) for _ in range(world_size)]
    optimizers = [inner(worker.parameters()) for worker in workers]
    shared = list(model.parameters())
    own = [list(worker.parameters()) for worker in workers]
    groups = cut([p.numel() for p in shared], table.fragments)
    outers = [
        torch.optim.SGD([shared[i] for i in group], lr=0.7, momentum=0.9, nesterov=True)
        for group in groups
    ]
    data, position = task.train_dataset(), Position(0, 0)
    unit = table.inner_steps // table.fragments
    for number in range(spec.job.steps // unit):
        turn = number % table.fragments
        sent = {
            i: sum((shared[i] - mine[i]).detach() for mine in own) / world_size
            for i in groups[turn]
        }
        for _ in range(unit):
            rows = batch_rows(
                seed=spec.job.seed, position=position, global_batch_size=8, length=len(data)
            )
            for rank, worker in enumerate(workers):
                start, stop = slice_bounds(len(rows), world_size, rank)
                batch = data.fetch(rows[start:stop], epoch=position.epoch, seed=spec.job.seed)
                optimizers[rank].zero_grad()
                task.loss(worker, batch).backward()
                optimizers[rank].step()
            position = advance(position, len(rows), len(data))
        for i, change in sent.items():
            shared[i].grad = change
        outers[turn].step()
        with torch.no_grad():
            for mine in own:
                for i in groups[turn]:
                    mine[i].mul_(table.mixing).add_(shared[i], alpha=1 - table.mixing)
    return model


def test_it_is_the_published_algorithm(arena, regression) -> None:
    spec = arena.spec(job={"steps": 24}, optimizer=ADAM, strategy=STREAMING)
    ranks = arena.train(regression(48), spec, 2)
    expected = written_out(regression(48), spec, 2, lambda p: torch.optim.Adam(p, lr=0.02))
    assert distance(ranks[0].parameters(), expected.parameters()) < 1e-9
    assert len({rank.outcome.digest for rank in ranks}) == 1
    assert [record.step for record in ranks[0].recorder.steps] == list(range(2, 25, 2))
    assert ranks[0].outcome.rows_missing == ranks[0].outcome.rows_repeated == 0
    torch.manual_seed(spec.job.seed)
    assert distance(expected.parameters(), regression(48).build_model().parameters()) > 0.01


@pytest.mark.parametrize(("method", "call"), [("start", 0), ("wait", 0), ("gather", 0)])
def test_a_redone_round_has_the_same_bytes(arena, regression, method, call) -> None:
    class Task(regression):
        def build_model(self):
            return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()

    spec = arena.spec(job={"steps": 16}, optimizer=ADAM, strategy=STREAMING)
    whole = arena.train(Task(48), spec, 2, job_id="whole")[0].outcome.digest
    ranks = ranks_of(arena, Task(48), spec, 2)
    arena.generation(ranks, wrap=cut_together(method, call))
    assert {rank.run.held().step for rank in ranks} == {4}
    for rank in ranks:
        rank.run.adopt_local(1, 4)
    arena.generation(ranks, generation=2)
    assert {rank.outcome.digest for rank in ranks} == {whole}


def test_a_joiner_has_not_drifted(arena, regression) -> None:
    spec = arena.spec(job={"steps": 16}, optimizer=ADAM, strategy=STREAMING)
    (donor,) = ranks_of(arena, regression(), spec, 1)
    donor.recorder.ask = lambda steps: Flags(yield_=steps == 1)
    arena.generation([donor])
    assert donor.outcome.step == 4
    (joiner,) = ranks_of(arena, regression(), spec, 1, name="j")
    arena.copy_state(donor, joiner)
    assert joiner.digest == donor.digest
    drifts = [rank.run._session.strategy._drift for rank in (donor, joiner)]
    assert any(tensor.any() for tensor in drifts[0])
    assert not any(tensor.any() for tensor in drifts[1])
    donor.run.adopt_local(1, 4)
    arena.generation([donor, joiner], generation=2)
    assert donor.outcome.digest == joiner.outcome.digest


def test_a_drift_that_is_not_finite_is_found_in_its_own_round(arena, regression) -> None:
    """A change leaves a round later: by then it would be in the drift that is kept."""
    task = poisonous(regression(48), rows=[a_row_of_the_second_step()])
    spec = arena.spec(job={"steps": 6}, optimizer=ADAM, strategy=STREAMING)
    ranks = arena.train(task, spec, 2)
    assert [record.skipped for record in ranks[1].recorder.steps] == [True, False, False]
    assert len({rank.outcome.digest for rank in ranks}) == 1


def test_fragments_of_about_equal_size() -> None:
    assert cut([1] * 8, 4) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert cut([10, 1, 1], 3) == [[0], [1], [2]]
    assert cut([1, 1, 10], 3) == [[0], [1], [2]]
    assert cut([5, 1, 1, 1, 5], 2) == [[0, 1, 2], [3, 4]]


def test_more_fragments_than_parameters_are_refused(arena, regression) -> None:
    spec = arena.spec(strategy={**STREAMING, "fragments": 6})
    with pytest.raises(TaskError, match="6 are more than the model's 4 trained") as caught:
        arena.start(regression(), spec)
    assert "lower it to 4" in caught.value.remedy
