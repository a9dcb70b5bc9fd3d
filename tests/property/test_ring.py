"""A network of ring machines: whatever the order of deliveries, every element is summed once.

The payload trick: rank r contributes `1 << r` to every element and additions are checked, so an
element that ends as `(1 << world_size) - 1` was added exactly once by every rank.  Nothing is
copied on sending: a chunk is read when it is delivered, so memory must not change before that.
Contributions that are exchanged whole must lie in their ranks' places: so they are summed in rank
order.

Links lend some buckets and send others.  What is lent is read when the machine says so and not when
the chunk comes, and `_Memory` sees that nobody has written there meanwhile.  A lent bucket that is
done is overwritten at once: nobody may need it any more.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtd.exchange.schedule.chunks import (
    MAX_EXCHANGED,
    BucketShape,
    Operation,
    Segments,
    cut,
    exchanged,
)
from dtd.exchange.schedule.crossover import whole_bytes
from dtd.exchange.schedule.effects import (
    BucketDone,
    CopyShared,
    Effect,
    GatherDone,
    InBucket,
    InContributions,
    InScratch,
    InShared,
    KeepOwn,
    Reduce,
    ReduceShared,
    SendChunk,
    SendContribution,
    SendGather,
    SendReleased,
    SumContributions,
)
from dtd.exchange.schedule.machine import Machine
from dtd.exchange.schedule.schedules import RingSchedules
from dtd.exchange.schedule.tree import most_hops
from dtd.wire.frames import Hold
from dtd.wire.messages import Chunk, ShmReleased, SmallGather
from tests.shards import held_segments

ITEM_BYTES = 4
GARBAGE = -1
SUM = BucketShape(elements=0, item_bytes=ITEM_BYTES)


class _Memory:
    """One bucket's elements, some of which the next rank has yet to read."""

    def __init__(self, values: list[int]) -> None:
        self.values = values
        self.to_be_read: list[tuple[int, int]] = []

    def lend(self, start: int, stop: int) -> None:
        self.to_be_read.append((start, stop))

    def borrowed(self, start: int, stop: int) -> list[int]:
        self.to_be_read.remove((start, stop))
        return self.values[start:stop]

    def write(self, start: int, values: Sequence[int]) -> None:
        stop = start + len(values)
        for first, last in self.to_be_read:
            assert stop <= first or last <= start, "written to before the next rank has read it"
        self.values[start:stop] = values

    def add(self, start: int, values: Sequence[int]) -> None:
        own = self.values[start : start + len(values)]
        for value, other in zip(own, values, strict=True):
            assert not value & other, "a contribution was added twice"
        self.write(start, [value + other for value, other in zip(own, values, strict=True)])


_Sent = tuple[Chunk | SmallGather, Callable[[], list[int]]]


class _Node:
    """One rank: its machine, the memory it names, and the program that its trainer runs.

    Attributes:
        previous: the node of the rank before.
        outboxes: by rank, frames to those after this one.
        answers: frames to the previous rank.
    """

    previous: _Node

    def __init__(
        self,
        core: Machine,
        steps: Sequence[Sequence[int]],
        *,
        item_bytes: int,
        slot_count: int,
        lending: float,
        random: Random,
        added: Sequence[int],
        kinds: Sequence[BucketShape],
        uneven: bool,
    ) -> None:
        self.core = core
        self.item_bytes = item_bytes
        self.slot_count = slot_count
        self.lending = lending
        self.random = random
        self.added = added
        self.kinds = kinds
        self.uneven = uneven
        self.sent_elements = 0
        self.loan = 1
        self.lent: frozenset[int] = frozenset()
        self.outboxes: dict[int, deque[_Sent]] = defaultdict(deque)
        self.answers: deque[ShmReleased] = deque()
        self.buckets: list[_Memory] = []
        self.shapes: list[BucketShape] = []
        self.slots: dict[int, list[int]] = {}
        self.contributions: dict[tuple[int, int], list[int]] = {}
        self.done: set[int] = set()
        self.exchanges_done = 0
        self.finished_steps = 0
        self.program = deque(self._program(steps, random))

    def _program(
        self, steps: Sequence[Sequence[int]], random: Random
    ) -> list[tuple[Callable[[], bool], Callable[[], None]]]:
        """(may it run now?, what it does): what a trainer does, one call after another."""
        program: list[tuple[Callable[[], bool], Callable[[], None]]] = []
        for step, sizes in enumerate(steps):
            order = random.sample(range(len(sizes)), len(sizes))
            program.append((lambda: True, lambda step=step, sizes=sizes: self._open(step, sizes)))
            program += [
                (lambda: True, lambda bucket=bucket: self._start(bucket)) for bucket in order
            ]
            if self.added:
                first, count = len(sizes), len(sizes) + len(self.added)
                order = random.sample(range(first, count), count - first)
                program.append((lambda first=first: len(self.done) == first, self._add))
                program += [
                    (lambda: True, lambda bucket=bucket: self._start(bucket)) for bucket in order
                ]
            in_all = len(sizes) + len(self.added)
            program.append((lambda in_all=in_all: len(self.done) == in_all, self._offer))
            program.append((lambda: self.exchanges_done == 1, self._offer))
            program.append((lambda: self.exchanges_done == 2, self._close))
        return program

    def _open(self, step: int, sizes: Sequence[int]) -> None:
        self.loan += 1
        self.buckets = []
        self.shapes = []
        self.contributions = {}
        self.done = set()
        self.exchanges_done = 0
        shapes = self._new_buckets(sizes)
        lent = (index for index in range(len(sizes)) if self.random.random() < self.lending)
        self.lent = frozenset(lent)
        self.act(
            self.core.open_step(
                step, shapes, version=self.loan, shared=self.lent, may_add=len(self.added)
            )
        )

    def _add(self) -> None:
        self.act(self.core.add(self._new_buckets(self.added)))

    def _new_buckets(self, sizes: Sequence[int]) -> tuple[BucketShape, ...]:
        """Contributions in memory, and what the machine is told of them."""
        first = len(self.shapes)
        for size in sizes:
            shape = self._shape(size)
            self.shapes.append(shape)
            values = [1 << self.core.rank] * size
            if shape.operation is Operation.ALL_GATHER:
                values = [GARBAGE] * size
                self._write_owned(values, shape, shape.copies)
            self.buckets.append(_Memory(values))
        return tuple(self.shapes[first:])

    def _shape(self, size: int) -> BucketShape:
        """The next bucket's, equal on all ranks."""
        index = len(self.shapes)
        kind = self.kinds[index % len(self.kinds)]
        bounds: tuple[int, ...] = ()
        if self.uneven and kind.operation.is_half:
            cuts = Random(f"{index} {size}").choices(range(size + 1), k=self.core.world_size - 1)
            bounds = (0, *sorted(cuts), size)
        return replace(kind, elements=size, item_bytes=self.item_bytes, bounds=bounds)

    def _segments(self, shape: BucketShape) -> Segments:
        return cut(shape, world_size=self.core.world_size, chunk_bytes=1)

    def _write_owned(self, values: list[int], shape: BucketShape, further: int) -> None:
        """Write what its owner gives to the own segment and to those of ranks before this one."""
        for distance, index in enumerate(
            held_segments(self.core.rank, self.core.world_size, further)
        ):
            start, stop = self._segments(shape).segment(index)
            owner = (self.core.rank - distance) % self.core.world_size
            values[start:stop] = [1 << owner] * (stop - start)

    def _start(self, bucket: int) -> None:
        self.act(self.core.start(bucket))

    def _offer(self) -> None:
        self.act(self.core.offer_gather())

    def _close(self) -> None:
        kept = [index for index in range(len(self.buckets)) if index not in self.lent]
        assert all(self.is_whole(index) for index in kept)
        self.finished_steps += 1

    def is_whole(self, index: int) -> bool:
        values, shape = self.buckets[index].values, self.shapes[index]
        whole = [(1 << self.core.world_size) - 1] * len(values)
        if shape.operation is Operation.REDUCE_SCATTER:
            held = held_segments(self.core.rank, self.core.world_size, shape.copies)
            ranges = [self._segments(shape).segment(segment) for segment in held]
            return all(values[start:stop] == whole[start:stop] for start, stop in ranges)
        if shape.operation is Operation.ALL_GATHER:
            whole = [GARBAGE] * len(values)
            furthest = self.core.world_size if shape.hops is None else shape.hops
            self._write_owned(whole, shape, max(furthest, shape.copies))
        return values == whole

    def may_run(self) -> bool:
        return bool(self.program) and self.program[0][0]()

    def run(self) -> None:
        self.program.popleft()[1]()

    def act(self, effects: list[Effect]) -> None:
        reads = sum(isinstance(effect, ReduceShared | CopyShared) for effect in effects)
        assert reads <= max(self.slot_count, 1), "too much to read at once"
        for effect in effects:
            self._perform(effect)
        self.core.check_invariants()

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, SendChunk):
            self._send_chunk(effect)
        elif isinstance(effect, SendGather):
            self.outboxes[effect.rank].append((effect.gather, list))
        elif isinstance(effect, Reduce):
            self.buckets[effect.bucket].add(effect.start, self.slots.pop(effect.slot))
        elif isinstance(effect, ReduceShared):
            self.buckets[effect.bucket].add(effect.start, self._borrowed(effect))
        elif isinstance(effect, CopyShared):
            self.buckets[effect.bucket].write(effect.start, self._borrowed(effect))
        elif isinstance(effect, SendReleased):
            assert not self.previous.buckets[effect.released.bucket].to_be_read
            self.answers.append(effect.released)
        elif isinstance(effect, KeepOwn):
            own = list(self.buckets[effect.bucket].values)
            self.contributions[effect.bucket, self.core.rank] = own
        elif isinstance(effect, SendContribution):
            given = self.contributions[effect.chunk.bucket, effect.origin]
            self.outboxes[effect.rank].append((effect.chunk, lambda: given))
        elif isinstance(effect, SumContributions):
            self._sum(effect.bucket)
        elif isinstance(effect, BucketDone):
            self._finish(effect.bucket)
        elif isinstance(effect, GatherDone):
            assert effect.sequence == self.exchanges_done
            self.exchanges_done += 1

    def _send_chunk(self, effect: SendChunk) -> None:
        bucket = self.buckets[effect.chunk.bucket]
        self.sent_elements += effect.stop - effect.start
        if effect.chunk.loan:
            assert effect.chunk.bucket in self.lent
            bucket.lend(effect.start, effect.stop)
            self.outboxes[effect.rank].append((effect.chunk, list))
        else:
            values = bucket.values
            outbox = self.outboxes[effect.rank]
            outbox.append((effect.chunk, lambda: values[effect.start : effect.stop]))

    def _borrowed(self, effect: ReduceShared | CopyShared) -> list[int]:
        """Elements of the previous rank's bucket as they are now."""
        assert effect.version == self.previous.loan, "read under another number"
        return self.previous.buckets[effect.bucket].borrowed(effect.start, effect.stop)

    def _finish(self, index: int) -> None:
        assert index not in self.done
        self.done.add(index)
        bucket = self.buckets[index]
        assert self.is_whole(index)
        if index in self.lent:
            bucket.write(0, [GARBAGE] * len(bucket.values))

    def _sum(self, index: int) -> None:
        bucket = self.buckets[index]
        size = len(bucket.values)
        for rank in range(self.core.world_size):
            assert self.contributions[index, rank] == [1 << rank] * size
        bucket.write(0, [(1 << self.core.world_size) - 1] * size)

    def receive(self, message: Chunk | SmallGather, payload: Callable[[], list[int]]) -> bool:
        """Take a frame from a rank before this one, or leave it where it is."""
        values = payload()
        if isinstance(message, SmallGather):
            if isinstance(self.core.accept_gather(message, link=message.source), Hold):
                return False
            self.act(self.core.gather_received(message))
            return True
        place = self.core.place(message, len(values) * self.item_bytes, link=message.source)
        if isinstance(place, Hold):
            return False
        slot = place.slot if isinstance(place, InScratch | InShared) else None
        if slot is not None:
            assert slot in range(self.slot_count), "there is no such scratch slot"
            assert slot not in self.slots, "a scratch slot was given out twice"
        if isinstance(place, InScratch):
            self.slots[place.slot] = values
        elif isinstance(place, InContributions):
            assert (place.bucket, place.origin) not in self.contributions
            self.contributions[place.bucket, place.origin] = values
        elif isinstance(place, InBucket):
            self.buckets[place.bucket].write(place.start, values)
        self.act(self.core.received(message, slot))
        return True


def run_network(
    world_size: int,
    steps: Sequence[Sequence[int]],
    *,
    chunk_elements: int,
    slots: int,
    random: Random,
    lending: float = 0.0,
    item_bytes: int = ITEM_BYTES,
    added: Sequence[int] = (),
    kinds: Sequence[BucketShape] = (SUM,),
    uneven: bool = False,
    strides: Sequence[int] = (),
) -> list[_Node]:
    """Run all ranks' programs; in every turn one thing that can happen does, chosen at random.

    Buckets take turns in what they are (`kinds`, whatever their sizes).

    Each link lends nothing, or each bucket of a step with the probability `lending`.
    """
    nodes = [
        _Node(
            Machine(
                RingSchedules(
                    rank,
                    world_size,
                    chunk_bytes=chunk_elements * item_bytes,
                    whole_bytes=whole_bytes(world_size, most_hops(world_size)),
                    strides=strides,
                ),
                generation=3,
                first_step=0,
                scratch_slots=slots,
            ),
            steps,
            item_bytes=item_bytes,
            slot_count=slots,
            lending=random.choice((0.0, lending, lending)),
            random=random,
            added=added,
            kinds=kinds,
            uneven=uneven,
        )
        for rank in range(world_size)
    ]
    for rank, node in enumerate(nodes):
        node.previous = nodes[rank - 1]
    pace = [random.random() for _ in nodes]
    while any(node.program for node in nodes):
        runnable = [node for node in nodes if node.may_run()]
        moved = False
        for place in random.sample(range(3 * world_size), 3 * world_size):
            node, turn = nodes[place // 3], place % 3
            if turn == 0:
                for rank in random.sample(list(node.outboxes), len(node.outboxes)):
                    moved |= _deliver_some(node.outboxes[rank], nodes[rank], random)
            elif turn == 1:
                moved |= _answer(node, random)
            elif node in runnable and random.random() < pace[node.core.rank]:
                node.run()
                moved = True
        if not moved and not any(node.may_run() for node in nodes):
            raise AssertionError("stuck: " + "; ".join(node.core.explain() for node in nodes))
    assert all(node.finished_steps == len(steps) for node in nodes)
    assert not any(any(node.outboxes.values()) or node.answers for node in nodes)
    assert not any(node.slots for node in nodes)
    assert {node.core.explain() for node in nodes} == {f"step {len(steps) - 1}: waits for nothing"}
    return nodes


def _deliver_some(outbox: deque[_Sent], to: _Node, random: Random) -> bool:
    """Let a random number of frames of one link arrive, in their order."""
    delivered = 0
    wanted = random.choice((0, 1, 1, 2, 5, 1000))
    while outbox and delivered < wanted and to.receive(*outbox[0]):
        outbox.popleft()
        delivered += 1
    return delivered > 0 or (wanted == 0 and bool(outbox))


def _answer(node: _Node, random: Random) -> bool:
    """Perhaps let one frame arrive at the rank before."""
    if not node.answers:
        return False
    if random.random() < 0.5:
        node.previous.act(node.previous.core.released(node.answers.popleft()))
    return True


sizes = st.one_of(st.integers(0, 9), st.integers(10, 200))
copies = st.integers(0, 9)
kinds_of_bucket = st.one_of(
    st.just(SUM),
    st.just(replace(SUM, operation=Operation.MAXIMUM)),
    st.builds(
        lambda copies: replace(SUM, operation=Operation.REDUCE_SCATTER, copies=copies), copies
    ),
    st.builds(
        lambda copies, hops: replace(SUM, operation=Operation.ALL_GATHER, copies=copies, hops=hops),
        copies,
        st.none() | copies,
    ),
)


@st.composite
def strides_of(draw: st.DrawFn, world_size: int) -> tuple[int, ...]:
    """Those of the tree: all powers of two, or some strides and the way around the ring."""
    if world_size == 1 or draw(st.booleans()):
        return ()
    return tuple(sorted({1, *draw(st.sets(st.integers(1, world_size - 1), max_size=3))}))


@settings(max_examples=50)
@given(
    data=st.data(),
    world_size=st.integers(1, 12),
    steps=st.lists(st.lists(sizes, max_size=4), min_size=1, max_size=3),
    chunk_elements=st.one_of(st.integers(1, 12), st.just(1000)),
    slots=st.integers(1, 8),
    lending=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 2**32),
)
def test_every_element_is_summed_exactly_once_in_any_interleaving(
    data: st.DataObject,
    world_size: int,
    steps: list[list[int]],
    chunk_elements: int,
    slots: int,
    lending: float,
    seed: int,
) -> None:
    run_network(
        world_size,
        steps,
        chunk_elements=chunk_elements,
        slots=slots,
        lending=lending,
        random=Random(seed),
        strides=data.draw(strides_of(world_size)),
    )


@settings(max_examples=75)
@given(
    data=st.data(),
    world_size=st.integers(1, 8),
    steps=st.lists(st.lists(sizes, max_size=3), min_size=1, max_size=2),
    added=st.lists(sizes, max_size=3),
    kinds=st.lists(kinds_of_bucket, min_size=1, max_size=4),
    uneven=st.booleans(),
    chunk_elements=st.one_of(st.integers(1, 12), st.just(1000)),
    slots=st.integers(1, 4),
    lending=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 2**32),
)
def test_halves_of_a_sum_and_buckets_that_are_added_in_any_interleaving(
    data: st.DataObject,
    world_size: int,
    steps: list[list[int]],
    added: list[int],
    kinds: list[BucketShape],
    uneven: bool,
    chunk_elements: int,
    slots: int,
    lending: float,
    seed: int,
) -> None:
    run_network(
        world_size,
        steps,
        chunk_elements=chunk_elements,
        slots=slots,
        lending=lending,
        random=Random(seed),
        added=added,
        kinds=kinds,
        uneven=uneven,
        strides=data.draw(strides_of(world_size)),
    )


@settings(max_examples=75)
@given(
    world_size=st.integers(1, 8),
    elements=sizes,
    copies=copies,
    lending=st.sampled_from([0.0, 1.0]),
    uneven=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_both_halves_send_what_a_sum_sends_whatever_is_copied(
    world_size: int, elements: int, copies: int, lending: float, uneven: bool, seed: int
) -> None:
    halves = [
        replace(SUM, operation=Operation.REDUCE_SCATTER, copies=copies),
        replace(SUM, operation=Operation.ALL_GATHER, copies=copies),
    ]
    nodes = run_network(
        world_size,
        [[elements, elements]],
        chunk_elements=5,
        slots=2,
        lending=lending,
        random=Random(seed),
        kinds=halves,
        uneven=uneven,
    )
    assert sum(node.sent_elements for node in nodes) == 2 * (world_size - 1) * elements


@settings(max_examples=50)
@given(data=st.data(), world_size=st.integers(2, 8), seed=st.integers(0, 2**32))
def test_buckets_around_the_limit_go_round_in_either_way(
    data: st.DataObject, world_size: int, seed: int
) -> None:
    item_bytes = 8192
    most_bytes = whole_bytes(world_size, most_hops(world_size))
    most = most_bytes // item_bytes
    near = st.integers(most - 1, most + 2)
    steps = data.draw(st.lists(st.lists(near, min_size=1, max_size=4), min_size=1, max_size=3))
    chunk_elements = data.draw(st.sampled_from([most - 1, most, 1000]))
    for elements in range(most - 1, most + 3):
        shape = BucketShape(elements=elements, item_bytes=item_bytes)
        whole = exchanged(
            [shape],
            world_size=world_size,
            chunk_bytes=chunk_elements * item_bytes,
            whole_bytes=most_bytes,
        )
        assert bool(whole) == (elements <= min(most, chunk_elements))
    run_network(
        world_size,
        steps,
        chunk_elements=chunk_elements,
        slots=2,
        lending=data.draw(st.sampled_from([0.0, 1.0])),
        random=Random(seed),
        item_bytes=item_bytes,
    )


def test_more_small_buckets_than_may_go_round_whole() -> None:
    steps = [[3] * (2 * MAX_EXCHANGED + 1)] * 2
    run_network(4, steps, chunk_elements=8, slots=2, random=Random(3))


@pytest.mark.parametrize("lending", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_one_scratch_slot_is_enough(world_size: int, seed: int, lending: float) -> None:
    steps = [[120, 0, 5, 64], [33, 7]]
    random = Random(seed)
    run_network(world_size, steps, chunk_elements=3, slots=1, lending=lending, random=random)


@pytest.mark.parametrize(("seed", "lending"), [(0, 0.0), (1, 1.0)])
def test_a_large_bucket_with_many_chunks_in_flight(seed: int, lending: float) -> None:
    random = Random(seed)
    run_network(5, [[20_003]], chunk_elements=64, slots=4, lending=lending, random=random)


@pytest.mark.parametrize("strides", [(), (1, 4, 32), (1,)])
def test_a_large_world(strides: tuple[int, ...]) -> None:
    steps = [[40 * 3 + 5, 10, 2]]
    random = Random(1)
    run_network(40, steps, chunk_elements=20, slots=8, lending=0.5, random=random, strides=strides)
