"""protocol.md's transcript plays: each side allows it, and the ring's machines send the same."""

from __future__ import annotations

import dataclasses
import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dtd.engine.control_word import reduce_entries
from dtd.exchange.api import BucketMemory
from dtd.exchange.node import Node
from dtd.exchange.schedule.chunks import BucketShape
from dtd.exchange.schedule.machine import Machine
from dtd.exchange.schedule.schedules import RingSchedules
from dtd.wire import messages as m
from dtd.wire.frames import Hold
from dtd.wire.session import DATA_ROLES, Session, State
from scripts.gen_docs.protocol import with_octets

TEXT = (Path(__file__).resolve().parents[2] / "protocol.md").read_text()
SECRET = b"s" * 32
NUMBERS = {m.message_name(cls): number for number, cls in m.message_types().items()}


@dataclasses.dataclass(frozen=True)
class Line:
    """One frame of the transcript."""

    link: str
    sender: str
    receiver: str
    message: Any
    payload: bytes


def transcript() -> Iterator[Line]:
    found = re.search(r"```transcript\n(.*?)```", TEXT, re.DOTALL)
    assert found
    for line in found[1].splitlines():
        if line.startswith("#"):
            continue
        found = re.fullmatch(r"(\w) (\w+) > (\w+) ([A-Z_]+) (\{.*\})(?: \| ([0-9a-f]+))?", line)
        assert found, line
        link, sender, receiver, name, values, payload = found.groups()
        message = m.decode_message(with_octets({"t": NUMBERS[name], **json.loads(values)}))
        yield Line(link, sender, receiver, message, bytes.fromhex(payload or ""))


def test_transcript_is_allowed_by_both_sides_of_every_connection() -> None:
    sides: dict[tuple[str, str], Session] = {}
    for line in transcript():
        if isinstance(line.message, m.Hello):
            role = m.Role(line.message.role)
            sides[line.link, line.sender] = Session(role=role, random_bytes=bytes)
            sides[line.link, line.receiver] = Session(accepts=frozenset({role}), random_bytes=bytes)
        sender, receiver = sides[line.link, line.sender], sides[line.link, line.receiver]
        assert len(line.payload) <= sender.max_payload_bytes
        [(message, payload)] = receiver.feed(_said(sender, line))
        assert type(message) is type(line.message)
        assert payload == line.payload
    closed = {link for (link, _), side in sides.items() if side.state is State.CLOSED}
    assert closed == {"A", "B", "C", "F"}
    assert all(sides[link, name].state is State.OPEN for link in "DE" for name in ("w0", "w1"))


def _said(sender: Session, line: Line) -> bytes:
    """The bytes of a line, with nonces and keys of this run where the connection has them."""
    if isinstance(line.message, m.Hello):
        secret = SECRET if line.message.role in DATA_ROLES else b""
        return sender.hello(line.message, secret=secret)
    if isinstance(line.message, m.Welcome):
        secret = SECRET if sender.role in DATA_ROLES else b""
        return sender.welcome(line.message, secret=secret)
    if isinstance(line.message, m.Prove):
        return sender.data_to_send()
    return b"".join(sender.encode(line.message, line.payload))


def test_transcript_of_the_ring_is_what_the_machines_send() -> None:
    ring = [line for line in transcript() if isinstance(line.message, m.Chunk | m.SmallGather)]
    first_step = [line for line in ring if line.message.step == 0]
    words = {
        (line.message.origin, line.message.sequence): line.payload
        for line in first_step
        if isinstance(line.message, m.SmallGather)
    }
    sent: dict[int, list[tuple[Any, bytes]]] = {0: [], 1: []}
    under_way: list[tuple[int, Any, bytes]] = []
    buckets = {
        0: (_floats(1, 2, 3, 4, 5), _floats(6, 7)),
        1: (_floats(10, 20, 30, 40, 50), _floats(60, 70)),
    }
    nodes = {rank: _node(rank, sent[rank], under_way) for rank in (0, 1)}

    def deliver() -> None:
        while under_way:
            rank, message, payload = under_way.pop(0)
            place = nodes[rank].place(message, len(payload), link=1 - rank)
            assert not isinstance(place, Hold)
            target = memoryview(bytearray(payload)) if place is None else place
            target[:] = payload
            nodes[rank].received(message, target)

    for rank, node in nodes.items():
        node.open_step(0, [_memory(bucket) for bucket in buckets[rank]])
    for rank, node in nodes.items():
        node.offer(words[rank, 0])
    deliver()
    for node in nodes.values():
        node.start(0)
        node.start(1)
    deliver()
    for rank, node in nodes.items():
        node.offer(words[rank, 1])
    deliver()
    for rank in (0, 1):
        written = [(x.message, x.payload) for x in first_step if x.sender == f"w{rank}"]
        assert sent[rank] == written
    assert buckets[0] == (_floats(11, 22, 33, 44, 55), _floats(66, 77))
    assert buckets[0] == buckets[1]
    assert reduce_entries([words[0, 1], words[1, 1]]).commit


def _floats(*values: float) -> bytearray:
    return bytearray(struct.pack(f"<{len(values)}f", *values))


def _node(rank: int, sent: list[Any], under_way: list[Any]) -> Node:
    machine = Machine(
        RingSchedules(rank, 2, chunk_bytes=16, whole_bytes=16),
        generation=1,
        first_step=0,
        scratch_slots=4,
    )

    class Wire:
        """Keeps what the rank sends, and hands it to the other."""

        def send(
            self, rank: int, message: m.Chunk | m.SmallGather, payload: bytes | memoryview
        ) -> None:
            sent.append((message, bytes(payload)))
            under_way.append((rank, message, bytes(payload)))

        def resume(self, rank: int) -> None:
            """Nothing is ever held here."""

        def bucket_done(self, bucket: int) -> None:
            """The test looks at the memory."""

        def gather_done(self, entries: list[bytes]) -> None:
            """The test looks at what was sent."""

    return Node(machine, Wire())


def _memory(data: bytearray) -> BucketMemory:
    def add(start: int, stop: int, received: memoryview) -> None:
        span = slice(start * 4, stop * 4)
        ours = memoryview(data)[span].cast("f").tolist()
        sums = [a + b for a, b in zip(ours, received.cast("f").tolist(), strict=True)]
        data[span] = struct.pack(f"<{len(sums)}f", *sums)

    return BucketMemory(
        view=memoryview(data), shape=BucketShape(elements=len(data) // 4, item_bytes=4), add=add
    )
