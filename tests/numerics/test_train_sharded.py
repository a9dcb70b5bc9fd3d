"""Sharded training: the same results as replicated training, and no step lost with a rank."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from dtd.core.engine.control_word import Flags
from dtd.core.engine.shards import NOTHING, WHOLE, united
from dtd.core.engine.step_protocol import FRESH
from dtd.errors import CheckpointError, DivergenceError, RingBroken, TaskError
from dtd.train.model_setup import LossScaler
from dtd.train.state import replica
from tests.shards import held_shards

pytestmark = pytest.mark.numerics

STAGES = pytest.mark.parametrize("stage", [1, 2, 3])
SGD = {"name": "sgd", "lr": 0.1, "momentum": 0.9}
ADAM = {"name": "adam", "lr": 0.01}


def sharded(arena, *, mirrors: int, stage: int = 1, **tables):
    strategy = {"name": "sharded", "mirrors": mirrors, "stage": stage}
    strategy |= tables.pop("strategy", {})
    return arena.spec(strategy=strategy, **tables)


def losses(rank) -> list[float]:
    return [one.loss for one in rank.recorder.steps]


def assert_same_weights(got, expected) -> None:
    """To rounding: the ring adds in another order than an exchange of whole buckets.

    In stage 3 a rank has only its part of the weights.
    """
    whole = {f"model.{name}": value.detach() for name, value in expected.model.named_parameters()}
    for rank in got:
        for one in rank.replica.shards.tensors():
            for piece in one.pieces if one.name in whole else ():
                theirs = whole[one.name].reshape(-1)[piece.start : piece.stop]
                torch.testing.assert_close(piece.values, theirs, rtol=1e-9, atol=1e-12)
        if rank.run._session.strategy.divides_parameters:
            continue
        for mine, theirs in zip(rank.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)
    assert united(rank.replica.held_part for rank in got) == WHOLE


def assert_same_results(got, expected) -> None:
    for rank in got:
        assert losses(rank) == pytest.approx(losses(expected), rel=1e-9)
    assert_same_weights(got, expected)


def assert_no_error(ranks) -> None:
    for rank in ranks:
        if rank.error is not None:
            raise rank.error


@STAGES
@pytest.mark.parametrize(
    ("world_size", "mirrors", "optimizer"),
    [(1, 0, ADAM), (2, 0, SGD), (2, 1, ADAM), (3, 1, SGD), (4, 2, ADAM), (5, 0, ADAM), (5, 4, SGD)],
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


def test_a_rank_has_optimizer_state_for_its_part_only(arena, regression) -> None:
    got = arena.train(regression(), sharded(arena, mirrors=0, optimizer=ADAM), 4)
    elements = sum(parameter.numel() for parameter in got[0].model.parameters())
    sizes = [rank.replica.shards.size_bytes for rank in got]
    assert sum(sizes) == 2 * 8 * elements
    assert max(sizes) < 0.35 * sum(sizes)


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


@STAGES
@pytest.mark.parametrize("world_size", [1, 3])
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


@STAGES
@pytest.mark.parametrize(
    "train", [{"grad_accumulation": 3}, {"activation_checkpointing": True}], ids=["micro", "blocks"]
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
    """Of eight rows three ranks have 2, 3 and 3; there are more buckets than memory for them."""

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


@STAGES
@pytest.mark.parametrize("codec", ["bfloat16", "float16"])
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


@pytest.mark.parametrize("train", [{}, {"activation_checkpointing": True}], ids=["", "blocks"])
@pytest.mark.parametrize("model", [Transformer, Residual])
def test_parameters_that_are_gathered_layer_by_layer(arena, regression, model, train) -> None:
    class Task(regression):
        def build_model(self):
            return model().double()

    tables = {"job": {"steps": 4}, "train": {"clip_norm": 0.1, **train}, "optimizer": ADAM}
    expected = arena.train(Task(), arena.spec(**tables), 3, job_id="whole")
    got = arena.train(Task(), sharded(arena, stage=3, mirrors=1, **tables), 3)
    assert_same_results(got, expected[0])


@pytest.mark.parametrize("mirrors", [0, 1])
@STAGES
def test_memory_of_the_state(arena, regression, mirrors, stage) -> None:
    """Of parameters, gradients and Adam's state; the pool and the unit in use are counted apart."""

    class Task(regression):
        def build_model(self):
            return nn.Sequential(*(nn.Linear(6, 6) for _ in range(6)), nn.Linear(6, 3)).double()

    spec = sharded(arena, stage=stage, mirrors=mirrors, optimizer=ADAM, job={"steps": 2})
    got = arena.train(Task(), spec, 4)
    whole = 8 * sum(parameter.numel() for parameter in Task().build_model().parameters())
    share, slack = (mirrors + 1) / 4, 8 * 2 * 14
    for rank in got:
        strategy, optimizer = rank.run._session.strategy, rank.replica.optimizer
        parameters = strategy.parameter_bytes
        held = [p for group in optimizer.param_groups for p in group["params"]]
        state = [v for p in held for v in optimizer.state[p].values() if v.dim()]
        assert abs(sum(one.nbytes for one in state) - 2 * share * whole) <= 2 * slack
        assert abs(parameters - (share if stage == 3 else 1) * whole) <= slack
        gradients = strategy.size_bytes - len(strategy._scalars.memory.view)
        pool = 0 if stage == 1 else 4 * 8 * (36 + 6)
        assert gradients - pool <= (1 if stage == 1 else share) * whole + slack


def test_another_order_than_in_the_warm_up_is_named(arena, regression) -> None:
    class Turning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
            self.head = nn.Linear(6, 3)
            self.passes = 0

        def forward(self, x):
            self.passes += 1
            for layer in self.layers if self.passes < 2 else reversed(self.layers):
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


# --- what happens when ranks are lost or join ---------------------------------------------------


class Dies:
    """A collective that raises in the call of this number, counted over all methods."""

    COUNTED = ("open_step", "start", "wait", "gather", "close_step")

    def __init__(self, inner, call: int) -> None:
        self._inner, self._left = inner, call
        self.died = False

    def __getattr__(self, name):
        value = getattr(self._inner, name)
        if name not in self.COUNTED:
            return value
        self._left -= 1
        if self._left >= 0:
            return value

        def die(*arguments):
            self.died = True
            raise RingBroken("died by order of the test")

        return die


def holders(ranks, key):
    """Who can make the state of this key."""
    return [rank for rank in ranks if rank.run._session.engine.can_make(key)]


def start_key(ranks):
    """The newest state of which the ranks have all parts."""
    engines = [rank.run._session.engine for rank in ranks]
    known = {key for one in engines for key in (one.live, one.prepared) if key is not None}
    for key in sorted(known, reverse=True):
        if united(rank.replica.held_part for rank in holders(ranks, key)) == WHOLE:
            return key
    raise AssertionError("no state is left")


def begin_again(arena, ranks, joiners=()) -> tuple[int, int]:
    key = start_key(ranks)
    able = holders(ranks, key)
    for rank in able:
        rank.run.adopt_local(*key)
    for rank in [*ranks, *joiners]:
        if rank not in able:
            arena.copy_state(able[0], rank)
            assert rank.replica.held_part == NOTHING
            assert rank.run.held().where == "none"
    return key


@STAGES
@pytest.mark.parametrize("call", [0, 2, 5, 9, 11, 14, 17, 21, 26, 31, 36, 41, 47])
def test_no_step_is_lost_with_one_rank(arena, regression, call, stage) -> None:
    """Whatever it does when it dies; the others go on, with a joiner or without."""
    job = {"steps": 5}
    expected = arena.train(regression(), arena.spec(job=job, optimizer=ADAM), 2, job_id="whole")
    spec = sharded(arena, stage=stage, mirrors=1, job=job, optimizer=ADAM)
    ranks = [arena.start(regression(), spec, name=f"w{i}") for i in range(4)]
    joiner = ranks.pop()
    for rank in ranks:
        rank.run.adopt_local(*FRESH)
    victim = call % 3
    doomed = []

    def wrap(index, inner):
        if index != victim:
            return inner
        doomed.append(Dies(inner, call))
        return doomed[-1]

    arena.generation(ranks, wrap=wrap)
    assert doomed[0].died
    left = [rank for index, rank in enumerate(ranks) if index != victim]
    newest = max(rank.run.committed_step for rank in ranks)
    joiners = [joiner] if call % 2 else []
    key = begin_again(arena, left, joiners)
    assert key[1] >= newest
    together = [*joiners, *left]
    arena.generation(together, generation=2)
    assert_no_error(together)
    assert_same_weights(together, expected[0])
    for rank in left:
        assert [one.step for one in rank.recorder.steps] == list(range(1, 6))


@STAGES
def test_a_survivor_of_a_broken_regroup_still_gives_its_old_part(arena, regression, stage) -> None:
    job = {"steps": 4}
    spec = sharded(arena, stage=stage, mirrors=1, job=job, optimizer=ADAM)
    expected = arena.train(regression(), arena.spec(job=job, optimizer=ADAM), 2, job_id="whole")
    ranks = [arena.start(regression(), spec, name=f"w{i}") for i in range(3)]
    for rank in ranks:
        rank.run.adopt_local(*FRESH)
    arena.generation(ranks, wrap=lambda index, inner: Dies(inner, 30) if not index else inner)
    left = ranks[1:]
    parts = [rank.replica.held_part for rank in left]
    generation = 2
    for call in (0, 1, 3, 6, 9):
        begin_again(arena, left)
        arena.generation(
            left,
            generation=generation,
            wrap=lambda index, inner: Dies(inner, call) if index else inner,  # noqa: B023
        )
        assert [rank.replica.held_part for rank in left] == parts
        generation += 1
    begin_again(arena, left)
    arena.generation(left, generation=generation)
    assert_no_error(left)
    assert_same_weights(left, expected[0])


class DiesInAgreement:
    """A collective that raises in a word once all that was started before has arrived."""

    def __init__(self, inner, arrived: threading.Barrier, begin) -> None:
        self._inner, self._arrived, self._begin = inner, arrived, begin
        self._started: list[int] = []
        self._agrees = False

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def start(self, bucket, *done) -> None:
        self._started.append(bucket)
        self._inner.start(bucket, *done)

    def open_step(self, step, buckets) -> None:
        self._inner.open_step(step, buckets)
        self._agrees = len(buckets) > 0

    def close_step(self):
        self._started.clear()
        if not self._agrees:
            self._begin()
        return self._inner.close_step()

    def gather(self, word):
        if not self._agrees:
            return self._inner.gather(word)
        for bucket in self._started:
            self._inner.wait(bucket)
        self._arrived.wait(timeout=20.0)
        raise RingBroken("died by order of the test")


class Agrees:
    """A rank's collective that notes when the ranks have agreed on the initial state."""

    def __init__(self, inner, agreed: list[int]) -> None:
        self._inner, self._agreed = inner, agreed

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def agreed(self) -> None:
        self._agreed.append(self._inner.rank)


def after_three_steps(arena, regression, stage, mirrors: int = 1):
    """Four ranks whose first generation has ended after three steps."""
    spec = sharded(arena, stage=stage, mirrors=mirrors, optimizer=ADAM)

    def ask(step: int) -> Flags:
        return Flags(yield_=step == 2)

    ranks = [arena.start(regression(), spec, name=f"w{i}", ask=ask) for i in range(4)]
    for rank in ranks:
        rank.run.adopt_local(*FRESH)
    arena.generation(ranks)
    assert_no_error(ranks)
    for rank in ranks:
        rank.run.adopt_local(1, ranks[0].run.committed_step)
    return ranks


def held(rank):
    tensors = rank.replica.shards.tensors()
    return [piece.values.clone() for one in tensors for piece in one.pieces]


def damage(rank, kind: str = "model.") -> None:
    with torch.no_grad():
        for one in rank.replica.shards.tensors():
            if one.name.startswith(kind):
                for piece in one.pieces:
                    piece.values.add_(1.0)


@STAGES
def test_old_parameters_are_kept_until_all_have_agreed(arena, regression, stage) -> None:
    """A rank's parameters are damaged; what others hold is not overwritten before it is found."""
    ranks = after_three_steps(arena, regression, stage)
    others = ranks[1:]
    before = [held(rank) for rank in others]
    arrived = threading.Barrier(4)
    order = [ranks[0], ranks[2], ranks[1], ranks[3]]

    def wrap(index, inner) -> DiesInAgreement:
        return DiesInAgreement(inner, arrived, lambda: damage(ranks[0]) if not index else None)

    arena.generation(order, generation=2, wrap=wrap)
    assert all("by order of the test" in str(rank.error) for rank in order)
    for rank, values in zip(others, before, strict=True):
        for now, then in zip(held(rank), values, strict=True):
            assert torch.equal(now, then)


@STAGES
@pytest.mark.parametrize(
    ("kind", "entry", "meaning"),
    [
        ("model.", "model.0.weight", "the parameter 0.weight; all ranks update it"),
        ("optimizer.", "optimizer.0.exp_avg", "exp_avg in the optimizer's state of 0.weight;"),
    ],
)
def test_a_damaged_shard_is_found_before_it_moves(
    arena, regression, stage, kind, entry, meaning
) -> None:
    """Owner and mirror of the new division would both have it, and would agree."""
    ranks = after_three_steps(arena, regression, stage)
    damage(ranks[1], kind)
    before = [held(rank) for rank in ranks]
    agreed = []
    left = ranks[:3]
    arena.generation(left, generation=2, wrap=lambda _, inner: Agrees(inner, agreed))
    for rank, values in zip(left, before, strict=False):
        assert isinstance(rank.error, DivergenceError), rank.error
        assert (rank.error.step, rank.error.entry, rank.error.majority) == (3, entry, False)
        assert meaning in rank.error.message
        assert rank.run.compared_in(2)[0] == 3
        for now, then in zip(held(rank), values, strict=True):
            assert torch.equal(now, then)
    assert len({rank.run.compared_in(2)[1] for rank in left}) == 3
    assert not agreed


@STAGES
def test_of_three_holders_the_damaged_one_differs(arena, regression, stage) -> None:
    ranks = after_three_steps(arena, regression, stage, mirrors=2)
    joiner = arena.start(regression(), ranks[0].run._session.spec, name="w4")
    arena.copy_state(ranks[0], joiner)
    damage(ranks[1])
    ranks.append(joiner)
    arena.generation(ranks, generation=2, voters=frozenset(range(4)))
    for rank in ranks:
        assert isinstance(rank.error, DivergenceError), rank.error
        assert (rank.error.dissenters, rank.error.majority) == ((1,), True)


@STAGES
def test_a_damaged_shard_that_stays_is_found_at_the_agreement(arena, regression, stage) -> None:
    ranks = after_three_steps(arena, regression, stage)
    damage(ranks[1])
    agreed = []
    arena.generation(ranks, generation=2, wrap=lambda _, inner: Agrees(inner, agreed))
    for rank in ranks:
        assert isinstance(rank.error, DivergenceError), rank.error
        assert rank.error.entry == "model.0.weight"
    assert not agreed, "what differs is no agreement"


@STAGES
def test_a_joiner_without_shards_does_not_pass_for_a_holder(arena, regression, stage) -> None:
    """Its generation ends before it has any: then it has the state on its disk or not at all."""
    job = {"steps": 4}
    spec = sharded(arena, stage=stage, mirrors=1, job=job, optimizer=ADAM)
    ranks = arena.train(regression(), spec, 2)
    key = ranks[0].run.held()
    joiner = arena.start(regression(), spec, name="w2")
    arena.copy_state(ranks[0], joiner)
    assert joiner.run.held().where == "none"
    with pytest.raises(CheckpointError):
        joiner.run.save(key.generation, key.step)
    with pytest.raises(CheckpointError):
        joiner.run.adopt_local(key.generation, key.step)
    assert joiner.run._session.engine.live is None


@STAGES
def test_a_fresh_state_without_shards_is_built_again(arena, regression, stage) -> None:
    spec = sharded(arena, stage=stage, mirrors=1, optimizer=ADAM)
    donor, joiner = (arena.start(regression(), spec, name=f"w{i}") for i in range(2))
    arena.copy_state(donor, joiner)
    assert joiner.replica.held_part == NOTHING
    joiner.run.adopt_local(*FRESH)
    assert joiner.replica.held_part == WHOLE
    arena.generation([joiner])
    assert_no_error([joiner])


def test_two_neighbours_at_once_are_one_too_many_for_one_mirror(arena, regression) -> None:
    spec = sharded(arena, mirrors=1, optimizer=ADAM)
    ranks = [arena.start(regression(), spec, name=f"w{i}") for i in range(4)]
    for rank in ranks:
        rank.run.adopt_local(*FRESH)
    arena.generation(ranks, wrap=lambda index, inner: Dies(inner, 40) if not index else inner)
    left = ranks[2:]
    assert united(rank.replica.held_part for rank in left) != WHOLE
    step = min(rank.run.committed_step for rank in left)
    for rank in left:
        rank.run.adopt_local(1, step)
    arena.generation(left, generation=2)
    why = "the generation cannot start: of the sharded state, 1/4 to 1/2 of 0 to 1 is held by no"
    assert all(str(rank.error).startswith(why) for rank in left)


@STAGES
def test_members_that_join_and_leave_lose_nothing(arena, regression, stage) -> None:
    job = {"steps": 8}
    expected = arena.train(regression(), arena.spec(job=job, optimizer=ADAM), 2, job_id="whole")
    spec = sharded(arena, stage=stage, mirrors=1, job=job, optimizer=ADAM)

    def ask(step: int) -> Flags:
        return Flags(yield_=step in (2, 5))

    ranks = [arena.start(regression(), spec, name=f"w{i}", ask=ask) for i in range(2)]
    for rank in ranks:
        rank.run.adopt_local(*FRESH)
    arena.generation(ranks)
    joiners = [arena.start(regression(), spec, name=f"w{i}") for i in range(2, 5)]
    begin_again(arena, ranks, joiners)
    together = [*ranks, *joiners]
    arena.generation(together, generation=2)
    assert {rank.outcome.kind for rank in together} == {"yielded"}
    begin_again(arena, together[1:])
    arena.generation(together[1:], generation=3)
    assert_no_error(together[1:])
    assert_same_weights(together[1:], expected[0])


def test_a_mirror_that_differs_is_found(arena, regression) -> None:
    spec = sharded(arena, mirrors=1, optimizer=ADAM, train={"digest_every": 2})
    ranks = [arena.start(regression(), spec, name=f"w{i}") for i in range(4)]
    for rank in ranks:
        rank.run.adopt_local(*FRESH)
    spoilt = threading.Event()

    def spoil(step: int) -> Flags:
        if step == 4 and not spoilt.is_set():
            spoilt.set()
            values = next(
                value
                for values in ranks[2].replica.optimizer.state.values()
                for value in values.values()
                if value.dim() and value.numel()
            )
            values[0] += 1.0
        return Flags()

    ranks[2].recorder.ask = spoil
    arena.generation(ranks)
    assert "hold another state" in str(ranks[0].error)
    assert len(ranks[0].error.dissenters) >= 2


def test_an_optimizer_that_looks_at_whole_parameters_is_refused(arena, regression) -> None:
    class Task(regression):
        def build_optimizer(self, parameters):
            return torch.optim.Adafactor(parameters)

    with pytest.raises(TaskError, match="Adafactor may need all of it"):
        arena.start(Task(), sharded(arena, mirrors=1))
