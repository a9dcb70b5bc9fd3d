"""Large blocks are given back when they are freed, whatever small ones live between them."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import re, sys
from dtd.coordinator.process_limits import give_back_freed_memory

if sys.argv[1] == "giving back":
    give_back_freed_memory()
resident = lambda: int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1]) >> 10
first = bytearray(b"x" * (1 << 20))
del first  # glibc learns from the first large block
before, small, large = resident(), [], []
for _ in range(100):
    large.append(bytearray(b"x" * (1 << 18)))
    small.append(bytearray(b"x" * (1 << 14)))
large.clear()
print(resident() - before)
"""
LARGE_MIB = 25
"""What small ones take besides is less than 2 MiB."""


def kept_mib(how: str) -> int:
    command = [sys.executable, "-c", _PROGRAM, how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return int(done.stdout)


def test_large_blocks_are_given_back():
    assert kept_mib("giving back") < LARGE_MIB / 4


def test_glibc_by_itself_keeps_them():
    """Else there would be nothing to do here."""
    assert kept_mib("keeping") > LARGE_MIB / 2
