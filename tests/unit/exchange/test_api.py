"""The contract's small pieces of code: a bucket's elements and shape, and the plain all-reduce."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from dtd.exchange.api import BucketMemory, CommTiming, all_reduce
from dtd.exchange.schedule.chunks import BucketShape, Operation


class _Recorder:
    """A collective of one rank that writes down what it was asked to do."""

    rank = 0
    world_size = 1
    generation = 1

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def open_step(self, step: int, buckets: Sequence[BucketMemory]) -> None:
        self.calls.append(("open_step", step))

    def start(self, bucket: int, done: Callable[[], None] | None = None) -> None:
        self.calls.append(("start", bucket))

    def wait(self, bucket: int) -> None:
        self.calls.append(("wait", bucket))

    def gather(self, word: bytes) -> list[bytes]:
        return [word]

    def agreed(self) -> None:
        self.calls.append(("agreed", 0))

    def close_step(self) -> CommTiming:
        return CommTiming(busy_s=0.0, exposed_s=0.0, sent_bytes=0)


def test_all_reduce_starts_the_bucket_and_then_waits_for_it() -> None:
    recorder = _Recorder()
    all_reduce(recorder, 3)
    assert recorder.calls == [("start", 3), ("wait", 3)]


def test_a_bucket_counts_elements_not_bytes() -> None:
    view = memoryview(bytearray(24))
    memory = BucketMemory(view=view, item_bytes=8, add=lambda start, stop, received: None)
    assert memory.elements == 3


def test_the_shape_of_a_bucket_is_made_once() -> None:
    """The event loop looks at those of thousands when it opens a step."""
    view = memoryview(bytearray(24))
    memory = BucketMemory(view=view, item_bytes=8, add=lambda start, stop, received: None)
    assert memory.shape == BucketShape(elements=3, item_bytes=8)
    assert memory.shape is memory.shape
    gathered = dataclasses.replace(memory, operation=Operation.ALL_GATHER, copies=1)
    assert (gathered.shape.operation, gathered.shape.copies) == (Operation.ALL_GATHER, 1)
