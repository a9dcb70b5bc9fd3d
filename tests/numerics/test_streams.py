"""Streams of rows: the same rows for every number of workers, and after every break."""

from __future__ import annotations

import random
import threading

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset

from dtd.errors import RingBroken, TaskError
from dtd.train.data.rows import kept_random_state, load_rows
from dtd.train.data.stream import StreamRows
from tests.numerics.cuts import Cut, ranks_of
from tests.numerics.test_local_steps import cut_together

pytestmark = pytest.mark.numerics


class Numbers:
    """Items 0, 1, ... of a pass of so many; counts what it does."""

    def __init__(self, length: int = 1000) -> None:
        self.length, self.opened, self.read, self.decoded = length, [], 0, []

    def rows(self, position):
        self.opened.append(position)
        for number in range(position or 0, self.length):
            self.read += 1
            yield number, number + 1

    def decode(self, item):
        self.decoded.append(item)
        return torch.tensor([item / 50.0], dtype=torch.float64)


class Stateful(IterableDataset):
    """As torch's and others' data sets that can say where they are."""

    def __init__(self, length: int = 1000) -> None:
        self.length, self.at, self.epoch = length, 0, 0

    def __iter__(self):
        while self.at < self.length:
            self.at += 1
            yield torch.tensor([(self.at - 1) / 50.0], dtype=torch.float64)
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]

    def set_epoch(self, epoch):
        self.epoch = epoch


class Counted(IterableDataset):
    """Can only be read from its beginning."""

    def __init__(self, length: int = 1000) -> None:
        self.length = length

    def __iter__(self):
        for number in range(self.length):
            yield torch.tensor([number / 50.0], dtype=torch.float64)


KINDS = {"rows": Numbers, "state_dict": Stateful, "iter": Counted}


def task_of(kind, length: int = 1000):
    class Task:
        def __init__(self) -> None:
            self.stream = kind(length)

        def build_model(self):
            return nn.Linear(1, 1).double()

        def train_dataset(self):
            return self.stream

        def loss(self, model, batch):
            return ((model(batch) - 3 * batch) ** 2).mean()

    return Task


def parameters_after(rows_of, steps: int, spec):
    """Plain torch over these rows."""
    torch.manual_seed(spec.job.seed)
    model = nn.Linear(1, 1).double()
    update = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        batch = torch.tensor([[row / 50.0] for row in rows_of(step)], dtype=torch.float64)
        update.zero_grad()
        ((model(batch) - 3 * batch) ** 2).mean().backward()
        update.step()
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize(
    ("kind", "world_size", "length"),
    [
        *(("rows", 1, 1000), ("rows", 10, 21), ("state_dict", 3, 21), ("state_dict", 10, 1000)),
        *(("iter", 3, 1000), ("iter", 1, 21)),
    ],
)
def test_every_world_uses_the_rows_of_the_stream_in_turn(arena, kind, world_size, length) -> None:
    """A stream of 21 rows is read again and again."""
    spec = arena.spec(train={"grad_accumulation": 2})
    ranks = ranks_of(arena, task_of(KINDS[kind], length), spec, world_size)
    arena.generation(ranks)
    assert [rank.error for rank in ranks] == [None] * world_size
    wanted = parameters_after(
        lambda step: [row % length for row in range(8 * step, 8 * step + 8)], 9, spec
    )
    for mine, theirs in zip(ranks[0].parameters(), wanted, strict=True):
        torch.testing.assert_close(mine, theirs)
    assert len({rank.digest for rank in ranks}) == 1
    outcome = ranks[0].outcome
    assert (outcome.rows_missing, outcome.rows_repeated) == (0, 0)


def test_each_rank_decodes_its_own_rows_only(arena) -> None:
    ranks = ranks_of(arena, task_of(Numbers), arena.spec(), 2)
    for rank in ranks:
        rank.run._session.task.stream.decoded.clear()
    arena.generation(ranks)
    decoded = [set(rank.run._session.task.stream.decoded) for rank in ranks]
    assert decoded[0] | decoded[1] == set(range(72))
    assert not decoded[0] & decoded[1]


@pytest.mark.parametrize(
    ("kind", "method"),
    [("rows", "start"), ("rows", "gather"), ("state_dict", "wait"), ("iter", "gather")],
)
def test_a_break_redoes_just_the_uncommitted_rows(arena, kind, method) -> None:
    task, spec = task_of(KINDS[kind], 30), arena.spec()
    whole = arena.train(task, spec, 2, job_id="whole")
    ranks = ranks_of(arena, task, spec, 2)
    arena.generation(ranks, wrap=lambda _, inner: Cut(inner, 5, method=method))
    for rank in ranks:
        assert isinstance(rank.error, RingBroken)
        rank.run.adopt_local(1, 5)
    joiner = arena.start(task, spec, name="joiner")
    arena.copy_state(ranks[0], joiner)
    arena.generation([*ranks, joiner], generation=2)
    for rank in (*ranks, joiner):
        assert rank.error is None
        assert rank.outcome.step == 9
        assert rank.outcome.digest == joiner.outcome.digest
        assert (rank.outcome.rows_missing, rank.outcome.rows_repeated) == (0, 0)
    for mine, theirs in zip(joiner.parameters(), whole[0].parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


LOCAL = {
    "local_sgd": {"name": "local_sgd", "inner_steps": 2},
    "diloco": {"name": "diloco", "inner_steps": 2},
    "streaming_diloco": {"name": "streaming_diloco", "inner_steps": 4, "fragments": 2},
}


@pytest.mark.parametrize(
    ("kind", "strategy"),
    [("rows", "local_sgd"), ("state_dict", "diloco"), ("iter", "streaming_diloco")],
)
def test_a_break_in_a_round_redoes_the_rows_of_all_its_steps(arena, kind, strategy) -> None:
    """The third round begins with step 4; what comes of it is as if there had been no break."""
    task, spec = task_of(KINDS[kind], 30), arena.spec(strategy=LOCAL[strategy])
    whole = arena.train(task, spec, 2, job_id="whole")
    ranks = ranks_of(arena, task, spec, 2)
    arena.generation(ranks, wrap=cut_together("wait", 0))
    for rank in ranks:
        assert isinstance(rank.error, RingBroken)
        rank.run.adopt_local(1, 4)
    arena.generation(ranks, generation=2)
    for rank in ranks:
        assert rank.error is None
        assert rank.outcome.digest == whole[0].outcome.digest
        assert (rank.outcome.rows_missing, rank.outcome.rows_repeated) == (0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_knows_the_position(arena, kind) -> None:
    task, spec = task_of(KINDS[kind], 30), arena.spec(checkpoint={"every_steps": 4})
    whole = arena.train(task, spec, 1, job_id="whole")
    (rank,) = ranks_of(arena, task, spec, 1)
    arena.generation([rank], wrap=lambda _, inner: Cut(inner, 6, method="start"))
    rank.run.close()
    again = arena.start(task, spec, name="w0")
    stream = again.run._session.task.stream
    if kind == "rows":
        stream.read = 0
    again.run.adopt_local(1, 4)
    arena.generation([again], generation=2)
    assert again.error is None
    assert again.outcome.digest == whole[0].outcome.digest
    if kind == "rows":
        assert stream.opened[-2:] == [2, None] or stream.opened[-1] is None  # 32 = 30 + 2
        assert stream.read <= 40 + 3 * 8  # what is left, and what was read ahead


def test_going_back_opens_the_stream_at_the_nearest_known_position() -> None:
    source = Numbers()
    rows = StreamRows(source, batch_rows=10)
    assert [round(50 * float(rows[n])) for n in (0, 7, 25, 39)] == [0, 7, 25, 39]
    assert rows.position_at(20) == {"pass": 0, "at": 20}
    assert rows.position_at(50) == {"pass": 0, "at": 50}
    source.opened.clear()
    assert round(50 * float(rows[33])) == 33
    assert source.opened == [30]
    rows.committed(30)
    with pytest.raises(TaskError, match=r"row 5 of the stream .* long since"):
        rows[5]
    rows.go_to(200, {"pass": 0, "at": 200})
    assert round(50 * float(rows[203])) == 203


def test_a_commit_does_not_wait_for_a_slow_source() -> None:
    """A thread reads ahead and waits for the source's next row."""
    more, waits = threading.Event(), threading.Event()

    class Slow(Numbers):
        def rows(self, position):
            for number, after in super().rows(position):
                if number == 15:
                    waits.set()
                    more.wait()
                yield number, after

    rows = StreamRows(Slow(), batch_rows=10)
    reader = threading.Thread(target=lambda: rows[19])
    reader.start()
    waits.wait()
    assert rows.position_at(10) == {"pass": 0, "at": 10}
    rows.committed(10)
    rows.go_to(0, None)
    more.set()
    reader.join()
    assert [round(50 * float(rows[n])) for n in (3, 19)] == [3, 19]


def test_a_failing_read_is_not_taken_for_the_end() -> None:
    class Flaky(Numbers):
        failed = False

        def rows(self, position):
            for number, after in super().rows(position):
                if number == 25 and not self.failed:
                    self.failed = True
                    raise OSError("the network is away")
                yield number, after

    rows = StreamRows(Flaky(), batch_rows=10)
    with pytest.raises(OSError, match="away"):
        rows[27]
    assert round(50 * float(rows[27])) == 27


class Drawing(Numbers):
    def rows(self, position):
        for number, after in super().rows(position):
            yield number + int(random.random() * 0), after


class Torn(Stateful):
    load_state_dict = property()


@pytest.mark.parametrize(
    ("stream", "spec", "message"),
    [
        (Numbers(0), {}, "the stream of train_dataset.* has no rows"),
        (Numbers(), {"job": {"epochs": 2}}, "no use for job.epochs.*give job.steps"),
        (Numbers(), {"train": {"loader_workers": 1}}, "no use for train.loader_workers"),
        (Drawing(), {}, "draws from the generators of the process"),
        (Torn(), {}, "one of state_dict"),
    ],
)
def test_what_a_stream_cannot_do_is_refused_at_warm_up(arena, stream, spec, message) -> None:
    task = task_of(lambda length: stream)
    with pytest.raises(TaskError, match=message):
        arena.start(task, arena.spec(**spec))


def test_an_order_of_a_stream_is_refused(arena) -> None:
    class Weighted(task_of(Numbers)):
        def row_weights(self):
            return [1.0]

    with pytest.raises(TaskError, match="no use for row_weights of the task"):
        arena.start(Weighted, arena.spec())


@pytest.mark.parametrize(
    ("position", "message"),
    [(object(), "no JSON value"), (float("nan"), "no JSON value"), ("x" * 70_000, "65536 is the")],
)
def test_a_position_is_plain_and_small(position, message) -> None:
    class Odd:
        def rows(self, at):
            while True:
                yield 1, position

    rows = StreamRows(Odd(), batch_rows=10)
    with pytest.raises(TaskError, match=message):
        rows[9]


def test_rows_without_positions_are_refused() -> None:
    class Bare:
        def rows(self, at):
            yield 5

    with pytest.raises(TaskError, match=r"rows\(position\) of the stream gave a int"):
        StreamRows(Bare(), batch_rows=10)


def test_draws_of_decode_are_keyed_by_row() -> None:
    class Augmented(Numbers):
        def decode(self, item):
            return super().decode(item) + torch.rand(1, dtype=torch.float64)

    def drawn(rows):
        stream = StreamRows(Augmented(), batch_rows=10)
        with kept_random_state():
            loaded = load_rows(stream, rows, epoch=0, seed=3, reseed=True)
        return loaded.batch.flatten().tolist()

    assert drawn([2, 3, 8]) == [drawn([row])[0] for row in (2, 3, 8)]


def test_lazy_parameters_and_collate_with_a_stream(arena) -> None:
    class Task(task_of(Numbers)):
        def build_model(self):
            return nn.LazyLinear(1).double()

        @staticmethod
        def collate(rows):
            return torch.stack(rows)

    ranks = ranks_of(arena, Task, arena.spec(), 2)
    arena.generation(ranks)
    assert [rank.error for rank in ranks] == [None, None]
    assert ranks[0].digest == ranks[1].digest
