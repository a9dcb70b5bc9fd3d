"""Payloads of any bounded size by exchanges of words."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from dtd.errors import LocalProtocolError, ProtocolError
from dtd.exchange.in_process import InProcessRing
from dtd.exchange.payloads import broadcast_payload, gather_payloads
from dtd.wire.messages import MAX_WORD_BYTES

PATIENCE_S = 30.0


def all_ranks(world_size, work):
    """What `work(exchange, rank)` returns on each rank."""
    ring = InProcessRing(world_size, timeout_s=PATIENCE_S)

    def run(rank):
        collective = ring.collective(rank)
        collective.open_step(0, [])
        return work(collective.gather, rank)

    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(run, range(world_size)))


@pytest.mark.parametrize("world_size", range(1, 9))
@pytest.mark.parametrize("size", [0, 1, MAX_WORD_BYTES - 8, MAX_WORD_BYTES - 7, 100_001])
def test_payloads_of_every_size_arrive_whole_on_all_ranks(world_size, size):
    payloads = [bytes([rank]) * (size if rank % 2 == 0 else rank) for rank in range(world_size)]
    seen = all_ranks(world_size, lambda exchange, rank: gather_payloads(exchange, payloads[rank]))
    assert seen == [payloads] * world_size


@pytest.mark.parametrize("root", [0, 2])
def test_what_one_rank_says_all_ranks_hear(root):
    said = b"x" * (2 * MAX_WORD_BYTES)
    heard = all_ranks(
        3,
        lambda exchange, rank: broadcast_payload(
            exchange, said if rank == root else b"ignored", rank=rank, root=root
        ),
    )
    assert heard == [said] * 3


def test_a_payload_beyond_the_limit_does_not_leave_its_rank():
    with pytest.raises(LocalProtocolError, match="11 bytes exceeds 10"):
        gather_payloads(lambda _: pytest.fail("it left"), b"x" * 11, limit_bytes=10)


@pytest.mark.parametrize(
    ("word", "why"),
    [
        (b"short", "begins with 5 bytes"),
        ((11).to_bytes(8, "little"), "11 bytes exceeds 10"),
        ((3).to_bytes(8, "little") + b"four", "rank 1 has 4 bytes, not 3"),
    ],
)
def test_what_another_rank_says_is_checked(word, why):
    with pytest.raises(ProtocolError, match=why):
        gather_payloads(lambda own: [own, word], b"mine", limit_bytes=10)
