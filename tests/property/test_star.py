"""A network of star machines: whatever the order of deliveries, sums are whole and in rank order.

The payload trick: trainer r contributes the tuple (r,) to every element, and adding joins tuples.
So an element that ends as (0, 1, ..., T - 1) was added exactly once by every trainer, in rank
order.  Buckets depend on others' results in random ways, alike on all servers, and links are
delivered in random order: no rank may wait for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from dtd.engine.shards import Division
from dtd.exchange.schedule.chunks import BucketShape, Operation
from dtd.exchange.schedule.effects import (
    BucketDone,
    Effect,
    InBucket,
    InScratch,
    Reduce,
    Resume,
    SendChunk,
)
from dtd.exchange.schedule.machine import Machine
from dtd.exchange.schedule.schedules import StarSchedules
from dtd.wire.frames import Hold
from dtd.wire.messages import Chunk

ITEM_BYTES = 4
SCATTER, GATHER = Operation.REDUCE_SCATTER, Operation.ALL_GATHER
Element = tuple[int, ...]
NOTHING: Element = (-1,)
Frame = tuple[Chunk, list[Element]]


class Plan:
    """The calls of all ranks in each step.

    Attributes:
        shapes: the buckets, the last `added` of which are added within the step.
        needs: for each bucket the lower ones whose results it depends on.
    """

    def __init__(self, random: Random, servers: int) -> None:
        count = random.randint(0, 7)
        self.shapes = tuple(
            BucketShape(
                elements=random.choice([0, 1, servers - 1, servers, random.randint(2, 40)]),
                item_bytes=ITEM_BYTES,
                operation=random.choice([SCATTER, GATHER]),
                copies=random.randint(0, servers),
            )
            for _ in range(count)
        )
        self.added = random.randint(0, count)
        self.needs = [
            {random.randrange(index) for _ in range(random.randint(0, 2))} if index else set()
            for index in range(count)
        ]
        for index in range(count - self.added, count):
            self.needs[index] |= set(range(count - self.added))


class Rank:
    """One rank: its machine, the memory it names, and the program that its trainer runs."""

    def __init__(self, core: Machine, servers: int, plans: Sequence[Plan], random: Random) -> None:
        self.core = core
        self.servers = servers
        self.trainers = core.world_size - servers
        self.serves = core.rank >= self.trainers
        self.plans = plans
        self.random = random
        self.links: dict[int, deque[Frame]] = {}
        self.buckets: list[list[Element]] = []
        self.scratch: dict[int, list[Element]] = {}
        self.held: set[int] = set()
        self.started: set[int] = set()
        self.done: set[int] = set()
        self.step = -1
        self.offered = False
        self.sent_elements = 0
        self.received_elements = 0
        self.careless = not self.serves and random.random() < 0.5

    @property
    def plan(self) -> Plan:
        return self.plans[self.step]

    def advance(self, others: Sequence[Rank]) -> bool:
        """Do one thing of the program, if it is possible; returns whether it was."""
        if self.step < 0 or (self.offered and all(one.has_offered(self.step) for one in others)):
            return self._open()
        if self.offered:
            return False
        known = len(self.buckets)
        if known < len(self.plan.shapes) and len(self.done) == known:
            shapes = self.plan.shapes[known:]
            self._lay_out(shapes)
            self.act(self.core.add(shapes))
            return True
        ready = [
            index
            for index in range(known)
            if index not in self.started and (self.careless or self.plan.needs[index] <= self.done)
        ]
        if ready:
            index = self.random.choice(ready)
            self.started.add(index)
            self.act(self.core.start(index))
            return True
        self.offered = len(self.done) == len(self.plan.shapes)
        return self.offered

    def has_offered(self, step: int) -> bool:
        return self.step > step or (self.step == step and self.offered)

    def _open(self) -> bool:
        if self.step + 1 == len(self.plans):
            return False
        self.step += 1
        self.offered = False
        self.started, self.done, self.buckets = set(), set(), []
        plan = self.plan
        shapes = plan.shapes[: len(plan.shapes) - plan.added]
        self._lay_out(shapes)
        self.act(self.core.open_step(self.step, shapes, may_add=plan.added))
        return True

    def _lay_out(self, shapes: Sequence[BucketShape]) -> None:
        for shape in shapes:
            values = [NOTHING] * shape.elements
            if shape.operation is SCATTER and not self.serves:
                values = [(self.core.rank,)] * shape.elements
            elif shape.operation is GATHER:
                for segment in self.held_segments(shape):
                    for at in elements_of(shape, segment, self.servers):
                        values[at] = (segment, at)
            self.buckets.append(values)

    # --- the machine -------------------------------------------------------------------------

    def act(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            self._do(effect)
        self.core.check_invariants()

    def _do(self, effect: Effect) -> None:
        if isinstance(effect, SendChunk):
            values = self.buckets[effect.chunk.bucket][effect.start : effect.stop]
            self.sent_elements += len(values)
            self.links.setdefault(effect.rank, deque()).append((effect.chunk, values))
        elif isinstance(effect, Reduce):
            values, bucket = self.scratch.pop(effect.slot), self.buckets[effect.bucket]
            sums = zip(bucket[effect.start : effect.stop], values, strict=True)
            bucket[effect.start : effect.stop] = [own + other for own, other in sums]
        elif isinstance(effect, Resume):
            self.held.remove(effect.rank)
        else:
            assert isinstance(effect, BucketDone)
            self._check(effect.bucket)
            self.done.add(effect.bucket)

    def receive(self, sender: int, frame: Frame) -> bool:
        """Take a frame from a link; returns whether it is held."""
        chunk, values = frame
        if sender in self.held:
            return True
        place = self.core.place(chunk, len(values) * ITEM_BYTES, link=sender)
        if isinstance(place, Hold):
            self.held.add(sender)
            return True
        self.received_elements += len(values)
        slot = None
        if isinstance(place, InScratch):
            slot = place.slot
            assert slot not in self.scratch
            self.scratch[slot] = values
        else:
            assert isinstance(place, InBucket)
            self.buckets[place.bucket][place.start : place.stop] = values
        self.act(self.core.received(chunk, slot))
        return False

    def held_segments(self, shape: BucketShape) -> list[int]:
        division = Division(
            world_size=self.core.world_size, mirrors=shape.copies, servers=self.servers
        )
        return division.held(self.core.rank)

    def _check(self, index: int) -> None:
        """A bucket that is done holds what it should."""
        assert index not in self.done
        shape, values = self.plan.shapes[index], self.buckets[index]
        held = self.held_segments(shape)
        if shape.operation is GATHER:
            held = list(range(self.servers))
        for segment in held:
            for at in elements_of(shape, segment, self.servers):
                everyone = tuple(range(self.trainers))
                assert values[at] == (everyone if shape.operation is SCATTER else (segment, at))


def elements_of(shape: BucketShape, segment: int, servers: int) -> range:
    return range(shape.elements * segment // servers, shape.elements * (segment + 1) // servers)


def run(ranks: Sequence[Rank], random: Random) -> None:
    """Let ranks and links advance in random order, until nothing is left to do."""
    idle: set[object] = set()
    everything: list[tuple[int, int | None]] = [(rank, None) for rank in range(len(ranks))]
    everything += [(a, b) for a in range(len(ranks)) for b in range(len(ranks)) if a != b]
    while len(idle) < len(everything):
        one, other = random.choice([each for each in everything if each not in idle])
        if other is None:
            moved = ranks[one].advance(ranks)
        else:
            queue = ranks[one].links.get(other, deque())
            moved = bool(queue) and not ranks[other].receive(one, queue[0])
            if moved:
                queue.popleft()
        idle = set() if moved else idle | {(one, other)}


@settings(max_examples=75, deadline=None)
@given(
    trainers=st.integers(1, 4),
    servers=st.integers(1, 4),
    steps=st.integers(1, 3),
    chunk_elements=st.integers(1, 9),
    seed=st.integers(0, 2**32),
)
def test_every_rank_gets_its_sums_whatever_the_order(
    trainers: int, servers: int, steps: int, chunk_elements: int, seed: int
) -> None:
    random = Random(seed)
    plans = [Plan(random, servers) for _ in range(steps)]
    ranks = [
        Rank(
            Machine(
                StarSchedules(
                    rank,
                    trainers + servers,
                    servers=servers,
                    chunk_bytes=chunk_elements * ITEM_BYTES,
                ),
                generation=3,
                first_step=0,
                scratch_slots=trainers + servers,
            ),
            servers,
            plans,
            random,
        )
        for rank in range(trainers + servers)
    ]
    run(ranks, random)
    for rank in ranks:
        assert rank.step == steps - 1, rank.core.explain()
        assert rank.offered, rank.core.explain()
        assert "waits for nothing" in rank.core.explain()
        assert not any(rank.links.values())
    scattered, gathered = (
        sum(one.elements for plan in plans for one in plan.shapes if one.operation is operation)
        for operation in (SCATTER, GATHER)
    )
    for rank in ranks[:trainers]:
        assert (rank.sent_elements, rank.received_elements) == (scattered, gathered)
