"""Links run on asyncio's own event loop and on uvloop, so their tests do as well."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest
import uvloop

from dtd.core.collective import BucketMemory

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, LoopFactory]:
    """The loops on which a test runs, once each."""
    if item.path.name == "test_link.py":
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def memory_of() -> Callable[[np.ndarray], BucketMemory]:
    """A function that makes an array the memory of a bucket."""

    def make(array: np.ndarray) -> BucketMemory:
        def add(start: int, stop: int, received: memoryview) -> None:
            array[start:stop] += np.frombuffer(received, dtype=array.dtype)

        return BucketMemory(
            view=memoryview(array.view(np.uint8)), item_bytes=array.itemsize, add=add
        )

    return make
