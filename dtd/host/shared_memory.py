"""Memory that other processes on this host may map and read.

A ring neighbour on the same host need not receive gradients through sockets: the sender names the
memory that holds them, and the neighbour reads them there (protocol.md, "Shared memory").  The
owner creates the memory as an anonymous file (memfd).  Seals prevent changes of its size, so that a
length that a reader has checked stays valid, and prevent writes except through the mapping that the
owner created before sealing.  The reader receives the open file (`dtd.net.descriptors`) and
identifies it by its nonce.

    | version, u64 little-endian | nonce, 16 bytes | zeros up to HEAD_BYTES | contents |

The version numbers the present contents.  The owner increments it (`revoke`) before changing them,
and a reader that finds a different one after reading discards what it has read.  It is compared,
never computed with, and raising it changes its lowest byte: to a reader that catches it half
written it is another number than before.

Order between processes without a lock: a processor may perform loads and stores in another order
than the program has them, and neither a system call nor CPython's lock promises any.  Linux has
membarrier(2): a process that changes shared memory calls it between two changes, and when it
returns, every thread of every *registered* process has passed a full barrier in between.  So a
reader that has seen the second change sees the first one, too, and pays nothing itself.  Without
it no memory is shared.  What messages order needs no barrier: an owner writes before it sends the
chunk's frame, and a reader has read before it sends SHM_RELEASED.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import mmap
import os
import platform
import secrets
import struct
from typing import Any, Final

HEAD_BYTES: Final = 4096
NONCE_BYTES: Final = 16

_NAME: Final = "dtd-buckets"
_VERSION: Final = struct.Struct("<Q")
_FUTURE_WRITE: Final = 0x10
"""F_SEAL_FUTURE_WRITE (Linux 5.1): no write, and no mapping that could, from now on."""
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL | _FUTURE_WRITE

_MEMBARRIER_QUERY: Final = 0
_MEMBARRIER_GLOBAL_EXPEDITED: Final = 1 << 1
_MEMBARRIER_REGISTER_GLOBAL_EXPEDITED: Final = 1 << 2
_MEMBARRIER_CALLS: Final = {
    "x86_64": 324,
    "aarch64": 283,
    "riscv64": 283,
    "loongarch64": 283,
    "ppc64le": 365,
    "s390x": 356,
}
"""Numbers of the system call, for which C libraries have no function."""


class OfferedMemory:
    """Zeroed memory of this process that other processes can be permitted to read.

    Attributes:
        nonce: by which a reader recognises the right file.
        size_bytes: of the file, with its head.
        shareable: others can be let read it, and no more than that.

    Raises:
        OSError: the system has no such memory to give.
    """

    def __init__(self, size_bytes: int) -> None:
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self.size_bytes = HEAD_BYTES + size_bytes
        self.version = 1
        self.descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, self.size_bytes)
            self._map = mmap.mmap(self.descriptor, self.size_bytes)
            self.shareable = barrier_available() and _sealed(self.descriptor)
        except BaseException:
            os.close(self.descriptor)
            raise
        with contextlib.suppress(OSError):  # a kernel without huge pages for such files
            self._map.madvise(mmap.MADV_HUGEPAGE)
        _VERSION.pack_into(self._map, 0, self.version)
        self._map[_VERSION.size : _VERSION.size + NONCE_BYTES] = self.nonce

    def view(self, offset_bytes: int, size_bytes: int) -> memoryview:
        """Writable bytes at an offset from the file's beginning; keeps the memory alive."""
        return memoryview(self._map)[offset_bytes : offset_bytes + size_bytes]

    def revoke(self) -> None:
        """Invalidate everything that is read under the current number."""
        self.version += 1
        _VERSION.pack_into(self._map, 0, self.version)
        if self.shareable:
            barrier()

    def close(self) -> None:
        """Close the file; the memory itself remains while a view of it exists."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class MappedMemory:
    """Memory shared by another process on this host, read-only: writing to it kills this process.

    A shared mapping, so that what the owner writes later is seen (mmap(2) leaves that open for a
    private one).  torch takes only buffers that call themselves writable, and so do its views.
    """

    def __init__(self, mapped: mmap.mmap) -> None:
        self._map = mapped
        self._address = _address_of(mapped)

    @property
    def version(self) -> int:
        """The number under which its contents may be read now."""
        version: int = _VERSION.unpack_from(self._map, 0)[0]
        return version

    def view(self, offset_bytes: int, size_bytes: int) -> memoryview:
        """Bytes at an offset from the file's beginning; keeps the mapping open."""
        size_bytes = max(0, min(size_bytes, len(self._map) - offset_bytes))
        window: Any = (ctypes.c_ubyte * size_bytes).from_address(self._address + offset_bytes)
        window.keeps = memoryview(self._map)
        return memoryview(window).cast("B")

    def close(self) -> None:
        """Unmap it; takes 0.04 ms for each MiB that was read, and lets other threads run meanwhile.

        Raises:
            BufferError: a view of it exists.
        """
        self._map.close()


def map_memory(descriptor: int, *, nonce: bytes, size_bytes: int) -> MappedMemory | None:
    """Map memory that another process offers; None when the file is another one.

    Where this system has no memory barriers, nothing can be mapped, either.

    The descriptor stays the caller's.  Its seals are asked for first: a file that has some is in
    memory, and no other question can keep this process waiting.
    """
    if not barrier_available():
        return None
    try:
        is_it = (
            fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS == _SEALS
            and os.fstat(descriptor).st_size == size_bytes >= HEAD_BYTES
        )
        if not is_it:
            return None
        mapped = mmap.mmap(descriptor, size_bytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    except OSError:  # a file that knows no seals, or cannot be mapped
        return None
    if mapped[_VERSION.size : _VERSION.size + NONCE_BYTES] != nonce:
        return None
    return MappedMemory(mapped)


def _sealed(descriptor: int) -> bool:
    """Seal a file that has been mapped; False where the kernel does not know all of the seals."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        return False
    return True


class _Buffer(ctypes.Structure):
    """Py_buffer; only its first field is read."""

    _fields_ = (("address", ctypes.c_void_p), ("others", ctypes.c_ubyte * 128))


def _address_of(mapped: mmap.mmap) -> int:
    """Return where a mapping begins; ctypes itself tells it only of writable ones."""
    buffer = _Buffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(mapped), ctypes.byref(buffer), 0)
    address = int(buffer.address or 0)
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
    return address


@functools.lru_cache(maxsize=1)
def barrier_available() -> bool:
    """Whether this system has memory barriers; registers this process, once and for its life.

    False on kernels before 4.16, on processors that are not known here, and where a filter of
    system calls forbids it.
    """
    offered = _membarrier(_MEMBARRIER_QUERY)
    wanted = _MEMBARRIER_GLOBAL_EXPEDITED | _MEMBARRIER_REGISTER_GLOBAL_EXPEDITED
    return offered & wanted == wanted and _membarrier(_MEMBARRIER_REGISTER_GLOBAL_EXPEDITED) == 0


def barrier() -> None:
    """Order accesses before this call before accesses after it, for all registered processes.

    Takes a few microseconds.

    Raises:
        OSError: the system has none; see `barrier_available`.
    """
    if _membarrier(_MEMBARRIER_GLOBAL_EXPEDITED) != 0:
        raise OSError(ctypes.get_errno(), "membarrier(2) failed")


def _membarrier(command: int) -> int:
    """-1 where it fails; a failed query offers nothing."""
    number = _MEMBARRIER_CALLS.get(platform.machine())
    if number is None:
        return -1 if command else 0
    result = int(ctypes.CDLL(None, use_errno=True).syscall(number, command, 0, 0))
    return max(result, 0) if command == _MEMBARRIER_QUERY else result
