"""`dtd-coordinator`: read the settings, run the daemon, end in good order on SIGTERM.

Also its commands on a state directory: `init`, `backup` and `restore`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import uvloop

from dtd import __version__
from dtd.cluster.state import ClusterState
from dtd.cluster.transitions import GONE
from dtd.config import CoordinatorConfig, add_flags, load_coordinator_config
from dtd.coordinator.connections.control_port import MOST_FILES, advertised
from dtd.coordinator.daemon import Daemon
from dtd.coordinator.store.backup import back_up, restore
from dtd.coordinator.store.store import Store
from dtd.errors import ConfigError, DtdError
from dtd.host.notify import Notifier
from dtd.host.places import require_linux
from dtd.host.process_memory import give_back_freed_memory
from dtd.host.streams import fit_streams
from dtd.logs import configure_logging
from dtd.security.authority import DIRECTORY, open_authority, open_data_key
from dtd.security.private_files import make_private_directory
from dtd.text.shown import counted, indented

# --- commands on a state directory ---------------------------------------------------------------


def run_init(arguments: Sequence[str]) -> None:
    """Make state directory and authority unless they are there; print the join command."""
    parser = argparse.ArgumentParser(
        prog="dtd-coordinator init",
        description="Create the cluster's authority, and print the command with which hosts join.",
    )
    add_flags(parser, CoordinatorConfig, "listen", "advertise", "state_dir")
    config = load_coordinator_config(vars(parser.parse_args(arguments)), os.environ)
    if config.listen is None or config.listen.port == 0:
        raise ConfigError(
            "listen: no address with a port is given, so a token could not contain one",
            remedy="give one here or in the settings: --listen 0.0.0.0:7117",
        )
    directory = config.state_dir / DIRECTORY
    make_private_directory(config.state_dir)
    authority = open_authority(directory)
    authority.equip(advertised(config.advertise, config.listen))
    open_data_key(directory)
    if config.listen.is_loopback:
        sys.stderr.write(
            f"{config.listen} can be reached from this host only; to serve other hosts, use "
            f"--listen 0.0.0.0:{config.listen.port}\n"
        )
    token = authority.first_token()
    if token is None:
        sys.stderr.write("the first token was revoked; create another with `dtdctl token create`\n")
    else:
        sys.stdout.write(f"dtd-worker join {token.word()}\n")


def _directory_and_file(name: str, description: str, arguments: Sequence[str]) -> tuple[Path, Path]:
    parser = argparse.ArgumentParser(prog=f"dtd-coordinator {name}", description=description)
    parser.add_argument("file", metavar="FILE", type=Path)
    add_flags(parser, CoordinatorConfig, "state_dir")
    given = parser.parse_args(arguments)
    return load_coordinator_config(vars(given), os.environ).state_dir, given.file.absolute()


def run_backup(arguments: Sequence[str]) -> None:
    """Write the state to a file."""
    what = "Write the coordinator's state to FILE; the coordinator may be running."
    state_dir, file = _directory_and_file("backup", what, arguments)
    size_bytes = back_up(state_dir, file)
    sys.stderr.write(
        f"{file}: {size_bytes} bytes, the state of {state_dir}; it holds the cluster's keys, so"
        " keep it where only you can read it\n"
    )


def run_restore(arguments: Sequence[str]) -> None:
    """Restore a backup."""
    what = "Restore a backup into an empty state directory."
    state_dir, file = _directory_and_file("restore", what, arguments)
    restore(file, state_dir)
    sys.stderr.write(
        f"{state_dir}: restored; start it with `dtd-coordinator --state-dir {state_dir}`, and let"
        " no coordinator of the original store run any more.  Tokens in the backup are void; hosts"
        " that joined after it must join again; what was "
        "revoked after it must be revoked again: see `dtdctl credentials`\n"
    )


COMMANDS: Final[dict[str, Callable[[Sequence[str]], None]]] = {
    "init": run_init,
    "backup": run_backup,
    "restore": run_restore,
}


# --- the process ---------------------------------------------------------------------------------


def raise_file_limit() -> None:
    """Take what the system allows: the usual limit of 1024 is for programs that use select(2)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


# --- the daemon ----------------------------------------------------------------------------------


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="dtd-coordinator",
        description="Keeps the roster and the job queue of a dtd cluster; never handles gradients.",
        epilog="Precedence: flag, DTD_* environment, configuration file, default. "
        "To manage its state: dtd-coordinator init, dtd-coordinator backup FILE, dtd-coordinator"
        " restore FILE.",
    )
    add_flags(parser, CoordinatorConfig)
    parser.add_argument("--version", action="version", version=f"dtd {__version__}")
    return parser.parse_args(arguments)


def status_line(*clusters: ClusterState) -> str:
    """The jobs, how many workers there are, and how many jobs wait."""
    living = (worker.state not in GONE for one in clusters for worker in one.workers.values())
    active = [one for one in clusters if one.job is not None]
    words = [*map(_job, active or clusters[:1]), counted(sum(living), "worker")]
    queued = sum(len(one.queue) for one in clusters)
    if queued:
        words.append(f"{counted(queued, 'job')} queued")
    return ", ".join(words)


def _job(cluster: ClusterState) -> str:
    job = cluster.job
    if job is None:
        return "no job"
    at = f" at step {job.step} of {job.total_steps}" if job.total_steps else ""
    return f"job {job.id} {job.state.value}{at}"


async def _serve(config: CoordinatorConfig) -> None:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    daemon = Daemon(config, Store(config.state_dir))
    notifier = Notifier.from_environment(os.environ)
    await daemon.start()
    notifier.ready()
    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(daemon.run()),
            tasks.create_task(
                notifier.keep(lambda: status_line(*daemon.coordinator.membership.clusters()))
            ),
        ]
        await stopping.wait()
        for task in running:
            task.cancel()
    notifier.stopping()
    await daemon.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the coordinator, or a command about its state; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    fit_streams()
    try:
        require_linux()
        if given and given[0] in COMMANDS:
            COMMANDS[given[0]](given[1:])
            return 0
        config = load_coordinator_config(vars(_parse(given)), os.environ)
        raise_file_limit()
        give_back_freed_memory()
        configure_logging(config.log_format, sys.stdout, config.log_level)
        uvloop.run(_serve(config))
    except DtdError as error:
        sys.stderr.write(f"dtd-coordinator: {indented(str(error))}\n")
        Notifier.from_environment(os.environ).status(str(error))
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
