"""`dtd-coordinator`: read the settings, run the daemon, end in good order on SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from typing import get_args

import structlog
import uvloop

from dtd import __version__
from dtd.config import CoordinatorConfig, MetricsFor, load_coordinator_config
from dtd.coordinator.daemon import Coordinator
from dtd.coordinator.diagnostics import status_line
from dtd.coordinator.maintenance import COMMANDS, INIT, run_command
from dtd.coordinator.process_limits import give_back_freed_memory, raise_file_limit
from dtd.coordinator.store.store import Store
from dtd.errors import DtdError
from dtd.logs import LogFormat, LogLevel, configure_logging
from dtd.notify import Notifier
from dtd.places import require_linux
from dtd.shown import indented

log = structlog.get_logger()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="dtd-coordinator",
        description="Keeps the roster and the job of a dtd cluster; never sees a gradient.",
        epilog="Precedence: flag, DTD_* environment, configuration file, default. "
        "About its state: dtd-coordinator init, dtd-coordinator backup FILE, dtd-coordinator"
        " restore FILE.",
    )
    parser.add_argument("--config", metavar="FILE", help="TOML settings")
    parser.add_argument("--listen", metavar="HOST:PORT", help="control address")
    parser.add_argument(
        "--advertise", metavar="HOST[:PORT][,...]", help="address under which others reach it"
    )
    parser.add_argument("--state-dir", metavar="DIR", help="where jobs and incidents are kept")
    parser.add_argument("--socket", metavar="FILE", help="where users of this host call")
    parser.add_argument("--local-operators", metavar="USER,@GROUP", help="who operates it")
    parser.add_argument("--local-workers", metavar="USER,@GROUP", help="whose workers it has")
    parser.add_argument("--local-viewers", metavar="USER,@GROUP", help="who may look at it")
    parser.add_argument("--heartbeat-interval-s", metavar="S", help="how often workers report")
    parser.add_argument("--heartbeat-timeout-s", metavar="S", help="silence that makes suspect")
    parser.add_argument("--credential-days", metavar="N", help="how long credentials live")
    parser.add_argument(
        "--output-lines-per-s", metavar="N", help="lines kept of each worker's output"
    )
    parser.add_argument("--metrics", metavar="HOST:PORT", help="where figures can be read")
    parser.add_argument("--metrics-for", choices=get_args(MetricsFor), help="who may read them")
    parser.add_argument("--log-format", choices=get_args(LogFormat), help="form of the log")
    parser.add_argument("--log-level", choices=get_args(LogLevel), help="the least that is logged")
    parser.add_argument("--version", action="version", version=f"dtd {__version__}")
    return parser.parse_args(arguments)


async def _serve(config: CoordinatorConfig) -> None:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    coordinator = Coordinator(config, Store(config.state_dir))
    notifier = Notifier.from_environment(os.environ)
    await coordinator.start()
    notifier.ready()
    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(coordinator.run()),
            tasks.create_task(notifier.keep(lambda: status_line(coordinator.membership.books))),
        ]
        await stopping.wait()
        for task in running:
            task.cancel()
    notifier.stopping()
    await coordinator.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the coordinator, or a command about its state; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        require_linux()
        if given and given[0] in (*COMMANDS, INIT):
            return run_command(given)
        flags = {key: value for key, value in vars(_parse(given)).items() if value is not None}
        config = load_coordinator_config(flags, os.environ)
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
