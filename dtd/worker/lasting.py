"""Exclusion of long-lived objects from garbage collection.

Importing torch makes half a million objects that live as long as the process.  Python's collector
looks at all of them again and again while they are made, for a quarter of the import's processor
time; and once they are there, each full collection looks at them for 0.3 s, in which it holds the
interpreter and neither the event loop nor the training thread runs.  A job's modules, model and
plan last as long: with several hundred layers each full collection took 20 ms.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def made_to_last() -> Iterator[None]:
    """Disable collection inside; objects that exist at the end are never scanned again."""
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collected:
            gc.enable()


def leave_out_what_is_there() -> None:
    """Collect all garbage; the objects that remain are never scanned again."""
    gc.collect()
    gc.freeze()
