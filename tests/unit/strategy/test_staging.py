"""Buckets in host memory on their way to the ring, without a codec."""

from __future__ import annotations

import pytest
import torch

from dtd.lent_memory import borrow
from dtd.strategy.staging import staging_for

CPU = torch.device("cpu")


@pytest.fixture
def staging():
    made = staging_for([(4, torch.float32), (2, torch.float64)], CPU)
    yield made
    made.close()


def test_the_ring_works_on_the_gradients_themselves() -> None:
    staging = staging_for([(4, torch.float32)], CPU)
    called = []
    staging.flats[0].fill_(1)
    staging.send(0, lambda index: called.append(("start", index)))
    staging.memories[0].add(0, 2, memoryview(bytearray(8)))
    staging.memories[0].view[12:] = bytes(4)
    staging.receive(0, lambda index: called.append(("wait", index)))
    staging.settle()
    assert called == [("start", 0), ("wait", 0)]
    assert staging.flats[0].tolist() == [1, 1, 1, 0]
    assert staging.size_bytes == 16
    staging.close()


def test_all_buckets_can_be_lent_and_what_is_lent_is_what_travels(staging) -> None:
    for index, flat in enumerate(staging.flats):
        flat.fill_(index + 1)
        staging.send(index, lambda index: None)
    homes = [memory.home for memory in staging.memories]
    lent = homes[0].memory
    theirs = borrow(lent.descriptor, nonce=lent.nonce, size_bytes=lent.size_bytes)
    assert theirs is not None
    for home, memory in zip(homes, staging.memories, strict=True):
        assert home.memory is lent
        assert bytes(theirs.view(home.offset_bytes, len(memory.view))) == bytes(memory.view)
        assert any(memory.view)


def test_a_revoke_raises_the_number_and_nothing_else_does(staging) -> None:
    lent = staging.memories[0].home.memory
    before = lent.loan
    for act in (
        lambda: staging.send(0, lambda index: None),
        lambda: staging.receive(0, lambda index: None),
        staging.settle,
    ):
        act()
        assert lent.loan == before
    staging.revoke()
    assert lent.loan == before + 1


def test_a_staging_that_is_closed_lends_nothing(staging) -> None:
    lent = staging.memories[0].home.memory
    staging.close()
    assert lent.descriptor < 0
    staging.flats[0].fill_(1)
