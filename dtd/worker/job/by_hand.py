"""A script that was started by hand (`python train.py`) as a worker of its job on a cluster.

    main thread      the script, and the loop
    training thread  the worker's (`dtd.worker.job.training_thread`)
    a third thread   the worker's event loop: control connection, data port, ring

The worker is the daemon's whole, with three differences: it takes part in this job alone, its
output stays the script's, and when it is released the run ends instead of the process starting
anew.  Several processes of a host tell themselves apart by the state directory that each has
locked, which also gives a process that is started again the checkpoints of one that has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import platform
import shlex
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

import structlog
import torch
import uvloop

from dtd.cluster import member
from dtd.config import WorkerConfig, load_worker_config
from dtd.errors import ConfigError, LoopLeft, TaskError
from dtd.host.process_memory import keep_freed_memory
from dtd.job import JobSpec, overridden, to_mapping
from dtd.logs import configure_logging
from dtd.own_loop.alone import say, tables_of
from dtd.own_loop.task import LoopTask, UserLoop
from dtd.own_loop.turns import Turns
from dtd.security.credential import Credential
from dtd.security.identity import HAND_INSTANCES
from dtd.text.names import SCRIPT, name_of
from dtd.worker.cluster_access import coordinator_targets, load_credential, settled
from dtd.worker.daemon import Worker
from dtd.worker.main import SWITCH_INTERVAL_S
from dtd.worker.process.state_directory import StateDirectory

MOST_PROCESSES: Final = 64
"""Most processes of one job and user on one host."""
_NO_FILE: Final = Path(os.devnull)
"""In place of /etc/dtd/worker.toml, which names what daemons use: ports, directories."""
_GOES_WELL: Final = frozenset({"done", "cancelled"})

_open: set[str] = set()
"""Names of the workers that this process is: a lock of a file does not keep itself out."""


class ByHand:
    """The host of this process's run."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._started: Future[None] = Future()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._worker: Worker | None = None
        self._task: LoopTask | None = None
        self._complete = threading.Event()
        self._left: BaseException | None = None
        self._error: BaseException | None = None
        self._failure: BaseException | None = None
        self.spec: Mapping[str, Any] = {}

    # --- the user's thread -------------------------------------------------------------------

    def begin(self, loop: UserLoop, turns: Turns) -> LoopTask:
        """Begin to take part in the job; returns when others can call this worker.

        Raises:
            DtdError: a setting, the credential or the state directory cannot be used.
        """
        spec = self._spec_of(loop)
        self.spec = to_mapping(spec)
        self._task = LoopTask(loop, turns, ended=self._complete.set)
        self._task.precision = spec.train.precision
        turns.on_left = self._leave
        device = next(loop.model.parameters()).device
        config, credential, place = _settings(spec.job.name, device)
        self._prepare_process(config)
        self._thread = threading.Thread(
            target=self._serve, args=(config, credential, place, turns), name="worker", daemon=True
        )
        self._thread.start()
        self._started.result()
        return self._task

    def close(self) -> None:
        """Wait until the worker has left.

        Raises:
            DtdError: the job has failed, and the loop has not been told yet.
        """
        if self._thread is None:
            return
        self._thread.join()
        if self._failure is not None and self._left is None:
            raise self._failure

    def _spec_of(self, loop: UserLoop) -> JobSpec:
        own = {"job.name": self._name, "job.task": _script(), "elastic.by_hand": True}
        tables = tables_of({**loop.settings, **own})
        given = shlex.split(os.environ.get("DTD_SET", ""))
        return overridden(tables, given, source="dtd.join()")

    def _prepare_process(self, config: WorkerConfig) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        keep_freed_memory()
        if not structlog.is_configured():
            level = config.log_level if os.environ.get("DTD_LOG_LEVEL") else "warning"
            form = config.log_format if os.environ.get("DTD_LOG_FORMAT") else "console"
            configure_logging(form, sys.stderr, level, libraries="asyncio")

    def _leave(self, error: BaseException | None) -> None:
        """The loop is left: with an interrupt, this worker leaves the job, which goes on."""
        self._left = error
        if error is None or isinstance(error, Exception) or self._loop is None:
            return
        with contextlib.suppress(RuntimeError):  # it has left already
            self._loop.call_soon_threadsafe(self._stop)

    # --- the worker's thread -----------------------------------------------------------------

    def _stop(self) -> None:
        assert self._worker is not None, "it has started"
        reason, patience_s = "the script was interrupted", self._worker.config.drain_timeout_s
        self._worker.stop(reason)
        asyncio.get_running_loop().call_later(patience_s, self._worker.stop, reason)

    def _serve(
        self,
        config: WorkerConfig,
        credential: Credential | None,
        place: StateDirectory,
        turns: Turns,
    ) -> None:
        try:
            ending = uvloop.run(self._run(config, credential, place))
            self._failure = self._why(ending)
        except BaseException as error:  # noqa: BLE001 - it is the loop's to see
            self._failure = error
            if not self._started.done():
                self._started.set_exception(error)
        finally:
            gc.unfreeze()  # of the worker's start; the interpreter's end looks for leaks
            place.close()
            _open.discard(config.name)
        turns.fail(self._failure or LoopLeft("the run has ended"))

    async def _run(
        self, config: WorkerConfig, credential: Credential | None, place: StateDirectory
    ) -> member.Restart | member.Exit:
        targets = coordinator_targets(config, credential, os.environ)
        self._loop = asyncio.get_running_loop()
        self._worker = Worker(config, targets, credential, instance=place.instance, script=self)
        await self._worker.start()
        self._started.set_result(None)
        ending = await self._worker.run()
        if self._worker.failure is not None:
            raise self._worker.failure
        return ending

    def _why(self, ending: member.Restart | member.Exit) -> BaseException | None:
        """The error with which the loop ends; None if it has ended well."""
        release = ending.release if isinstance(ending, member.Restart) else None
        if release is None:
            return self._error or LoopLeft(f"this process has left the job: {ending.reason}")
        if release.state in _GOES_WELL and self._complete.is_set():
            return None
        if self._error is not None:
            return self._error
        told = f"job {release.job or self._name}: this process is out of it ({release.state})"
        reason = release.reason or "no reason was given"
        return TaskError(f"{told}: {reason}", remedy=_REMEDIES.get(release.state, ""))

    # --- the training thread -----------------------------------------------------------------

    def load(self, spec: JobSpec) -> tuple[LoopTask, JobSpec]:
        assert self._task is not None
        assert self._worker is not None
        say(f"takes part in the job {spec.job.name} as {self._worker.config.name}")
        return self._task, spec

    def failed(self, error: BaseException) -> None:
        self._error = error


_REMEDIES: Final = {
    "done": "it had no steps left; give the next one another name: dtd.join(name=...)",
    "refused": "start the same script with the same rows and versions on each host",
    "evicted": "start the script again: it joins the job between two steps",
    "unknown": "start the script again: it goes on from the newest checkpoint",
    "failed": "mend it and start the script again: it goes on from the newest checkpoint",
}
"""By the state of RELEASE."""


def _script() -> str:
    """Return the script as a job names its task."""
    stem = "".join(one if one.isalnum() else "_" for one in Path(sys.argv[0]).stem)
    return f"{stem if stem.isidentifier() else 'notebook'}{SCRIPT}"


# --- this process among those of its host ---------------------------------------------------------


def _settings(
    job: str, device: torch.device
) -> tuple[WorkerConfig, Credential | None, StateDirectory]:
    """The settings of the first worker that no other process is, with its locked directory."""
    flags = {"device": "cpu" if device.type == "cpu" else f"cuda:{device.index or 0}"}
    given = load_worker_config(flags, os.environ, default_file=_NO_FILE)
    credential, _ = load_credential(given, os.environ)
    busy: ConfigError | None = None
    for name in _names(job, credential):
        own = {**flags, "name": name}
        if os.environ.get("DTD_STATE_DIR"):
            own["state_dir"] = str(given.state_dir / name)
        config = load_worker_config(own, os.environ, default_file=_NO_FILE)
        config = settled(config, credential)
        if name in _open:
            continue
        try:
            place = StateDirectory(config.state_dir, dict(os.environ), sleep=lambda _: None)
        except ConfigError as error:
            busy = error
            continue
        _open.add(name)
        return config, credential, place
    raise busy or ConfigError(
        "this host's credential has no name for a process that is started by hand",
        remedy="join this host again: `dtdctl token create --replace`, `dtd-worker join TOKEN`",
    )


def _names(job: str, credential: Credential | None) -> Iterator[str]:
    """Names that this process may have, in order."""
    if os.environ.get("DTD_NAME"):
        yield os.environ["DTD_NAME"]
    elif credential is None:
        host = name_of(platform.node(), most=24) or "host"
        yield from (f"{host}-{job[:32]}-{number}" for number in range(MOST_PROCESSES))
    else:
        wanted = {f"{credential.name}-{instance}" for instance in HAND_INSTANCES}
        yield from (name for name in credential.workers if name in wanted)
