"""The ring's node: which memory it names, which memory it sends, what it adds to what."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from dtd.errors import ErrorCode, LocalProtocolError, ProtocolError
from dtd.exchange.api import BucketMemory
from dtd.exchange.ring.chunks import Operation
from dtd.exchange.ring.lending import ReadPace
from dtd.exchange.ring.machine import Ring
from dtd.exchange.ring_node import MAX_WORD_BYTES, RingNode
from dtd.exchange.shared_memory import NOTHING_LENT
from dtd.wire.frames import HOLD
from dtd.wire.messages import Chunk, Phase, ShmReleased, SmallGather

MemoryOf = Callable[[np.ndarray], BucketMemory]
SCATTER, GATHER, EXCHANGE = Phase.REDUCE_SCATTER, Phase.ALL_GATHER, Phase.EXCHANGE
LOAN = 7


class Harness:
    """Rank 0 of two, and everything it did."""

    def __init__(
        self,
        *,
        world_size: int = 2,
        chunk_bytes: int = 8,
        slots: int = 2,
        loans: Shelf | None = None,
    ) -> None:
        self.sent: list[tuple[Chunk | SmallGather, bytes | memoryview]] = []
        self.resumed = 0
        self.buckets_done: list[int] = []
        self.all_words: list[list[bytes]] = []
        core = Ring(
            rank=0,
            world_size=world_size,
            generation=1,
            first_step=0,
            chunk_bytes=chunk_bytes,
            scratch_slots=slots,
        )
        self.node = RingNode(core, self, loans=loans)

    def send(self, message: Chunk | SmallGather, payload: bytes | memoryview) -> None:
        self.sent.append((message, payload))

    def resume(self) -> None:
        self.resumed += 1

    def bucket_done(self, bucket: int) -> None:
        self.buckets_done.append(bucket)

    def words_done(self, words: list[bytes]) -> None:
        self.all_words.append(words)

    def chunk(
        self, phase: Phase, number: int = 0, *, hop: int = 0, step: int = 0, loan: int = 0
    ) -> Chunk:
        return Chunk(
            generation=1,
            step=step,
            phase=phase,
            hop=hop,
            bucket=0,
            chunk=number,
            source=self.node.core.world_size - 1,
            loan=loan,
        )

    def word(self, sequence: int = 0, *, step: int = 0) -> SmallGather:
        return SmallGather(generation=1, step=step, sequence=sequence, hop=0, origin=1, source=1)

    def receive(self, chunk: Chunk, values: np.ndarray) -> memoryview:
        place = self.node.place(chunk, values.nbytes)
        assert isinstance(place, memoryview)
        place[:] = values.tobytes()
        self.node.received(chunk, place)
        return place

    def hear(self, chunk: Chunk) -> None:
        """A lent chunk, which has no payload."""
        assert self.node.place(chunk, 0) is None
        self.node.received(chunk, memoryview(b""))


class Shelf:
    """Stands for the loans of an endpoint: one bucket of the previous rank, and what was done."""

    def __init__(self, theirs: np.ndarray, *, lends: bool = False) -> None:
        self.theirs = memoryview(theirs.view(np.uint8))
        self.loan = LOAN
        self.given_back: list[ShmReleased] = []
        self.errors: list[ProtocolError] = []
        self.checks = 0
        self._lends = lends

    def lendable(self, buckets: Sequence[BucketMemory]) -> tuple[int, frozenset[int]]:
        return (LOAN, frozenset(range(len(buckets)))) if self._lends else NOTHING_LENT

    def read(self, bucket: int, start_byte: int, stop_byte: int) -> memoryview:
        assert bucket == 0
        return self.theirs[start_byte:stop_byte]

    def still_lent(self, loan: int) -> None:
        self.checks += 1
        if loan != self.loan:
            raise ProtocolError(ErrorCode.RECALLED, "recalled")

    def give_back(self, taken: ShmReleased) -> None:
        self.given_back.append(taken)

    def lost(self, error: ProtocolError) -> None:
        self.errors.append(error)


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def test_a_bucket_of_two_ranks_from_start_to_done(memory_of: MemoryOf) -> None:
    harness = Harness()
    array = floats(1, 2, 3, 4)
    harness.node.open_step(0, [memory_of(array)])
    harness.node.start(0)
    harness.receive(harness.chunk(SCATTER), floats(30, 40))
    assert array.tolist() == [1, 2, 33, 44]
    harness.receive(harness.chunk(GATHER), floats(11, 22))
    assert array.tolist() == [11, 22, 33, 44]
    assert harness.buckets_done == [0]
    assert [message for message, _ in harness.sent] == [
        Chunk(generation=1, step=0, phase=phase, hop=0, bucket=0, chunk=0, source=0)
        for phase in (SCATTER, GATHER)
    ]
    assert harness.node.sent_bytes == 16
    assert harness.node.busy_s() >= 0


def test_payloads_are_the_buckets_own_memory(memory_of: MemoryOf) -> None:
    harness = Harness()
    array = floats(1, 2, 3, 4)
    memory = memory_of(array)
    harness.node.open_step(0, [memory])
    harness.node.start(0)
    payload = harness.sent[0][1]
    assert isinstance(payload, memoryview)
    assert np.shares_memory(np.frombuffer(payload, np.uint8), array)
    assert payload == memory.view[0:8]
    place = harness.node.place(harness.chunk(GATHER), 8)
    assert isinstance(place, memoryview)
    assert np.shares_memory(np.frombuffer(place, np.uint8), array)


def test_what_is_to_be_added_is_received_in_scratch_memory(memory_of: MemoryOf) -> None:
    harness = Harness()
    array = floats(1, 2, 3, 4)
    harness.node.open_step(0, [memory_of(array)])
    scratch = harness.receive(harness.chunk(SCATTER), floats(30, 40))
    assert not np.shares_memory(np.frombuffer(scratch, np.uint8), array)
    assert array.tolist() == [1, 2, 3, 4]  # its bucket has not started
    harness.node.start(0)
    assert array.tolist() == [1, 2, 33, 44]


def test_scratch_memory_is_used_again(memory_of: MemoryOf) -> None:
    harness = Harness(chunk_bytes=4, slots=1)
    array = floats(0, 0, 1, 2)
    harness.node.open_step(0, [memory_of(array)])
    harness.node.start(0)
    first = harness.receive(harness.chunk(SCATTER, 0), floats(10))
    second = harness.receive(harness.chunk(SCATTER, 1), floats(20))
    assert first.obj is second.obj
    assert array.tolist() == [0, 0, 11, 22]


def test_scratch_memory_is_as_large_as_what_arrives(memory_of: MemoryOf) -> None:
    harness = Harness(chunk_bytes=1024)
    for step, array in enumerate((floats(1, 2), floats(1, 2, 3, 4), floats(1, 2))):
        whole = memory_of(array)
        summed = dataclasses.replace(whole, operation=Operation.REDUCE_SCATTER)
        harness.node.open_step(step, [summed])
        half = array[len(array) // 2 :]
        scratch = harness.receive(harness.chunk(SCATTER, step=step), half.copy())
        assert isinstance(scratch.obj, bytearray)
        assert len(scratch.obj) == (4, 8, 8)[step]
        harness.node.start(0)
        assert half.tolist() == [2 * one for one in ((2,), (3, 4), (2,))[step]]


def test_scratch_memory_goes_after_a_step_without_use_for_it(memory_of: MemoryOf) -> None:
    harness = Harness(loans=Shelf(floats(0, 10)), slots=1)
    scratch = []
    for step, lent in enumerate((False, False, True, False)):
        memory = memory_of(floats(1, 2))
        summed = dataclasses.replace(memory, operation=Operation.REDUCE_SCATTER)
        harness.node.open_step(step, [summed])
        harness.node.start(0)
        if lent:
            harness.hear(harness.chunk(SCATTER, step=step, loan=LOAN))
        else:
            scratch.append(harness.receive(harness.chunk(SCATTER, step=step), floats(20)).obj)
    assert scratch[0] is scratch[1]
    assert scratch[1] is not scratch[2]


def test_an_element_larger_than_a_chunk_travels_whole(memory_of: MemoryOf) -> None:
    harness = Harness(chunk_bytes=2)
    array = floats(1, 2)
    harness.node.open_step(0, [memory_of(array)])
    harness.node.start(0)
    harness.receive(harness.chunk(SCATTER), floats(20))
    assert array.tolist() == [1, 22]


def test_an_empty_bucket_goes_round_without_an_addition() -> None:
    def add(start: int, stop: int, received: memoryview) -> None:
        raise AssertionError("there is nothing to add")

    harness = Harness()
    nothing = floats()
    harness.node.open_step(
        0, [BucketMemory(view=memoryview(nothing.view(np.uint8)), item_bytes=4, add=add)]
    )
    harness.node.start(0)
    harness.receive(harness.chunk(EXCHANGE), nothing)
    assert harness.buckets_done == [0]
    assert [len(payload) for _, payload in harness.sent] == [0]


def test_a_small_bucket_is_summed_in_rank_order_from_what_came_whole(memory_of: MemoryOf) -> None:
    harness = Harness(world_size=3)
    array = floats(1, 2)
    harness.node.open_step(0, [memory_of(array)])
    harness.receive(harness.chunk(EXCHANGE, hop=1), floats(1e8, 20))  # of rank 1
    harness.node.start(0)
    assert array.tolist() == [1, 2]
    harness.receive(harness.chunk(EXCHANGE), floats(-1e8, 30))
    assert array.tolist() == [floats(1)[0] + floats(1e8)[0] + floats(-1e8)[0], 52] == [0, 52]
    assert harness.buckets_done == [0]
    sent = [
        (message.hop, np.frombuffer(payload, np.float32)[1]) for message, payload in harness.sent
    ]
    assert sent == [(0, 2), (1, 30)]  # what goes out is no longer the bucket's memory
    assert harness.node.sent_bytes == 16


def test_contributions_have_the_same_memory_in_every_step_and_more_if_the_bucket_grows(
    memory_of: MemoryOf,
) -> None:
    harness = Harness()
    owners = []
    for step, array in enumerate((floats(1), floats(2), floats(3, 4))):
        harness.node.open_step(step, [memory_of(array)])
        harness.node.start(0)
        owners.append(harness.receive(harness.chunk(EXCHANGE, step=step), array).obj)
    assert owners[0] is owners[1]
    assert len(owners[2]) == 2 * len(owners[0])


def test_nan_comes_out_with_the_same_bits_on_both_ranks(memory_of: MemoryOf) -> None:
    nans = np.array([0x7FC00001, 0x7FC00002], np.uint32).view(np.float32)
    ends = []
    for rank in (0, 1):
        core = Ring(
            rank=rank, world_size=2, generation=1, first_step=0, chunk_bytes=8, scratch_slots=1
        )
        node = RingNode(core, Harness())
        array = nans[rank : rank + 1].copy()
        node.open_step(0, [memory_of(array)])
        node.start(0)
        chunk = Chunk(
            generation=1, step=0, phase=EXCHANGE, hop=0, bucket=0, chunk=0, source=1 - rank
        )
        place = node.place(chunk, 4)
        assert isinstance(place, memoryview)
        place[:] = nans[1 - rank : 2 - rank].tobytes()
        node.received(chunk, place)
        ends.append(array.tobytes())
    assert ends[0] == ends[1]


def test_held_frames_are_resumed(memory_of: MemoryOf) -> None:
    harness = Harness(slots=0)
    assert harness.node.place(harness.chunk(SCATTER), 8) is HOLD
    harness.node.open_step(0, [memory_of(floats(1, 2, 3, 4))])
    assert harness.resumed == 1
    assert harness.node.place(harness.chunk(SCATTER), 8) is HOLD
    harness.node.start(0)
    assert harness.resumed == 2


def test_words_are_handed_over_in_rank_order_exchange_by_exchange() -> None:
    harness = Harness()
    harness.node.open_step(0, [])
    assert harness.node.place(harness.word(), 3) is None
    harness.node.received(harness.word(), memoryview(b"one"))
    harness.node.offer(b"zero")
    harness.node.offer(b"ZERO")
    harness.node.received(harness.word(1), memoryview(b"ONE"))
    assert harness.all_words == [[b"zero", b"one"], [b"ZERO", b"ONE"]]
    assert [payload for _, payload in harness.sent] == [b"zero", b"ZERO"]
    assert harness.node.sent_bytes == 0  # words are not counted as payload


def test_the_words_of_others_are_passed_on() -> None:
    harness = Harness(world_size=3)
    harness.node.open_step(0, [])
    message = SmallGather(generation=1, step=0, sequence=0, hop=0, origin=2, source=2)
    harness.node.received(message, memoryview(b"two"))
    passed_on = SmallGather(generation=1, step=0, sequence=0, hop=1, origin=2, source=0)
    assert harness.sent == [(passed_on, b"two")]


def test_a_word_too_long_is_refused_on_either_side() -> None:
    harness = Harness()
    harness.node.open_step(0, [])
    with pytest.raises(ProtocolError, match="word of 32769 bytes") as caught:
        harness.node.place(harness.word(), MAX_WORD_BYTES + 1)
    assert caught.value.code == ErrorCode.BAD_PAYLOAD
    with pytest.raises(LocalProtocolError, match="word of 32769 bytes"):
        harness.node.offer(bytes(MAX_WORD_BYTES + 1))
    harness.node.offer(bytes(MAX_WORD_BYTES))
    assert harness.node.place(harness.word(), MAX_WORD_BYTES) is None


# --- loans ---------------------------------------------------------------------------------------


def test_a_lent_bucket_is_named_and_not_sent_and_done_when_it_was_taken(
    memory_of: MemoryOf,
) -> None:
    harness = Harness(loans=Shelf(floats(0, 0, 0, 0), lends=True))
    array = floats(1, 2, 3, 4)
    harness.node.open_step(0, [memory_of(array)])
    harness.node.start(0)
    harness.receive(harness.chunk(SCATTER), floats(30, 40))
    harness.receive(harness.chunk(GATHER), floats(11, 22))
    assert [(message.loan, payload) for message, payload in harness.sent] == [(LOAN, b"")] * 2
    assert harness.node.sent_bytes == 16  # what the next rank got, one way or the other
    assert harness.buckets_done == []
    harness.node.taken(ShmReleased(generation=1, step=0, bucket=0))
    assert harness.buckets_done == [0]
    assert array.tolist() == [11, 22, 33, 44]


def test_what_is_lent_is_added_and_copied_where_it_lies(memory_of: MemoryOf) -> None:
    theirs = floats(0, 0, 30, 40)
    harness = Harness(loans=(shelf := Shelf(theirs)))
    array = floats(1, 2, 3, 4)
    harness.node.open_step(0, [memory_of(array)])
    harness.node.start(0)
    harness.hear(harness.chunk(SCATTER, loan=LOAN))
    assert array.tolist() == [1, 2, 33, 44]
    assert shelf.given_back == []
    theirs[:2] = 11, 22
    harness.hear(harness.chunk(GATHER, loan=LOAN))
    assert array.tolist() == [11, 22, 33, 44]
    assert shelf.given_back == [ShmReleased(generation=1, step=0, bucket=0)]
    assert harness.buckets_done == [0]
    assert shelf.checks == 2
    sent = [np.frombuffer(payload, np.float32).tolist() for _, payload in harness.sent]
    assert sent == [[11, 22], [33, 44]]  # the first has been overwritten since it went out


def test_what_is_lent_early_is_read_when_the_bucket_starts(memory_of: MemoryOf) -> None:
    theirs = floats(0, 0, -1, -1)
    harness = Harness(loans=(shelf := Shelf(theirs)), slots=1)
    array = floats(1, 2, 3, 4)
    harness.node.open_step(0, [memory_of(array)])
    harness.hear(harness.chunk(SCATTER, loan=LOAN))
    assert shelf.checks == 0
    theirs[2:] = 30, 40
    harness.node.start(0)
    assert array.tolist() == [1, 2, 33, 44]


def test_a_lent_chunk_that_was_early_gives_its_slot_back(memory_of: MemoryOf) -> None:
    harness = Harness(loans=Shelf(floats(0, 0, 30, -1)), chunk_bytes=4, slots=1)
    array = floats(1, 2, 3, 4)
    harness.node.open_step(0, [memory_of(array)])
    harness.hear(harness.chunk(SCATTER, 0, loan=LOAN))
    assert harness.node.place(harness.chunk(SCATTER, 1), 4) is HOLD
    harness.node.start(0)
    harness.receive(harness.chunk(SCATTER, 1), floats(40))
    assert array.tolist() == [1, 2, 33, 44]


def test_a_little_is_read_at_a_time(memory_of: MemoryOf) -> None:
    harness = Harness(loans=Shelf(np.full(10, 10, np.float32)), chunk_bytes=4)
    harness.node._pace = ReadPace(limit_bytes=8)
    array = np.ones(10, np.float32)
    harness.node.open_step(0, [memory_of(array)])
    harness.node.start(0)
    for number in range(5):
        chunk = harness.chunk(SCATTER, number, loan=LOAN)
        if number in (2, 4):
            assert harness.node.place(chunk, 0) is HOLD
            assert harness.resumed == number / 2
        harness.hear(chunk)
    assert array.tolist() == [1] * 5 + [11] * 5
    place = harness.node.place(harness.chunk(GATHER, 0), 4)
    assert isinstance(place, memoryview)  # what is sent is not held for that


def test_an_empty_chunk_is_lent_without_an_addition() -> None:
    added: list[tuple[int, int]] = []
    harness = Harness(world_size=3, loans=(shelf := Shelf(np.zeros(1, np.complex128))))
    own = np.ones(1, np.complex128)  # one element for three ranks: it lies in the last segment
    memory = BucketMemory(
        view=memoryview(own.view(np.uint8)),
        item_bytes=16,
        add=lambda start, stop, received: added.append((start, stop)),
    )
    harness.node.open_step(0, [memory])
    harness.node.start(0)
    for hop in (0, 1):
        harness.hear(harness.chunk(SCATTER, hop=hop, loan=LOAN))
    assert added == [(0, 1)]
    harness.hear(harness.chunk(GATHER, loan=LOAN))
    assert shelf.checks == 3
    assert own.tolist() == [1]


@pytest.mark.parametrize("early", [True, False])
def test_what_cannot_be_read_any_more_is_the_end_of_it(memory_of: MemoryOf, *, early: bool) -> None:
    harness = Harness(loans=(shelf := Shelf(floats(0, 0, 30, 40))))
    harness.node.open_step(0, [memory_of(floats(1, 2, 3, 4))])
    acts = [
        lambda: harness.hear(harness.chunk(SCATTER, loan=LOAN - 1)),
        lambda: harness.node.start(0),
    ]
    for act in acts if early else reversed(acts):
        act()
    assert [error.code for error in shelf.errors] == [ErrorCode.RECALLED]
    assert [message.phase for message, _ in harness.sent] == [SCATTER]  # the sum does not go on


def test_a_bucket_whose_last_chunk_cannot_be_read_is_not_done(memory_of: MemoryOf) -> None:
    harness = Harness(loans=(shelf := Shelf(floats(11, 22, 0, 0))))
    harness.node.open_step(0, [memory_of(floats(1, 2, 3, 4))])
    harness.node.start(0)
    harness.receive(harness.chunk(SCATTER), floats(30, 40))
    harness.hear(harness.chunk(GATHER, loan=LOAN - 1))
    assert len(shelf.errors) == 1
    assert harness.buckets_done == []
    assert shelf.given_back == []


def test_where_nothing_is_lent_a_lent_chunk_is_refused(memory_of: MemoryOf) -> None:
    harness = Harness()
    harness.node.open_step(0, [memory_of(floats(1, 2, 3, 4))])
    harness.node.start(0)
    with pytest.raises(ProtocolError, match="nothing is lent in this ring"):
        harness.hear(harness.chunk(SCATTER, loan=LOAN))


def test_a_misused_node_says_so_and_is_not_busy(memory_of: MemoryOf) -> None:
    harness = Harness(world_size=1)
    with pytest.raises(LocalProtocolError):
        harness.node.offer(b"too early")
    harness.node.open_step(0, [memory_of(floats(1))])
    with pytest.raises(LocalProtocolError):
        harness.node.start(1)
    harness.node.start(0)
    harness.node.offer(b"word")
    assert harness.all_words == [[b"word"]]
    assert harness.node.busy_s() < 1.0
