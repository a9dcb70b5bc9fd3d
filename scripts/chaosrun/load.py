"""Busy processes beside the daemons, so that nobody has a processor when it wants one."""

from __future__ import annotations

import sys
from pathlib import Path

from scripts.child import Child, stop_all


class Load:
    """So many processes that do nothing, as fast as they can.

    Args:
        count: of them.
    """

    def __init__(self, count: int) -> None:
        self._children = [
            Child(f"load-{index}", [sys.executable, "-c", "while True: pass"], Path("/dev/null"))
            for index in range(count)
        ]
        for child in self._children:
            child.start()

    def stop(self) -> None:
        """End them."""
        stop_all(self._children, grace_s=0.0)
