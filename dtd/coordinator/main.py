"""`dtd-coordinator`: read the settings, run the daemon, end in good order on SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence

import structlog
import uvloop

from dtd import __version__
from dtd.config import CoordinatorConfig, load_coordinator_config
from dtd.coordinator.daemon import Coordinator
from dtd.coordinator.store import Store
from dtd.errors import DtdError
from dtd.logs import configure_logging
from dtd.platform import require_linux

log = structlog.get_logger()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="dtd-coordinator",
        description="Keeps the roster and the job of a dtd cluster; never sees a gradient.",
        epilog="Precedence: flag, DTD_* environment, configuration file, default.",
    )
    parser.add_argument("--config", metavar="FILE", help="TOML settings")
    parser.add_argument("--listen", metavar="HOST:PORT", help="control address")
    parser.add_argument("--state-dir", metavar="DIR", help="where jobs and incidents are kept")
    parser.add_argument("--log-format", choices=("auto", "json", "console"), help="form of the log")
    parser.add_argument("--version", action="version", version=f"dtd {__version__}")
    return parser.parse_args(arguments)


async def _serve(config: CoordinatorConfig) -> None:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    coordinator = Coordinator(config, Store(config.state_dir))
    await coordinator.start()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(coordinator.run())
        await stopping.wait()
        running.cancel()
    await coordinator.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the coordinator; returns the exit code."""
    flags = {key: value for key, value in vars(_parse(arguments)).items() if value is not None}
    try:
        require_linux()
        config = load_coordinator_config(flags, os.environ)
        configure_logging(config.log_format, sys.stderr)
        uvloop.run(_serve(config))
    except DtdError as error:
        sys.stderr.write(f"dtd-coordinator: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
