"""The newest step that this worker has committed, in a file that outlives its process.

A worker that is killed takes its state along, and a coordinator that dies with all workers knows
only what it had stored.  So each commit leaves its number here, for the next process to report:
only then is it known how many steps were lost.  The file survives the process, not a loss of power.
A record that cannot be written or read is ignored: training continues.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
from pathlib import Path
from typing import Final

FILE: Final = "committed"
_DIGEST_BYTES: Final = 16
_RECORD: Final = struct.Struct(f"<Q{_DIGEST_BYTES}sQ")
_STEP: Final = struct.Struct("<Q")


class CommittedStep:
    """The record of one job in one worker.

    Args:
        path: the file; made if it is missing.
        job: unambiguous name of the job.

    Attributes:
        before: (generation, step) of the last commit by an earlier process; (0, 0) if unknown.
    """

    def __init__(self, path: Path, job: str) -> None:
        self._job = hashlib.blake2b(job.encode(), digest_size=_DIGEST_BYTES).digest()
        self._file: int | None = None
        self.before = (0, 0)
        with contextlib.suppress(OSError):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            found = os.pread(self._file, _RECORD.size, 0)
            if len(found) == _RECORD.size:
                generation, job_digest, step = _RECORD.unpack(found)
                self.before = (generation, step) if job_digest == self._job else (0, 0)

    def begin(self, generation: int) -> None:
        """The next commits are of this generation."""
        self._write(_RECORD.pack(generation, self._job, 0), 0)

    def committed(self, step: int) -> None:
        """A step is committed."""
        self._write(_STEP.pack(step), _RECORD.size - _STEP.size)

    def _write(self, content: bytes, offset: int) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._file, content, offset)
