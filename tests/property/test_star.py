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

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtd.engine.shards import Division
from dtd.errors import ProtocolError
from dtd.exchange.ring.chunks import BucketShape, Operation
from dtd.exchange.ring.events import BucketDone, BucketsAdded, BucketStarted, StepOpened
from dtd.exchange.star.events import AddFrom, ChunkArrived, Effect, InScratchOf, ResumeLink, SendTo
from dtd.exchange.star.machine import Star
from dtd.wire.frames import Hold
from dtd.wire.messages import Chunk

ITEM_BYTES = 4
SCATTER, GATHER = Operation.REDUCE_SCATTER, Operation.ALL_GATHER
Element = tuple[int, ...]
NOTHING: Element = (-1,)
Frame = tuple[Chunk, list[Element]]


class Plan:
    """What all ranks do in each step.

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

    def __init__(self, core: Star, plans: Sequence[Plan], random: Random) -> None:
        self.core = core
        self.seat = core.seat
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
        self.careless = core.seat.own is None and random.random() < 0.5

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
            self.handle(BucketsAdded(buckets=shapes))
            return True
        ready = [
            index
            for index in range(known)
            if index not in self.started and (self.careless or self.plan.needs[index] <= self.done)
        ]
        if ready:
            index = self.random.choice(ready)
            self.started.add(index)
            self.handle(BucketStarted(bucket=index))
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
        self.handle(StepOpened(step=self.step, buckets=shapes, may_add=plan.added))
        return True

    def _lay_out(self, shapes: Sequence[BucketShape]) -> None:
        for shape in shapes:
            values = [NOTHING] * shape.elements
            if shape.operation is SCATTER and self.seat.own is None:
                values = [(self.seat.rank,)] * shape.elements
            elif shape.operation is GATHER:
                for segment in self.seat.held(shape.copies):
                    for at in elements_of(shape, segment, self.seat.servers):
                        values[at] = (segment, at)
            self.buckets.append(values)

    # --- the machine -------------------------------------------------------------------------

    def handle(self, event: StepOpened | BucketsAdded | BucketStarted | ChunkArrived) -> None:
        for effect in self.core.handle(event, 0.0):
            self._do(effect)
        self.core.check_invariants()

    def _do(self, effect: Effect) -> None:
        if isinstance(effect, SendTo):
            values = self.buckets[effect.chunk.bucket][effect.start : effect.stop]
            self.sent_elements += len(values)
            self.links.setdefault(effect.rank, deque()).append((effect.chunk, values))
        elif isinstance(effect, AddFrom):
            values, bucket = self.scratch.pop(effect.rank), self.buckets[effect.bucket]
            sums = zip(bucket[effect.start : effect.stop], values, strict=True)
            bucket[effect.start : effect.stop] = [own + other for own, other in sums]
        elif isinstance(effect, ResumeLink):
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
        if isinstance(place, InScratchOf):
            assert place.rank not in self.scratch
            self.scratch[place.rank] = values
        else:
            self.buckets[place.bucket][place.start : place.stop] = values
        self.handle(ChunkArrived(chunk=chunk))
        return False

    def _check(self, index: int) -> None:
        """A bucket that is done holds what it should."""
        assert index not in self.done
        shape, values = self.plan.shapes[index], self.buckets[index]
        held = self.seat.held(shape.copies)
        if shape.operation is GATHER:
            held = list(range(self.seat.servers))
        for segment in held:
            for at in elements_of(shape, segment, self.seat.servers):
                everyone = tuple(range(self.seat.trainers))
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


@settings(max_examples=150, deadline=None)
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
            Star(
                rank=rank,
                world_size=trainers + servers,
                servers=servers,
                generation=3,
                first_step=0,
                chunk_bytes=chunk_elements * ITEM_BYTES,
            ),
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


def network(rank: int, random: Random) -> Star:
    """A machine of two trainers and two servers in the middle of a step."""
    core = Star(
        rank=rank, world_size=4, servers=2, generation=3, first_step=5, chunk_bytes=2 * ITEM_BYTES
    )
    shapes = tuple(
        BucketShape(elements=9, item_bytes=ITEM_BYTES, operation=operation, copies=copies)
        for operation in (SCATTER, GATHER)
        for copies in (0, 1)
    )
    if random.random() < 0.9:
        core.handle(StepOpened(step=5, buckets=shapes, may_add=1), 0.0)
        for bucket in range(random.randint(0, 4)):
            core.handle(BucketStarted(bucket=bucket), 0.0)
    return core


@settings(max_examples=300, deadline=None)
@given(
    rank=st.integers(0, 3),
    seed=st.integers(0, 2**32),
    lies=st.lists(
        st.fixed_dictionaries(
            {
                "generation": st.sampled_from([3, 3, 3, 2]),
                "step": st.sampled_from([4, 5, 5, 5, 6, 7]),
                "phase": st.integers(0, 6),
                "hop": st.sampled_from([0, 0, 0, 1]),
                "bucket": st.integers(0, 6),
                "chunk": st.integers(0, 3),
                "source": st.integers(0, 5),
                "loan": st.sampled_from([0, 0, 0, 1]),
            }
        ),
        max_size=40,
    ),
)
def test_a_liar_is_refused_or_does_no_harm(
    rank: int, seed: int, lies: list[dict[str, int]]
) -> None:
    """Whatever comes over a link is refused, held or a place within the bucket."""
    random = Random(seed)
    core = network(rank, random)
    for fields in lies:
        chunk = Chunk(**fields)
        payload_bytes = random.choice([0, ITEM_BYTES, 2 * ITEM_BYTES])
        link = random.choice([chunk.source, random.randint(0, 3)])
        try:
            place = core.place(chunk, payload_bytes, link=link)
        except ProtocolError:
            continue
        if not isinstance(place, Hold):
            assert chunk.source == link != rank
            assert chunk.generation == 3
            assert chunk.step == 5
            core.handle(ChunkArrived(chunk=chunk), 0.0)
            with pytest.raises(ProtocolError):
                core.place(chunk, payload_bytes, link=link)
        core.check_invariants()
    assert core.explain()


@pytest.mark.parametrize("rank", range(5))
@pytest.mark.parametrize("copies", range(3))
def test_held_segments_are_those_of_the_division(rank: int, copies: int) -> None:
    seat = Star(rank=rank, world_size=5, servers=3, generation=1, first_step=0, chunk_bytes=8).seat
    division = Division(world_size=5, mirrors=copies, servers=3)
    assert seat.held(copies) == division.held(rank)
    for segment in range(3):
        holders = seat.holders(segment, copies)
        assert holders[0] == division.owner(segment)
        assert (rank in holders) == (segment in division.held(rank))
