"""Profiles of a running job's steps: recorded when an operator asks for one, kept, and served."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import structlog

from dtd.errors import CheckpointError, RequestRefused
from dtd.net.clients.fetch_client import file_digest
from dtd.net.data_port.resources import Resource, file_blob
from dtd.train.profile import MOST_STEPS, ProfileOrder, StepProfiler
from dtd.wire import messages as m
from dtd.worker.job.training import Training

log = structlog.get_logger()

DIRECTORY: Final = "profiles"
PROFILE: Final = "profile"
PREFIX: Final = "profile/"
SUFFIX: Final = ".json.gz"
MOST_KEPT: Final = 4
_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,199}", re.ASCII)


class Profiles:
    """Profiles of this worker's jobs; belongs to the event loop."""

    def __init__(self, state_dir: Path, tell: Callable[[m.Message], None]) -> None:
        self._directory = state_dir / DIRECTORY
        self._tell = tell

    def begin(self, message: m.Measure, job: Training | None) -> None:
        """Have the training thread record; the answer follows when it is done."""
        try:
            profiler = self._profiler_for(message, job)
        except RequestRefused as error:
            refused = m.Measured(
                number=message.number, figures={}, reason=error.message, remedy=error.remedy
            )
            self._tell(refused)
            return

        def done(said: Mapping[str, Any]) -> None:
            reason = str(said.get("reason", ""))
            figures = {} if reason else dict(said)
            if not reason:
                self._forget_old()
            self._tell(m.Measured(number=message.number, figures=figures, reason=reason))

        log.info("profile_asked", job=message.job, steps=message.steps, profile=message.profile)
        profiler.asked = ProfileOrder(
            steps=min(message.steps, MOST_STEPS),
            limit_s=message.limit_s,
            first_step=message.first_step,
            path=self._directory / (message.profile + SUFFIX),
            done=done,
        )

    def _profiler_for(self, message: m.Measure, job: Training | None) -> StepProfiler:
        if not _NAME.fullmatch(message.profile):
            raise RequestRefused(f"{message.profile!r} does not name a profile")
        if job is None or job.job != message.job:
            raise RequestRefused(f"this worker does not train {message.job}")
        if job.profiler.asked is not None:
            raise RequestRefused(
                "a profile is under way on this worker", remedy="try again when it has ended"
            )
        return job.profiler

    def _forget_old(self) -> None:
        """Keep the newest files; in the thread that has written one."""
        with contextlib.suppress(OSError):
            files = sorted(self._directory.iterdir(), key=lambda path: path.stat().st_mtime)
            for path in files[:-MOST_KEPT]:
                path.unlink(missing_ok=True)

    def open(self, resource: str) -> Resource:
        """Return the file of a profile; blocking.

        Raises:
            CheckpointError: there is none of this name.
        """
        name = resource.removeprefix(PREFIX)
        path = self._directory / (name + SUFFIX)
        if not _NAME.fullmatch(name) or not path.is_file():
            raise CheckpointError(f"{resource} is not on this worker's disk")
        manifest = {"files": {path.name: {"hash": file_digest(path)}}}
        return Resource(manifest=json.dumps(manifest).encode(), blobs=[file_blob(path)])
