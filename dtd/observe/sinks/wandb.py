"""Figures for Weights & Biases, offline: files that `wandb sync` uploads on demand.

A job is a run of one project, with an id of its own, so that the files of a coordinator that
started again belong to the same run.  Nothing here connects to anything.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dtd.job.terms import folder_of
from dtd.observe.sinks.entries import WANDB, Began, Ended, Figures

MAX_RUNS: Final = 256
"""Most runs on disk; the oldest make room."""


def make(settings: Mapping[str, Any]) -> WandbSink:
    """The sink of these settings: `directory` of the coordinator's state, `project`."""
    directory = Path(settings["directory"])
    (directory / WANDB).mkdir(mode=0o700, exist_ok=True)
    own = {f"WANDB_{name}_DIR": str(directory / WANDB / ".own") for name in ("CACHE", "CONFIG")}
    os.environ |= own | {
        "WANDB_DATA_DIR": str(directory / WANDB / ".own"),
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "WANDB_ERROR_REPORTING": "false",
        "DO_NOT_TRACK": "true",
    }
    import wandb

    return WandbSink(wandb, directory, settings["project"])


class WandbSink:
    """Jobs as runs of a project, in the directory `wandb` of the one that is given."""

    def __init__(self, library: Any, directory: Path, project: str) -> None:
        self._library = library
        self._directory = directory
        self._project = project
        self._runs: dict[str, Any] = {}
        self._settings = library.Settings(
            mode="offline",
            silent=True,
            console="off",
            disable_code=True,
            disable_git=True,
            save_code=False,
            x_disable_machine_info=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )

    def begin(self, entry: Began) -> None:
        self._make_room()
        tags = {name.removeprefix("dtd."): value for name, value in entry.tags.items()}
        self._runs[entry.job] = self._library.init(
            project=self._project,
            id=folder_of(entry.job, entry.identity),
            name=entry.job,
            dir=str(self._directory),
            config={**entry.settings, **{f"dtd.{name}": value for name, value in tags.items()}},
            resume="allow",
            reinit="create_new",
            settings=self._settings,
        )

    def figures(self, job: str, entries: Sequence[Figures]) -> None:
        """Add figures; W&B's own step is the job's, and never goes back."""
        for one in entries:
            self._runs[job].log({**one.scalars, "unix_s": one.unix_s}, step=one.step)

    def end(self, entry: Ended) -> None:
        run = self._runs.pop(entry.job, None)
        if run is None:
            return
        run.summary.update({f"final/{name}": value for name, value in entry.result.items()})
        run.summary["state"] = entry.state
        run.finish(exit_code=0 if entry.state == "done" else 1)

    def may_pass(self, error: Exception) -> bool:
        """Whether a retry may succeed: the disk may have room later."""
        return isinstance(error, OSError)

    def close(self) -> None:
        """Finish the files; later files of the job belong to the same run."""
        for run in self._runs.values():
            run.finish()

    def _make_room(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            runs = sorted((self._directory / WANDB).glob("offline-run-*"))  # named by their time
            for one in runs[: max(0, len(runs) - MAX_RUNS + 1)]:
                shutil.rmtree(one)
