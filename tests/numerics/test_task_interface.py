"""Further methods of a task, compared with plain torch in one process."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from dtd.errors import TaskError

pytestmark = pytest.mark.numerics


def close(rank, model: nn.Module) -> None:
    for mine, theirs in zip(rank.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs.detach(), rtol=1e-9, atol=1e-12)


class Uneven:
    """Rows of different lengths: nothing that torch could stack."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, row: int) -> dict[str, object]:
        draw = torch.Generator().manual_seed(row)
        values = torch.randn(1 + row % 4, generator=draw, dtype=torch.float64)
        return {"values": values, "name": None}


class Sums:
    """Learns the sum of a row's values."""

    def build_model(self) -> nn.Module:
        return nn.Linear(4, 1).double()

    def train_dataset(self) -> Uneven:
        return Uneven()

    def eval_dataset(self) -> Uneven:
        return Uneven()

    @staticmethod
    def collate(rows):
        padded = torch.zeros(len(rows), 4, dtype=torch.float64)
        for place, row in enumerate(rows):
            padded[place, : len(row["values"])] = row["values"]
        return {"values": padded, "sums": padded.sum(1, keepdim=True)}

    def loss(self, model, batch):
        return ((model(batch["values"]) - batch["sums"]) ** 2).mean()


def test_the_tasks_own_collate_makes_batches(arena) -> None:
    train = {"grad_accumulation": 2, "eval_every": 4}
    two = arena.train(Sums(), arena.spec(train=train), 2)
    one = arena.train(Sums(), arena.spec(), 1)
    for mine, theirs in zip(two[0].parameters(), one[0].parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert two[0].digest == two[1].digest
    assert two[0].outcome.rows_missing == two[0].outcome.rows_repeated == 0
    assert len(two[0].recorder.evals) == 3


def test_collate_beside_fetch_is_refused(arena, regression) -> None:
    class Both(regression):
        def collate(self, rows):
            return rows

    with pytest.raises(TaskError, match=r"dataset with fetch\(\).*remove one of the two"):
        arena.start(Both(), arena.spec())


def test_a_failing_collate_names_the_rows(arena) -> None:
    class Failing(Sums):
        def collate(self, rows):
            raise ZeroDivisionError("mine")

    with pytest.raises(TaskError, match=r"making a batch of row 0 .*ZeroDivisionError: mine"):
        arena.start(Failing(), arena.spec())


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.Tanh(), nn.LazyLinear(3)
        )

    def forward(self, x):
        return self.body(x)


def test_lazy_parameters_get_their_shapes_before_training(arena, regression) -> None:
    class Shapeless(regression):
        def build_model(self):
            return Lazy().double()

    ranks = arena.train(Shapeless(), arena.spec(), 2)
    assert ranks[0].digest == ranks[1].digest
    assert ranks[0].model.body[0].weight.shape == (8, 6)
    fresh = [arena.start(Shapeless(), arena.spec(), name=name) for name in ("a", "b")]
    assert fresh[0].digest == fresh[1].digest  # without a state from anybody
    assert float(fresh[0].model.body[1].running_mean.abs().sum()) == 0.0
    before = fresh[0].digest
    arena.generation(fresh[:1])
    fresh[0].run.forget()
    fresh[0].run.adopt_local(0, 0)
    assert fresh[0].digest == before  # lazy once more


def test_sparse_gradients_are_those_of_plain_torch(arena, regression, plain_torch) -> None:
    class Embedded(regression):
        sparse = True

        def build_model(self):
            return nn.Sequential(nn.Embedding(40, 5, sparse=self.sparse), nn.Linear(5, 3)).double()

        def loss(self, model, batch):
            x, y = batch
            return ((model((x[:, 0] * 10).long().clamp(-19, 19) + 20) - y) ** 2).mean()

    class Dense(Embedded):
        sparse = False

    spec = arena.spec(train={"grad_accumulation": 2}, optimizer={"name": "adam", "lr": 0.01})
    ranks = arena.train(Embedded(), spec, 2)
    close(ranks[0], plain_torch(Dense(), spec, partial(torch.optim.Adam, lr=0.01)))


class Drawn:
    """Rows that tell their number."""

    def __init__(self) -> None:
        self.x = torch.arange(30, dtype=torch.float64)[:, None] / 10

    def build_model(self) -> nn.Module:
        return nn.Linear(1, 1).double()

    def train_dataset(self):
        return torch.utils.data.TensorDataset(self.x)

    def loss(self, model, batch):
        return ((model(batch[0]) - 1) ** 2).mean()


class Weighted(Drawn):
    def row_weights(self):
        return [0.0] * 10 + [1.0] * 20


def test_weights_whose_sum_is_not_finite_are_refused(arena) -> None:
    class Huge(Drawn):
        def row_weights(self):
            return [1e308] * 30

    with pytest.raises(TaskError, match="sum is beyond the range of float64") as raised:
        arena.start(Huge, arena.spec())
    assert "divide them by the largest" in raised.value.remedy


@pytest.mark.parametrize("worlds", [(1, 3), (2, 2)])
def test_a_job_with_weights_goes_on_with_any_number_of_workers(arena, worlds) -> None:
    spec = arena.spec(job={"epochs": 3, "global_batch_size": 7})
    first, second = worlds
    ranks = arena.train(Weighted, spec, first, job_id=f"by{first}")
    others = arena.train(Weighted, spec, second, job_id=f"with{second}")
    for mine, theirs in zip(ranks[0].parameters(), others[0].parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert (others[0].outcome.rows_missing, others[0].outcome.rows_repeated) == (0, 0)


def test_an_order_of_the_tasks_own(arena) -> None:
    seen = []

    class Ordering(Drawn):
        def row_order(self, epoch, seed):
            return [(place + epoch) % 15 for place in range(20)]

        def loss(self, model, batch):
            seen.extend(round(10 * float(x)) for x in batch[0])
            return super().loss(model, batch)

    (rank,) = arena.train(Ordering, arena.spec(job={"epochs": 2, "global_batch_size": 8}), 1)
    assert seen == [(place + epoch) % 15 for epoch in range(2) for place in range(20)]
    assert rank.outcome.step == 6
    assert (rank.outcome.rows_missing, rank.outcome.rows_repeated) == (0, 0)


STRATEGIES = [
    {"name": "replicated"},
    {"name": "local_sgd", "inner_steps": 2},
    *({"name": "sharded", "stage": stage} for stage in (1, 2, 3)),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda one: f"{one['name']}{one.get('stage')}")
def test_a_loss_that_runs_backward_itself_is_refused(arena, regression, strategy) -> None:
    class Early(regression):
        def loss(self, model, batch):
            model(batch[0]).abs().mean().backward()
            return super().loss(model, batch)

    with pytest.raises(TaskError, match=r"loss\(\) of the task calls backward\(\) itself: 2.bias"):
        arena.train(Early(), arena.spec(strategy=strategy), 1)


@pytest.mark.parametrize("evaluates", [False, True])
def test_modes_are_as_build_model_left_them(arena, regression, evaluates) -> None:
    class Frozen(regression):
        def __init__(self) -> None:
            super().__init__()
            self.seen = set()

        def build_model(self):
            body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
            body.requires_grad_(requires_grad=False).eval()
            return nn.Sequential(body, nn.Linear(8, 3)).double()

        def eval_dataset(self):
            return self.rows if evaluates else None

        def loss(self, model, batch):
            if torch.is_grad_enabled():
                self.seen.add((model.training, model[0].training, model[0][1].training))
            return super().loss(model, batch)

    task = Frozen()
    rank = arena.train(task, arena.spec(train={"eval_every": 2, "sanity_batches": 1}), 1)[0]
    assert task.seen == {(True, False, False)}
    assert rank.model[0][1].num_batches_tracked == 0
    assert rank.recorder.warnings == []


def test_a_model_that_is_all_in_evaluation_mode_is_told(arena, regression) -> None:
    class Loaded(regression):
        def build_model(self):
            return super().build_model().eval()

    rank = arena.train(Loaded(), arena.spec(), 1)[0]
    (warning,) = rank.recorder.warnings
    assert warning[0] == "task_doubtful"
    assert "in evaluation mode" in warning[1]


def test_a_parameter_that_only_the_optimizer_has_is_refused(arena, regression) -> None:
    class Weighed(regression):
        def build_model(self):
            self.scale = nn.Parameter(torch.zeros(3, dtype=torch.float64))
            return super().build_model()

        def build_optimizer(self, parameters):
            return torch.optim.SGD([{"params": parameters}, {"params": [self.scale]}], lr=0.1)

    with pytest.raises(TaskError, match=r"shape \(3,\) that the model does not have .*group 1"):
        arena.start(Weighed(), arena.spec())


def test_an_optimizer_may_have_frozen_parameters_of_the_model(arena, regression) -> None:
    class Half(regression):
        def build_model(self):
            self.model = super().build_model()
            self.model[0].requires_grad_(requires_grad=False)
            return self.model

        def build_optimizer(self, parameters):
            del parameters
            return torch.optim.SGD(self.model.parameters(), lr=0.1)

    before = arena.start(Half(), arena.spec()).parameters()
    after = arena.train(Half(), arena.spec(), 2)[0].parameters()
    assert torch.equal(before[0], after[0])
    assert not torch.equal(before[2], after[2])


@pytest.mark.parametrize(
    ("returned", "kind"), [({"loss": 1.0}, "dict"), (torch.ones(2), "Tensor"), (1, "int")]
)
def test_what_is_no_answer_to_the_question_of_the_end_is_refused(
    arena, regression, returned, kind
) -> None:
    class Returning(regression):
        def on_step(self, at):
            return returned

    with pytest.raises(TaskError, match=rf"on_step\(\) of the task returned a {kind}"):
        arena.train(Returning(), arena.spec(), 1)


@pytest.mark.parametrize(("returned", "steps"), [(True, 2), (False, 9), (None, 9), ("", 9)])
def test_true_ends_a_job(arena, regression, returned, steps) -> None:
    class Returning(regression):
        def on_step(self, at):
            return returned

    assert arena.train(Returning(), arena.spec(), 1)[0].outcome.step == steps


def test_an_attribute_with_the_name_of_a_method_is_refused(arena, regression) -> None:
    class Counting(regression):
        on_step = 5

    with pytest.raises(TaskError, match=r"on_step of task \S+ is a int; dtd calls it as a method"):
        arena.start(Counting(), arena.spec())
