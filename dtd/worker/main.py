"""The worker: read the settings, run the daemon, restart after each job."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import re
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Final, TextIO

import structlog
import uvloop

from dtd import __version__
from dtd.cluster import member
from dtd.config import WorkerConfig, add_flags, load_worker_config
from dtd.errors import ConfigError, DtdError
from dtd.host.notify import Notifier
from dtd.host.places import require_linux
from dtd.host.process_memory import keep_freed_memory
from dtd.host.streams import fit_streams, hand_over_streams, own_streams
from dtd.logs import configure_logging
from dtd.security.credential import Credential
from dtd.text.names import name_of
from dtd.text.shown import indented
from dtd.worker.cluster_access import (
    COMMAND,
    coordinator_targets,
    load_credential,
    run_join,
    settled,
    warn_of_certificates,
)
from dtd.worker.daemon import Worker
from dtd.worker.leaving import Departure, Notice, check_command
from dtd.worker.process.host_checks import check_device, check_sandbox
from dtd.worker.process.last_end import LastEnd
from dtd.worker.process.process_state import ProcessState, free_forked_children, replace_process
from dtd.worker.process.state_directory import StateDirectory

# Python lets a thread keep the interpreter for 5 ms; the event loop must not wait that long for
# the training thread, which holds it only between tensor operations.
SWITCH_INTERVAL_S: Final = 0.0005
_END_S: Final = 10.0
"""Ample time from the departure to the process's end."""
START_AGAIN_EXIT_CODE: Final = 75
"""The supervisor is to start another process: this one was ended by `dtdctl kill-worker --signal
TERM`, or a job has changed its state for good."""


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="dtd-worker",
        description="Trains what the coordinator assigns, in a ring with the other workers.",
        epilog="Precedence: flag, DTD_* environment, configuration file, default. "
        "To join a cluster first: dtd-worker join TOKEN.",
    )
    add_flags(parser, WorkerConfig)
    parser.add_argument("--instance", metavar="DEVICE[-LABEL]", help="as in dtd-worker@cuda0")
    parser.add_argument("--version", action="version", version=f"dtd {__version__}")
    return parser.parse_args(arguments)


def _load(
    given: dict[str, object], environ: Mapping[str, str]
) -> tuple[WorkerConfig, Credential | None, tuple[ConfigError, ...]]:
    """The settings, the credential, and the reasons why files with a renewed one do not count.

    A name that is not configured follows the credential's.
    """
    host = platform.node()
    flags = with_instance(given, environ, host)
    config = load_worker_config(flags, environ, hostname=host)
    credential, ignored = load_credential(config, environ)
    if credential is not None:
        flags = with_instance(given, environ, credential.name)
        config = load_worker_config(flags, environ, hostname=credential.name)
    return settled(config, credential), credential, ignored


async def _serve(
    config: WorkerConfig, credential: Credential | None, *, last_end: str = "", instance: str = ""
) -> member.Restart | int:
    """Serve; returns whether to restart, or the exit code."""
    loop = asyncio.get_running_loop()
    targets = coordinator_targets(config, credential, os.environ)
    worker = Worker(config, targets, credential, last_end=last_end, instance=instance)
    notifier = Notifier.from_environment(os.environ)
    departure = Departure(worker.stop, config.drain_timeout_s)
    notice = Notice(config.drain_when) if config.drain_when is not None else None

    def stop(name: str) -> None:
        notifier.extend(config.drain_timeout_s + _END_S)
        departure.on_signal(name)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, signal.Signals(number).name)
    if notice is not None:
        await _stand_by(notice, notifier, departure.signalled)
        if departure.signalled.is_set():
            notifier.stopping()
            return 0
    await worker.start()
    notifier.ready()
    async with asyncio.TaskGroup() as tasks:
        beside = [tasks.create_task(notifier.keep(worker.describe))]
        if notice is not None:
            beside.append(tasks.create_task(departure.upon(notice)))
        ending = await worker.run()
        for task in beside:
            task.cancel()
    # Stopped while a restart was under way: the new process would know nothing of it.
    if not departure.signalled.is_set() and worker.failure is None:
        if isinstance(ending, member.Restart):
            return ending
        if departure.noticed:
            return member.Restart(reason=departure.noticed)
    notifier.stopping()  # a restart is not the end: it is this process that goes on
    if worker.failure is not None:
        raise worker.failure
    return START_AGAIN_EXIT_CODE if worker.drilled else 0


async def _stand_by(notice: Notice, notifier: Notifier, signalled: asyncio.Event) -> None:
    """Wait while the command asks this worker to stay away, until a signal ends the wait."""
    reason = ""

    def stands_by(told: str) -> None:
        nonlocal reason
        reason = told
        notifier.ready()

    async with asyncio.TaskGroup() as tasks:
        telling = tasks.create_task(notifier.keep(lambda: f"stands by: {reason}"))
        waits = [
            tasks.create_task(notice.over(stands_by)),
            tasks.create_task(signalled.wait()),
        ]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in (telling, *waits):
            task.cancel()


def _run(
    config: WorkerConfig, credential: Credential | None, instance: str
) -> member.Restart | int:
    """Serve, and leave traces by which the next process can tell how this one has ended."""
    last_end = LastEnd(config.state_dir)
    last_end.begin()
    try:
        ending = uvloop.run(_serve(config, credential, last_end=last_end.told, instance=instance))
    except DtdError:
        last_end.end()
        raise
    except BaseException as error:
        last_end.failed(error)
        raise
    last_end.end()
    return ending


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the worker; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    fit_streams()
    stderr = sys.stderr
    try:
        require_linux()
        keep_freed_memory()
        if given[:1] == [COMMAND]:
            return run_join(given[1:])
        flags = {key: value for key, value in vars(_parse(given)).items() if value is not None}
        config, credential, ignored = _load(flags, os.environ)
        check_device(config.device)
        check_sandbox(config.sandbox)
        check_command(config.drain_when)
        begun = _state()
        free_forked_children()
        place = StateDirectory(config.state_dir, os.environ)
        stdout, stderr = own_streams()
        configure_logging(config.log_format, stdout, config.log_level, libraries="asyncio")
        if credential is not None:
            warn_of_certificates(credential, ignored)
        ending = _run(config, credential, place.instance)
    except DtdError as error:
        stderr.write(f"dtd-worker: {indented(str(error))}\n")
        stderr.flush()
        Notifier.from_environment(os.environ).status(str(error))
        if stderr is sys.stderr:
            return error.exit_code
        os._exit(error.exit_code)  # the interpreter would wait for threads that never end
    except Exception:  # noqa: BLE001
        stderr.write(traceback.format_exc())
        stderr.flush()
        os._exit(1)  # as above
    if isinstance(ending, member.Restart):
        _begin_anew(begun, place, given, (stdout, stderr))
        ending = START_AGAIN_EXIT_CODE
    # The training thread may be in the middle of anything; it has nothing left to save.
    os._exit(ending)


def _state() -> ProcessState:
    try:
        return ProcessState()
    except OSError as error:
        raise ConfigError(
            f"the working directory cannot be used: {error.strerror}",
            remedy="start the worker in a directory that exists",
        ) from error


def _begin_anew(
    begun: ProcessState, place: StateDirectory, given: Sequence[str], own: tuple[TextIO, TextIO]
) -> None:
    """Replace this process with one that is as the service began it; returns if that cannot be."""
    parts = begun.restore()
    if parts:
        structlog.get_logger().warning("process_not_restored", parts=parts)
        return
    # What is imported next takes seconds, and no event loop feeds the watchdog meanwhile.
    Notifier.from_environment(begun.environment).watchdog()
    hand_over_streams(*own)  # last: a thread of the job may still print
    replace_process(given, begun.environment | place.hand_over())


# --- the instance of a worker's unit -------------------------------------------------------------
#
# `dtd-worker@cuda0-left` trains on cuda:0, `dtd-worker@server` is a parameter server.  An instance
# is a device or this role, and after a dash anything that tells two of a kind apart.  It stands
# above the configuration file, which all workers of a host share, and below a flag or a variable,
# which can be given to one alone.  Pure.


_INSTANCE: Final = re.compile(r"(cpu|server|cuda)(0|[1-9][0-9]{0,2})?(-[A-Za-z0-9._-]{1,15})?")
_MAX_HOST_CHARACTERS: Final = 40
"""A name has 64 characters at most, an instance 23."""


def what_it_is(instance: str) -> dict[str, str]:
    """The settings that an instance stands for: a device, "cpu" or "cuda:N", or a role.

    Raises:
        ConfigError: it names neither.
    """
    match = _INSTANCE.fullmatch(instance)
    kind, number = match.group(1, 2) if match else ("", None)
    if (kind, number is None) not in (("cpu", True), ("server", True), ("cuda", False)):
        raise ConfigError(
            f"--instance: {instance!r} does not name a device",
            remedy="name the unit dtd-worker@cpu, dtd-worker@cuda0, dtd-worker@cpu-2, or"
            " dtd-worker@server",
        )
    if kind == "server":
        return {"role": "server", "device": "cpu"}
    return {"device": kind if number is None else f"{kind}:{number}"}


def with_instance(
    flags: Mapping[str, object], environ: Mapping[str, str], host: str
) -> dict[str, object]:
    """The flags, with device, role and name from `--instance` where nothing else sets them.

    Raises:
        ConfigError: the instance does not name a device.
    """
    filled = dict(flags)
    instance = filled.pop("instance", None)
    if instance is None:
        return filled
    for name, value in what_it_is(str(instance)).items():
        if not environ.get(f"DTD_{name.upper()}"):
            filled.setdefault(name, value)
    if not environ.get("DTD_NAME"):
        named = name_of(host, most=_MAX_HOST_CHARACTERS) or "worker"
        filled.setdefault("name", f"{named}-{instance}")
    return filled
