"""Freed memory stays with a process, whichever of its threads trains."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

_PROGRAM = """
import re, sys, threading
import torch
from dtd.train.malloc_tuning import keep_freed_memory

if sys.argv[1] == "keeping":
    keep_freed_memory()
resident = lambda: int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1]) >> 10

torch.ones(1 << 18)  # what the first one brings in does not count

def step():
    before = resident()
    blocks = [torch.ones(24 << 18) for _ in range(8)]
    blocks.clear()
    print(resident() - before)

training = threading.Thread(target=step)
training.start()
training.join()
"""
STEP_MIB = 8 * 24


def _kept_mib(how: str) -> int:
    command = [sys.executable, "-c", _PROGRAM, how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this libc has no mallopt")
def test_what_a_step_has_freed_is_there_for_the_next() -> None:
    assert _kept_mib("keeping") > 0.9 * STEP_MIB


def test_otherwise_it_is_not() -> None:
    assert _kept_mib("as ever") < 0.1 * STEP_MIB
