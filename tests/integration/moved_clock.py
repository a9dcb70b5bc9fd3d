"""Clocks of real daemons that a test moves while they run, for OpenSSL as for Python."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("moved_clock.c")
DAY_S = 86400


class MovedClock:
    """The clock of all processes that are started with `environment`."""

    def __init__(self, directory: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            pytest.skip("a C compiler is needed to move the clocks of other processes")
        library = directory / "moved_clock.so"
        command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
        subprocess.run(command, check=True, timeout=60)
        path = directory / "moved"
        path.write_bytes(bytes(16))
        with path.open("r+b") as file:
            self._offsets = mmap.mmap(file.fileno(), 16)
        self.environment = {"LD_PRELOAD": str(library), "MOVED_CLOCK": str(path)}

    def passes(self, days: float) -> None:
        """So many days go by."""
        wall_s, boot_s = struct.unpack("qq", self._offsets[:])
        seconds = int(days * DAY_S)
        self._offsets[:] = struct.pack("qq", wall_s + seconds, boot_s + seconds)

    def jumps(self, days: float) -> None:
        """Somebody sets the clock."""
        wall_s, boot_s = struct.unpack("qq", self._offsets[:])
        self._offsets[:] = struct.pack("qq", wall_s + int(days * DAY_S), boot_s)
