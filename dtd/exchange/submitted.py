"""The buckets of one node as the training thread submits and awaits them.

A node (`dtd.exchange.ring_node`, `dtd.exchange.star_node`) belongs to the thread of its
transport.  How a call is handed over to it, and how one waits, differs between TCP
(`dtd.exchange.bridge`) and one process (`dtd.exchange.in_process`); which buckets are done does
not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from dtd.exchange.api import BucketMemory
from dtd.exchange.ring_node import RingNode
from dtd.exchange.star_node import StarNode


class SubmittedBuckets:
    """The buckets of one node, of a ring or a star, as the training thread submits and awaits them.

    For the methods see `dtd.exchange.api.ExtendableCollective`.

    Args:
        node: the node, on the transport's thread.
        changed: the generation's lock.
        hand_over: calls a function of the node on that thread; raises RingBroken.
        wait_for: blocks until something is here; raises RingBroken.
    """

    def __init__(
        self,
        node: RingNode | StarNode,
        changed: threading.Condition,
        hand_over: Callable[..., None],
        wait_for: Callable[[Callable[[], bool]], None],
    ) -> None:
        self._node = node
        self._changed = changed
        self._hand_over = hand_over
        self._wait_for = wait_for
        self._done: set[int] = set()
        self._when_done: dict[int, Callable[[], None]] = {}

    def open_step(self, step: int, buckets: Sequence[BucketMemory], may_add: int = 0) -> None:
        """Begin a step."""
        with self._changed:
            self._done.clear()
            self._when_done.clear()
        self._hand_over(self._node.open_step, step, tuple(buckets), may_add)

    def add(self, buckets: Sequence[BucketMemory]) -> None:
        """Add buckets to the open step."""
        self._hand_over(self._node.add, tuple(buckets))

    def start(self, bucket: int, done: Callable[[], None] | None = None) -> None:
        """Submit a full bucket."""
        if done is not None:
            with self._changed:
                self._when_done[bucket] = done
        self._hand_over(self._node.start, bucket)

    def wait(self, bucket: int) -> None:
        """Block until the bucket holds its result."""
        self._wait_for(lambda: bucket in self._done)

    def sent_bytes(self) -> int:
        """Bytes of elements sent in the open step."""
        return self._node.sent_bytes

    def bucket_done(self, bucket: int) -> None:
        """On the transport's thread: a bucket belongs to the training thread again."""
        with self._changed:
            self._done.add(bucket)
            done = self._when_done.pop(bucket, None)
            self._changed.notify_all()
        if done is not None:
            done()
