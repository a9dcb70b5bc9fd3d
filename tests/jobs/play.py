"""A recipe trained by dtd: ranks of one process that take turns, and the events of its story."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final

from dtd.engine.control_word import Flags
from dtd.engine.shards import united
from dtd.engine.step_protocol import StateKey
from dtd.errors import RingBroken
from dtd.job import JobSpec
from tests.arena import Arena, Rank
from tests.jobs.oracle import CLIP_NORM, DECAY, Slice
from tests.jobs.recipe import BATCH, STEPS, Event, Recipe
from tests.jobs.task import JOB_OPTIMIZERS, Task
from tests.jobs.turns import Turns
from tests.numerics.cuts import Cut

SEED: Final = 3


def spec_of(recipe: Recipe, arena: Arena) -> JobSpec:
    """The job file of a recipe."""
    name = recipe["strategy"]
    strategy: dict[str, Any] = {}
    if name != "replicated":
        strategy = {"name": "sharded", "stage": int(name[-1]), "mirrors": int(recipe["mirrors"])}
    return arena.spec(
        job={"steps": STEPS, "global_batch_size": BATCH, "seed": SEED},
        optimizer=JOB_OPTIMIZERS.get(recipe["optimizer"], {}),
        strategy=strategy,
        train={
            "grad_accumulation": int(recipe["accumulation"]),
            "clip_norm": CLIP_NORM if recipe["clip"] == "yes" else 0.0,
            "ema_decay": DECAY if recipe["averages"] == "yes" else 0.0,
            "activation_checkpointing": recipe["checkpointing"] == "yes",
            "eval_every": 2 if recipe["evaluation"] == "yes" else 0,
            "sanity_batches": 2,
            "digest_every": 1,
            "threads": 1,
        },
    )


class Job:
    """A recipe in training.

    Args:
        recipe: the job.
        directory: for checkpoints.

    Attributes:
        ranks: that hold its state.
        worlds: how many ranks computed each committed step.
    """

    def __init__(self, recipe: Recipe, directory: Path) -> None:
        turns = Turns()
        self.arena = Arena(directory)
        self.arena.ring, self.arena.turn = turns.ring, turns
        self.recipe = recipe
        self.ranks: list[Rank] = []
        self.worlds: list[int] = []
        self._generation = self._started = self._world_size = 0
        self._resumed = False

    def play(self) -> None:
        """Train to the end.

        Raises:
            Whatever a rank raises, but for rings that are broken on purpose.
        """
        self.begin()
        for event in self.recipe.events:
            self._train_until(event)
            EVENTS[event.kind](self, self.ranks[event.rank % len(self.ranks)])
        self._train_until(None)

    def begin(self) -> list[Rank]:
        """Start the first ranks."""
        return self._start(self.recipe.ranks)

    def close(self) -> None:
        """End all ranks."""
        self.arena.close()

    def slices(self) -> list[list[Slice]]:
        """The rows of every committed step as the ranks took them."""
        plan = self.ranks[0].run._session.plan
        steps = []
        for step, world_size in enumerate(self.worlds):
            shares = [
                plan.share(step, rank=rank, world_size=world_size) for rank in range(world_size)
            ]
            steps.append(
                [
                    Slice(rank, request.epoch, request.rows, first_row)
                    for rank, share in enumerate(shares)
                    for request, first_row in zip(share.requests, share.first_rows, strict=True)
                ]
            )
        return steps

    # --- generations -----------------------------------------------------------------------

    def _start(self, count: int) -> list[Rank]:
        """Add ranks; those of a job in training take over its state."""
        spec, make = (
            spec_of(self.recipe, self.arena),
            partial(Task, self.recipe, resumed=self._resumed),
        )
        donor = self.ranks[0] if self.ranks else None
        for _ in range(count):
            rank = self.arena.start(make, spec, name=f"w{self._started}")
            self._started += 1
            if donor is not None and self.worlds:
                self.arena.copy_state(donor, rank)
            self.ranks.append(rank)
        return self.ranks

    def _train_until(self, event: Event | None) -> None:
        """One generation, which the event ends."""
        self._generation += 1
        self._world_size = len(self.ranks)
        flag = FLAGS.get(event.kind) if event else None
        for number, rank in enumerate(self.ranks):
            leaves = event is not None and event.kind == "leave"
            asks = number == (event.rank % len(self.ranks) if event and leaves else 0)
            rank.recorder.ask = (
                partial(_asked, rank, event.step, flag) if event and asks and flag else _nothing
            )
        before = len(self.worlds)
        self.arena.generation(
            self.ranks,
            generation=self._generation,
            wrap=partial(_cut, event, len(self.ranks)),
            writers=frozenset(range(len(self.ranks))),
        )
        cut = event is not None and event.kind in CUTS
        for rank in self.ranks:
            if rank.error is not None and not isinstance(rank.error, RingBroken):
                raise rank.error
        broken = [rank.error for rank in self.ranks if rank.error is not None]
        if broken and not cut:
            raise broken[0]
        self._count(before)

    def _count(self, before: int) -> None:
        """A prepared step that survivors commit was computed with those that are lost since."""
        committed = max(rank.run.committed_step for rank in self.ranks)
        self.worlds += [self._world_size] * (committed - before)

    # --- events ----------------------------------------------------------------------------

    def _go_on(self, _: Rank | None = None) -> None:
        """Ranks whose ring is broken agree on a state that all can reach, the newest."""
        reached = [set(_keys(rank)) for rank in self.ranks]
        common = set.intersection(*reached)
        key = max(common) if common else max(set.union(*reached))
        able = [rank for rank, keys in zip(self.ranks, reached, strict=True) if key in keys]
        for rank in able:
            rank.run.adopt_local(*key)
        for rank in self.ranks:
            if rank not in able:
                self.arena.copy_state(able[0], rank)
        self._count(len(self.worlds))

    def _lose(self, rank: Rank) -> None:
        if self._can_lose(rank):
            self.ranks.remove(rank)
        self._go_on()

    def _leave(self, rank: Rank) -> None:
        if self._can_lose(rank):
            self.ranks.remove(rank)

    def _can_lose(self, rank: Rank) -> bool:
        others = [one for one in self.ranks if one is not rank]
        return bool(others) and united(one.replica.held_part for one in others).is_whole

    def _join(self, _: Rank) -> None:
        self._start(1)

    def _stop(self, _: Rank) -> None:
        """All processes end, and as many others continue from their checkpoints."""
        names = [rank.name for rank in self.ranks]
        for rank in self.ranks:
            rank.run.close()
        self._resumed = True
        spec, make = spec_of(self.recipe, self.arena), partial(Task, self.recipe, resumed=True)
        self.ranks = [self.arena.start(make, spec, name=name) for name in names]
        for rank in self.ranks:
            held = rank.run.held()
            rank.run.adopt_local(held.generation, held.step)


def _nothing(_: int) -> Flags:
    return Flags()


def _asked(rank: Rank, step: int, flag: str, _: int) -> Flags:
    return Flags(**{flag: rank.run.committed_step + 1 >= step})


def _keys(rank: Rank) -> list[StateKey]:
    """States that a rank can make the live one."""
    engine = rank.run._session.engine
    if not rank.replica.has_its_part:
        return []
    return [key for key in (engine.live, engine.prepared) if key is not None]


def _cut(event: Event | None, ranks: int, rank: int, collective: Any) -> Any:
    method = CUTS.get(event.kind) if event else None
    if event is None or method is None or rank != event.rank % ranks:
        return collective
    return Cut(collective, event.step, method=method)


FLAGS: Final = {"yield": "yield_", "join": "yield_", "stop": "stop", "leave": "leave"}
"""With which a rank asks for the end of a generation."""

CUTS: Final = {"cut start": "start", "cut wait": "wait", "cut gather": "gather", "lose": "wait"}
"""The call in which a ring breaks."""

EVENTS: Final[dict[str, Any]] = {
    "cut start": Job._go_on,
    "cut wait": Job._go_on,
    "cut gather": Job._go_on,
    "lose": Job._lose,
    "yield": lambda job, rank: None,
    "join": Job._join,
    "leave": Job._leave,
    "stop": Job._stop,
}
