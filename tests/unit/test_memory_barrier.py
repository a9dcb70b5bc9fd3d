"""Barriers between processes that share memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from dtd import memory_barrier
from dtd.lent_memory import HEAD_BYTES, LentMemory, borrow


@pytest.fixture(autouse=True)
def asked_afresh() -> Iterator[None]:
    """Whether there are barriers is found out once."""
    memory_barrier.available.cache_clear()
    yield
    memory_barrier.available.cache_clear()


@pytest.fixture
def forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a filter of system calls answers EPERM."""
    monkeypatch.setattr(memory_barrier, "_membarrier", lambda command: -1 if command else 0)


@pytest.mark.usefixtures("forbidden")
def test_without_barriers_nothing_is_lent_or_borrowed() -> None:
    memory = LentMemory(10)
    assert not memory.lendable
    memory.revoke()
    assert memory.loan == 2
    assert borrow(memory.descriptor, nonce=memory.nonce, size_bytes=memory.size_bytes) is None
    memory.close()
    with pytest.raises(OSError, match="membarrier"):
        memory_barrier.barrier()


def test_the_number_is_raised_before_the_barrier_and_nothing_is_written_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = LentMemory(10)
    seen: list[tuple[int, bytes]] = []

    def look() -> None:
        loan = int.from_bytes(bytes(memory.view(0, 8)), "little")
        seen.append((loan, bytes(memory.view(HEAD_BYTES, 10))))

    monkeypatch.setattr(memory_barrier, "barrier", look)
    memory.revoke()
    memory.view(HEAD_BYTES, 10)[:] = b"gradients!"
    assert seen == [(2, bytes(10))]
    memory.close()


def test_a_recall_costs_no_registration_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    call: Callable[[int], int] = memory_barrier._membarrier

    def counted(command: int) -> int:
        asked.append(command)
        return call(command)

    monkeypatch.setattr(memory_barrier, "_membarrier", counted)
    memory = LentMemory(1)
    for _ in range(3):
        memory.revoke()
    memory.close()
    assert asked == [0, 4, 2, 2, 2]
