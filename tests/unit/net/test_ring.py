"""The ring's node: which memory it names, which memory it sends, what it adds to what."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dtd.core.collective import BucketMemory
from dtd.core.ring import Ring
from dtd.errors import ErrorCode, LocalProtocolError, ProtocolError
from dtd.net.ring import MAX_WORD_BYTES, RingNode
from dtd.wire.frames import HOLD
from dtd.wire.messages import Chunk, Phase, Word

MemoryOf = Callable[[np.ndarray], BucketMemory]
SCATTER, GATHER, EXCHANGE = Phase


class Harness:
    """Rank 0 of two, and everything it did."""

    def __init__(self, *, world_size: int = 2, chunk_bytes: int = 8, slots: int = 2) -> None:
        self.sent: list[tuple[Chunk | Word, bytes | memoryview]] = []
        self.resumed = 0
        self.buckets_done: list[int] = []
        self.words_done: list[list[bytes]] = []
        core = Ring(
            rank=0,
            world_size=world_size,
            generation=1,
            first_step=0,
            chunk_bytes=chunk_bytes,
            scratch_slots=slots,
        )
        self.node = RingNode(
            core,
            send=lambda message, payload: self.sent.append((message, payload)),
            resume=self._count_resume,
            bucket_done=self.buckets_done.append,
            words_done=self.words_done.append,
        )

    def _count_resume(self) -> None:
        self.resumed += 1

    def chunk(self, phase: Phase, number: int = 0, *, hop: int = 0, step: int = 0) -> Chunk:
        source = self.node.core.world_size - 1
        return Chunk(
            generation=1, step=step, phase=phase, hop=hop, bucket=0, chunk=number, source=source
        )

    def word(self, sequence: int = 0, *, step: int = 0) -> Word:
        return Word(generation=1, step=step, sequence=sequence, hop=0, origin=1, source=1)

    def receive(self, chunk: Chunk, values: np.ndarray) -> memoryview:
        place = self.node.place(chunk, values.nbytes)
        assert isinstance(place, memoryview)
        place[:] = values.tobytes()
        self.node.received(chunk, place)
        return place


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
        node = RingNode(
            core,
            send=lambda message, payload: None,
            resume=lambda: None,
            bucket_done=lambda bucket: None,
            words_done=lambda words: None,
        )
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
    assert harness.words_done == [[b"zero", b"one"], [b"ZERO", b"ONE"]]
    assert [payload for _, payload in harness.sent] == [b"zero", b"ZERO"]
    assert harness.node.sent_bytes == 0  # words are not counted as payload


def test_the_words_of_others_are_passed_on() -> None:
    harness = Harness(world_size=3)
    harness.node.open_step(0, [])
    message = Word(generation=1, step=0, sequence=0, hop=0, origin=2, source=2)
    harness.node.received(message, memoryview(b"two"))
    passed_on = Word(generation=1, step=0, sequence=0, hop=1, origin=2, source=0)
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


def test_a_misused_node_says_so_and_is_not_busy(memory_of: MemoryOf) -> None:
    harness = Harness(world_size=1)
    with pytest.raises(LocalProtocolError):
        harness.node.offer(b"too early")
    harness.node.open_step(0, [memory_of(floats(1))])
    with pytest.raises(LocalProtocolError):
        harness.node.start(1)
    harness.node.start(0)
    harness.node.offer(b"word")
    assert harness.words_done == [[b"word"]]
    assert harness.node.busy_s() < 1.0
