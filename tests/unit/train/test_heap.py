"""Freed memory stays with a process, whichever of its threads trains."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

_PROGRAM = """
import contextlib, re, sys, threading
import torch
from dtd.train.malloc_tuning import keep_freed_memory, mapped_blocks, return_freed_memory

if sys.argv[1] != "as ever":
    keep_freed_memory()
resident = lambda: int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1]) >> 10

torch.ones(1 << 18)  # what the first one brings in does not count

def step():
    before = resident()
    with mapped_blocks() if sys.argv[1] == "mapped" else contextlib.nullcontext():
        blocks = [torch.ones(24 << 18) for _ in range(8)]
    blocks.clear()
    if sys.argv[1] == "returning":
        return_freed_memory()
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


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this libc has no mallopt")
def test_it_is_returned_when_less_is_needed_from_now_on() -> None:
    assert _kept_mib("returning") < 0.1 * STEP_MIB


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this libc has no mallopt")
def test_blocks_that_are_mapped_by_themselves_go_back_at_once() -> None:
    assert _kept_mib("mapped") < 0.1 * STEP_MIB


def test_otherwise_it_is_not() -> None:
    assert _kept_mib("as ever") < 0.1 * STEP_MIB
