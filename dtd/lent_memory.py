"""Memory that other processes on this host may map and read.

A ring neighbour on the same host need not receive gradients through sockets: the sender names the
memory that holds them, and the neighbour reads them there (protocol.md, "Loans").  The owner
creates the memory as an anonymous file (memfd).  Seals prevent changes of its size, so that a
length that a reader has checked stays valid, and prevent writes except through the mapping that the
owner created before sealing.  The reader receives the open file (`dtd.net.descriptors`) and
identifies it by its nonce.

    | loan, u64 little-endian | nonce, 16 bytes | zeros up to HEAD_BYTES | what is lent |

The loan is a number.  Its owner increments it (`revoke`) before changing the contents, and a reader
that finds a different number after reading discards what it has read.  `dtd.memory_barrier` ensures
that readers see the new number before any change that follows it.  Without such barriers no memory
is shared.

The number is compared, never computed with, and raising it changes its lowest byte: to a reader
that catches it half written it is another number than before.  In the other direction messages
order what they are about: an owner writes before it sends the chunk's frame, and a reader has read
before it sends SHM_RELEASED.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import secrets
import struct
from typing import Final

from dtd import memory_barrier

HEAD_BYTES: Final = 4096
NONCE_BYTES: Final = 16

_NAME: Final = "dtd-buckets"
_LOAN: Final = struct.Struct("<Q")
_FUTURE_WRITE: Final = 0x10
"""F_SEAL_FUTURE_WRITE (Linux 5.1): no write, and no mapping that could, from now on."""
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL | _FUTURE_WRITE


class LentMemory:
    """Zeroed memory of this process that other processes can be permitted to read.

    Args:
        size_bytes: how much, the head not counted.

    Attributes:
        descriptor: of the file.
        nonce: by which a reader recognises the right file.
        size_bytes: of the file, with its head.
        loan: the present number of its contents.
        lendable: others can be let read it, and no more than that.

    Raises:
        OSError: the system has no such memory to give.
    """

    def __init__(self, size_bytes: int) -> None:
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self.size_bytes = HEAD_BYTES + size_bytes
        self.loan = 1
        self.descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, self.size_bytes)
            self._map = mmap.mmap(self.descriptor, self.size_bytes)
            self.lendable = memory_barrier.available() and _sealed(self.descriptor)
        except BaseException:
            os.close(self.descriptor)
            raise
        with contextlib.suppress(OSError):  # a kernel without huge pages for such files
            self._map.madvise(mmap.MADV_HUGEPAGE)
        _LOAN.pack_into(self._map, 0, self.loan)
        self._map[_LOAN.size : _LOAN.size + NONCE_BYTES] = self.nonce

    def view(self, offset_bytes: int, size_bytes: int) -> memoryview:
        """Writable bytes at an offset from the file's beginning; keeps the memory alive."""
        return memoryview(self._map)[offset_bytes : offset_bytes + size_bytes]

    def revoke(self) -> None:
        """Invalidate everything that is read under the current number."""
        self.loan += 1
        _LOAN.pack_into(self._map, 0, self.loan)
        if self.lendable:
            memory_barrier.barrier()

    def close(self) -> None:
        """Close the file; the memory itself remains while a view of it exists."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class BorrowedMemory:
    """Memory shared by another process on this host, read-only: writing to it kills this process.

    torch takes only buffers that call themselves writable, and so do the views of this one.
    """

    def __init__(self, mapped: mmap.mmap) -> None:
        self._map = mapped

    @property
    def loan(self) -> int:
        """The number under which its contents may be read now."""
        loan: int = _LOAN.unpack_from(self._map, 0)[0]
        return loan

    def view(self, offset_bytes: int, size_bytes: int) -> memoryview:
        """Bytes at an offset from the file's beginning."""
        return memoryview(self._map)[offset_bytes : offset_bytes + size_bytes]

    def close(self) -> None:
        """Unmap it; takes 0.04 ms for each MiB that was read, and lets other threads run meanwhile.

        Raises:
            BufferError: a view of it exists.
        """
        self._map.close()


def borrow(descriptor: int, *, nonce: bytes, size_bytes: int) -> BorrowedMemory | None:
    """Map memory that another process offers; None when the file is another one.

    Where this system has no memory barriers, nothing can be mapped, either.

    The descriptor stays the caller's.  Its seals are asked for first: a file that has some is in
    memory, and no other question can keep this process waiting.
    """
    if not memory_barrier.available():
        return None
    try:
        is_it = (
            fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS == _SEALS
            and os.fstat(descriptor).st_size == size_bytes >= HEAD_BYTES
        )
        if not is_it:
            return None
        mapped = mmap.mmap(descriptor, size_bytes, access=mmap.ACCESS_COPY)
        _make_read_only(mapped)
    except OSError:  # a file that knows no seals, or cannot be mapped
        return None
    if mapped[_LOAN.size : _LOAN.size + NONCE_BYTES] != nonce:
        return None
    return BorrowedMemory(mapped)


def _sealed(descriptor: int) -> bool:
    """Seal a file that has been mapped; False where the kernel does not know all of the seals."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        return False
    return True


def _make_read_only(mapped: mmap.mmap) -> None:
    """Have the kernel allow no writing to a mapping.

    Raises:
        OSError: it does not.
    """
    library = ctypes.CDLL(None, use_errno=True)
    with memoryview(mapped) as view:
        start = ctypes.c_char.from_buffer(view)
        address = ctypes.c_void_p(ctypes.addressof(start))
        failed = library.mprotect(address, ctypes.c_size_t(len(view)), mmap.PROT_READ)
        del start
    if failed:
        raise OSError(ctypes.get_errno(), "mprotect(2) failed")
