"""The last copy of the optimizer's state is lost: a job may go on from its parameters."""

from __future__ import annotations

import copy

import pytest
import torch

from dtd.core.engine.control_word import Flags
from dtd.core.engine.shards import NOTHING, WHOLE

pytestmark = pytest.mark.numerics

LOST_AFTER = 4
GENERATION, RESET, NEXT = 1, 2, 3
OWNERS = pytest.mark.parametrize("owners", ["servers", "workers"])
STAGES = pytest.mark.parametrize("stage", [1, 2])
OPTIMIZERS = pytest.mark.parametrize("optimizer", ["adam", "sgd"])
SETTINGS = {
    "adam": ({"name": "adam", "lr": 0.01}, lambda p: torch.optim.Adam(p, lr=0.01)),
    "sgd": (
        {"name": "sgd", "lr": 0.01, "momentum": 0.9},
        lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    ),
}


class Dies(Exception):
    """A rank has died."""


def dies_at_its_vote(step: int) -> Flags:
    if step == LOST_AFTER:
        raise Dies
    return Flags()


class DiesAtOpening:
    """A rank's collective; the rank dies when it opens a step, before it sends anything."""

    def __init__(self, collective) -> None:
        self._collective = collective

    def __getattr__(self, name):
        return getattr(self._collective, name)

    def open_step(self, step, *given) -> None:
        if step == LOST_AFTER + 1:  # the first one has moved shards
            raise Dies
        self._collective.open_step(step, *given)


def job(arena, owners: str, *, stage: int = 1, optimizer: str = "adam"):
    strategy = {"name": "sharded", "owners": owners, "mirrors": 0, "stage": stage}
    return arena.spec(strategy=strategy, optimizer=SETTINGS[optimizer][0])


def broken(arena, task, spec, owners: str, **options):
    """Two ranks that have lost the third one."""
    ask = {} if options else {"ask": dies_at_its_vote}
    ranks = [arena.start(task, spec, name=f"w{i}", **(ask if i == 2 else {})) for i in range(3)]
    for rank in ranks[1:]:
        arena.copy_state(ranks[0], rank)
    servers = 1 if owners == "servers" else 0
    arena.generation(ranks, generation=GENERATION, servers=servers, **options)
    assert isinstance(ranks[2].error, Dies)
    return ranks[:2]


def goes_on(arena, task, spec, owners: str, ranks):
    """The next generation starts from the parameters, with another server."""
    for rank in ranks:
        rank.run.adopt_local(RESET, LOST_AFTER, reset_of=GENERATION)
    if owners == "servers":
        server = arena.start(task, spec, name="server")
        arena.copy_state(ranks[0], server)
        ranks = [*ranks, server]
    return arena.generation(ranks, generation=NEXT, servers=1 if owners == "servers" else 0)


@STAGES
@OWNERS
@OPTIMIZERS
def test_the_result_is_that_of_an_optimizer_begun_afresh_after_that_step(
    arena, regression, plain_torch, owners, stage, optimizer
) -> None:
    task, spec = regression(), job(arena, owners, stage=stage, optimizer=optimizer)
    ranks = broken(arena, task, spec, owners)
    before = [rank.parameters() for rank in ranks]
    done = goes_on(arena, task, spec, owners, ranks)
    for rank in done:
        if rank.error is not None:
            raise rank.error
    assert all(torch.equal(one, other) for one, other in zip(*before, strict=True))
    assert len({rank.outcome.digest for rank in done}) == 1
    assert {(one.outcome.step, one.outcome.rows_missing) for one in done} == {(9, 0)}
    assert [one.step for one in ranks[0].recorder.steps] == list(range(1, 10))

    updates = 0

    def after(update, model):
        del model

        def updated():
            nonlocal updates
            updates += 1
            if updates == LOST_AFTER:
                update.state.clear()

        return updated

    expected = plain_torch(task, spec, SETTINGS[optimizer][1], after=after)
    for name, value in whole_weights(done).items():
        torch.testing.assert_close(
            value, expected.get_parameter(name).detach().reshape(-1), rtol=1e-9, atol=1e-12
        )


def whole_weights(ranks) -> dict[str, torch.Tensor]:
    """The parameters, from the parts of all ranks."""
    whole: dict[str, torch.Tensor] = {}
    for rank in ranks:
        for one in rank.replica.shards.tensors():
            if one.name.startswith("model."):
                shape = torch.Size(one.shape).numel()
                flat = whole.setdefault(one.name[6:], torch.full([shape], torch.nan).double())
                for piece in one.pieces:
                    flat[piece.start : piece.stop] = piece.values
    return whole


@OWNERS
def test_a_survivor_says_that_it_has_all_parameters_and_then_has_all_of_the_state(
    arena, regression, owners
) -> None:
    task, spec = regression(), job(arena, owners)
    ranks = broken(arena, task, spec, owners)
    for rank in ranks:
        held = rank.run.held()
        assert (held.where, held.generation, held.step) == ("memory", GENERATION, LOST_AFTER)
        assert (held.parameters, held.part.is_whole) == (True, False)
        before, groups = rank.parameters(), copy.deepcopy(rank.replica.shards.common())
        rank.run.adopt_local(RESET, LOST_AFTER, reset_of=GENERATION)
        held = rank.run.held()
        assert (held.generation, held.step, held.part) == (RESET, LOST_AFTER, WHOLE)
        assert all(map(torch.equal, before, rank.parameters()))
        assert groups, "Adam counts its steps"
        assert not rank.replica.shards.common()
        assert rank.replica.shards.size_bytes == 0


@OWNERS
def test_parameters_that_were_on_their_way_are_not_all_parameters(
    arena, regression, owners
) -> None:
    def wrap(rank, collective):
        return DiesAtOpening(collective) if rank == 2 else collective

    ranks = broken(arena, regression(), job(arena, owners), owners, wrap=wrap)
    for rank in ranks:
        held = rank.run.held()
        assert (held.where, held.parameters) == ("memory", False)


def test_with_divided_parameters_no_worker_has_all(arena, regression) -> None:
    ranks = broken(arena, regression(), job(arena, "servers", stage=3), "servers")
    assert [rank.run.held().part for rank in ranks] == [NOTHING, NOTHING]
    assert not any(rank.run.held().parameters for rank in ranks)


def test_a_server_gathers_nothing_of_another_one(arena, regression) -> None:
    task, spec = regression(), job(arena, "servers")
    ranks = [
        arena.start(task, spec, name=f"w{i}", **({"ask": dies_at_its_vote} if i == 2 else {}))
        for i in range(3)
    ]
    for rank in ranks[1:]:
        arena.copy_state(ranks[0], rank)
    arena.generation(ranks, generation=GENERATION, servers=2)
    assert [rank.run.held().parameters for rank in ranks[:2]] == [True, False]


def test_what_is_fetched_from_another_worker_has_no_parameters(arena, regression) -> None:
    task, spec = regression(), job(arena, "servers")
    ranks = broken(arena, task, spec, "servers")
    arena.copy_state(ranks[0], ranks[1])
    assert not ranks[1].run.held().parameters
