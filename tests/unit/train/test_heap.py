"""Freed memory stays with a process, whichever of its threads trains."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys

import pytest

_PROGRAM = """
import contextlib, json, os, re, sys, threading
import torch
from dtd.train.malloc_tuning import keep_freed_memory, mapped_blocks, return_freed_memory

def resident_mib():
    # Not VmRSS: pages of libraries come, and go when the machine needs memory.
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) >> 10

def step(how):
    torch.ones(1 << 18)  # what the first one brings in does not count
    before = resident_mib()
    with mapped_blocks() if how == "mapped" else contextlib.nullcontext():
        blocks = [torch.ones(24 << 18) for _ in range(8)]
    blocks.clear()
    if how == "returning":
        return_freed_memory()
    print(json.dumps([how, resident_mib() - before]), flush=True)

for how in sys.argv[1:]:
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0
        continue
    if how != "as ever":
        keep_freed_memory()
    training = threading.Thread(target=step, args=(how,))
    training.start()
    training.join()
    os._exit(0)
"""
WAYS = ("keeping", "returning", "mapped", "as ever")
STEP_MIB = 8 * 24


@pytest.fixture(scope="module")
def kept_mib() -> dict[str, int]:
    """What a process keeps of a step, by the way in which it does; each way has its own process."""
    command = [sys.executable, "-c", _PROGRAM, *WAYS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return dict(json.loads(line) for line in done.stdout.splitlines())


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this libc has no mallopt")
def test_what_a_step_has_freed_is_there_for_the_next(kept_mib: dict[str, int]) -> None:
    assert kept_mib["keeping"] > 0.9 * STEP_MIB


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this libc has no mallopt")
def test_it_is_returned_when_less_is_needed_from_now_on(kept_mib: dict[str, int]) -> None:
    assert kept_mib["returning"] < 0.1 * STEP_MIB


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this libc has no mallopt")
def test_blocks_that_are_mapped_by_themselves_go_back_at_once(kept_mib: dict[str, int]) -> None:
    assert kept_mib["mapped"] < 0.1 * STEP_MIB


def test_otherwise_it_is_not(kept_mib: dict[str, int]) -> None:
    assert kept_mib["as ever"] < 0.1 * STEP_MIB
