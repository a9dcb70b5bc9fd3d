"""Memory that is lent: who may read it, what of it, and for how long."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from dtd.host.shared_memory import (
    HEAD_BYTES,
    NONCE_BYTES,
    MappedMemory,
    OfferedMemory,
    map_memory,
)

WORDS = b"gradients"
FUTURE_WRITE = 0x10

READER = """
import sys
from dtd.host.shared_memory import map_memory
descriptor, nonce, size_bytes = sys.argv[1:]
memory = map_memory(int(descriptor), nonce=bytes.fromhex(nonce), size_bytes=int(size_bytes))
for _ in sys.stdin:
    print(memory.version, bytes(memory.view(4096, 9)).decode(), flush=True)
"""

BORROWER = """
import ctypes, fcntl, mmap, os, sys
from dtd.host.shared_memory import map_memory
descriptor, nonce, memory_bytes = int(sys.argv[1]), bytes.fromhex(sys.argv[2]), int(sys.argv[3])
memory = map_memory(descriptor, nonce=nonce, size_bytes=memory_bytes)
"""


@pytest.fixture
def lent() -> Iterator[OfferedMemory]:
    memory = OfferedMemory(len(WORDS))
    memory.view(HEAD_BYTES, len(WORDS))[:] = WORDS
    yield memory
    memory.close()


def borrowed(memory: OfferedMemory) -> MappedMemory:
    found = map_memory(memory.descriptor, nonce=memory.nonce, size_bytes=memory.size_bytes)
    assert found is not None
    return found


def run_borrower(memory: OfferedMemory, source: str) -> subprocess.CompletedProcess[str]:
    """Another process, which borrows the memory and then tries something."""
    named = [str(memory.descriptor), memory.nonce.hex(), str(memory.size_bytes)]
    return subprocess.run(
        [sys.executable, "-c", BORROWER + source, *named],
        pass_fds=[memory.descriptor],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def file_of(content: bytes, seals: int) -> int:
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(descriptor, content)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def test_a_reader_cannot_write(lent: OfferedMemory) -> None:
    tried = run_borrower(lent, "memory.view(4096, 9)[:] = bytes(9)")
    assert tried.returncode == -signal.SIGSEGV
    assert bytes(lent.view(HEAD_BYTES, len(WORDS))) == WORDS


def test_memory_that_cannot_be_sealed_is_not_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Linux 5.1 a borrower could write."""
    monkeypatch.setattr("dtd.host.shared_memory._SEALS", 1 << 30)
    memory = OfferedMemory(100)
    assert not memory.shareable
    memory.view(HEAD_BYTES, 4)[:] = b"own "
    memory.revoke()
    memory.close()


def test_another_process_reads_and_sees_a_recall(lent: OfferedMemory) -> None:
    lent.revoke()
    named = [str(lent.descriptor), lent.nonce.hex(), str(lent.size_bytes)]
    with subprocess.Popen(
        [sys.executable, "-c", READER, *named],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[lent.descriptor],
        text=True,
    ) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None

        def asked() -> str:
            reader.stdin.write("\n")
            reader.stdin.flush()
            return reader.stdout.readline()

        assert asked() == "2 gradients\n"
        lent.revoke()
        lent.view(HEAD_BYTES, len(WORDS))[:] = b"something"
        assert asked() == "3 something\n"
        reader.stdin.close()
        assert reader.wait() == 0


@pytest.mark.parametrize(
    "changed",
    [
        {"nonce": bytes(NONCE_BYTES)},
        {"nonce": b""},
        {"size_bytes": HEAD_BYTES},
        {"size_bytes": HEAD_BYTES + len(WORDS) + 1},
        {"size_bytes": 2**63 - 1},
    ],
)
def test_memory_that_is_not_the_one_that_was_named_is_not_borrowed(
    lent: OfferedMemory, changed: dict[str, object]
) -> None:
    named = {"nonce": lent.nonce, "size_bytes": lent.size_bytes} | changed
    assert map_memory(lent.descriptor, **named) is None


@pytest.mark.parametrize(
    "seals",
    [
        0,
        fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | FUTURE_WRITE,
        fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL | FUTURE_WRITE,
        fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL | FUTURE_WRITE,
        fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL,
    ],
)
def test_a_file_that_can_change_otherwise_is_not_borrowed(seals: int) -> None:
    content = bytes(HEAD_BYTES)
    descriptor = file_of(content, seals)
    nonce = content[:NONCE_BYTES]
    assert map_memory(descriptor, nonce=nonce, size_bytes=len(content)) is None
    os.close(descriptor)


def test_the_number_is_raised_before_the_barrier_and_nothing_is_written_after_it(
    lent: OfferedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    reader = borrowed(lent)
    monkeypatch.setattr("dtd.host.shared_memory.barrier", lambda: seen.append(reader.version))
    lent.revoke()
    assert seen == [2] == [reader.version]
