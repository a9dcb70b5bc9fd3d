"""Records of workers for tests."""

from __future__ import annotations

from typing import Any

from dtd.wire import messages as m


def registration(name: str, **fields: Any) -> m.Register:
    """The REGISTER message of a worker, with these fields."""
    usual = {"incarnation": 1, "pid": 0, "host": "", "device": "", "data_host": "", "data_port": 0}
    return m.Register(**{"name": name, "version": "", **usual, **fields})
