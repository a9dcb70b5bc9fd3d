"""Memory ordering between processes that share memory without a lock.

A processor may perform loads and stores in another order than the program has them: those with
weakly ordered memory (Arm, POWER, RISC-V) all of them, x86 at least the streaming stores of large
copies.  Python has no fence, a system call need not be one, and neither CPython's lock nor numpy
promises any.  Linux has one for all at once: membarrier(2).  A process that changes shared memory
calls it between two changes; when it returns, every thread of every *registered* process has passed
a full barrier in between.  So a reader that has seen the second change sees the first one, too, in
any load that its program does later, and pays nothing itself.

What is ordered by messages needs none of this: what was written before a frame was sent is seen by
its receiver, since the kernel passes it on under locks.
"""

from __future__ import annotations

import ctypes
import functools
import platform
from typing import Final

_QUERY: Final = 0
_GLOBAL_EXPEDITED: Final = 1 << 1
_REGISTER_GLOBAL_EXPEDITED: Final = 1 << 2

_NUMBERS: Final = {
    "x86_64": 324,
    "aarch64": 283,
    "riscv64": 283,
    "loongarch64": 283,
    "ppc64le": 365,
    "s390x": 356,
}
"""Numbers of the system call, for which C libraries have no function."""


@functools.lru_cache(maxsize=1)
def available() -> bool:
    """Whether this system has such barriers; registers this process, once and for its life.

    False on kernels before 4.16, on processors that are not known here, and where a filter of
    system calls forbids it.
    """
    offered = _membarrier(_QUERY)
    wanted = _GLOBAL_EXPEDITED | _REGISTER_GLOBAL_EXPEDITED
    return offered & wanted == wanted and _membarrier(_REGISTER_GLOBAL_EXPEDITED) == 0


def barrier() -> None:
    """Order accesses before this call before accesses after it, for all registered processes.

    Takes a few microseconds.

    Raises:
        OSError: the system has none; see `available`.
    """
    if _membarrier(_GLOBAL_EXPEDITED) != 0:
        raise OSError(ctypes.get_errno(), "membarrier(2) failed")


def _membarrier(command: int) -> int:
    """-1 where it fails; a failed query offers nothing."""
    number = _NUMBERS.get(platform.machine())
    if number is None:
        return -1 if command else 0
    result = int(ctypes.CDLL(None, use_errno=True).syscall(number, command, 0, 0))
    return max(result, 0) if command == _QUERY else result
