"""The limit: a ring that only moves bytes, with plain blocking sockets.

It sends what a ring all-reduce sends, in the same chunks, and passes a chunk on only when it has
come in, but it adds nothing.  Receiving and sending have a thread each; what fits into a socket's
buffer is sent at once, which is quicker than to wake a thread.  With `tag` every chunk carries the
integrity tag of dtd's frames on loopback, computed and compared.
"""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dtd.errors import DtdError
from dtd.exchange.schedule.chunks import BucketShape, cut
from dtd.job import SyncTable
from dtd.wire.keyed_tag import KeyedTag
from dtd.wire.tags import FLAG_XXH3, TAG_BYTES

SENT_AT_ONCE_BYTES: Final = 32 * 1024
_ITEM_BYTES: Final = {"float32": 4, "bfloat16": 2}
_KEY_BYTES: Final = 16


class ProbeSide:
    """Implement `AllReduceSide`.

    Args:
        setup: rank, world, host, and whether there is a tag.
    """

    def __init__(self, setup: Mapping[str, Any]) -> None:
        self._rank, self._world = setup["rank"], setup["world"]
        self._listener = socket.create_server((setup["host"], 0))
        self._sealing: KeyedTag | None = None
        self._opening: KeyedTag | None = None
        if setup["tag"]:
            self._sealing = KeyedTag(bytes(_KEY_BYTES), later=FLAG_XXH3)
            self._opening = KeyedTag(bytes(_KEY_BYTES), later=FLAG_XXH3)
        self._tag = memoryview(bytearray(TAG_BYTES if self._opening else 0))
        self._to_send: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
        self._sent = threading.Semaphore(0)
        threading.Thread(target=self._send_all, daemon=True).start()

    def listen(self) -> list[Any]:
        return [*self._listener.getsockname()[:2]]

    def join(self, addresses: list[list[Any]], secret: str) -> None:
        host, port = addresses[(self._rank + 1) % self._world]
        self._next = socket.create_connection((host, port))
        self._previous, _ = self._listener.accept()
        for link in (self._next, self._previous):
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def prepare(self, size_bytes: int, dtype: str) -> None:
        item_bytes = _ITEM_BYTES[dtype]
        shape = BucketShape(elements=size_bytes // item_bytes, item_bytes=item_bytes)
        segments = cut(shape, world_size=self._world, chunk_bytes=SyncTable().chunk_kib * 1024)
        memory = memoryview(bytearray(size_bytes))
        self._segments = [
            [
                memory[start * item_bytes : stop * item_bytes]
                for start, stop in (
                    segments.chunk(index, chunk) for chunk in range(segments.chunk_count(index))
                )
            ]
            for index in range(self._world)
        ]
        self._at_once = size_bytes // self._world <= SENT_AT_ONCE_BYTES

    def verify(self) -> None:
        """Implement `AllReduceSide`; nothing is summed, so all that can be wrong is a tag."""
        self.all_reduce()

    def barrier(self) -> None:
        """A byte goes round twice."""
        for _ in range(2):
            if self._rank == 0:
                self._next.sendall(b"\0")
                self._previous.recv(1)
            else:
                self._next.sendall(self._previous.recv(1))

    def all_reduce(self) -> None:
        """Hop by hop: send a segment, receive the one before it, which is the next to be sent."""
        hops = 2 * (self._world - 1)
        send = self._send if self._at_once else self._to_send.put
        for chunk in self._segment(0):
            send(chunk)
        for hop in range(1, hops + 1):
            for chunk in self._segment(hop):
                self._receive(chunk)
                if hop < hops:
                    send(chunk)
        if not self._at_once:
            for hop in range(hops):
                for _ in self._segment(hop):
                    self._sent.acquire()

    def close(self) -> None:
        self._to_send.put(None)
        for one in (self._listener, self._next, self._previous):
            one.close()

    def _segment(self, hop: int) -> Sequence[memoryview]:
        return self._segments[(self._rank - hop) % self._world]

    def _send_all(self) -> None:
        while (chunk := self._to_send.get()) is not None:
            self._send(chunk)
            self._sent.release()

    def _send(self, chunk: memoryview) -> None:
        tag = self._sealing.digest(b"", chunk) if self._sealing else b""
        parts = [chunk, memoryview(tag)]
        missing = len(chunk) + len(tag)
        while missing:
            sent = self._next.sendmsg(parts)
            missing -= sent
            while missing and sent:
                step = min(sent, len(parts[0]))
                parts[0], sent = parts[0][step:], sent - step
                if not parts[0]:
                    del parts[0]

    def _receive(self, chunk: memoryview) -> None:
        for memory in (chunk, self._tag):
            here = 0
            while here < len(memory):
                count = self._previous.recv_into(memory[here:], flags=socket.MSG_WAITALL)
                if not count:
                    raise DtdError("the previous rank has ended")
                here += count
        if self._opening and self._opening.digest(b"", chunk) != self._tag:
            raise DtdError("a chunk came in damaged")
