"""Links run on asyncio's own event loop and on uvloop, so their tests do as well.

Tests of time limits run on one whose clock is played.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from tests.played_loop import PlayedLoop

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, LoopFactory]:
    """The loops on which a test runs, once each."""
    if item.path.name == "test_data_port_times.py":
        return {"played": PlayedLoop}
    if item.path.name in ("test_link.py", "test_tls.py"):
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"uvloop": uvloop.new_event_loop}
