"""`dtd-worker`: read the settings, run the daemon, begin afresh after each job."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

import uvloop

from dtd import __version__
from dtd.config import WorkerConfig, load_worker_config
from dtd.core import member
from dtd.errors import ConfigError, DtdError
from dtd.logs import configure_logging
from dtd.platform import require_linux
from dtd.worker.daemon import Worker

# Python lets a thread keep the interpreter for 5 ms; the event loop must not wait that long for
# the training thread, which holds it only between tensor operations.
SWITCH_INTERVAL_S: Final = 0.0005
STOP_PATIENCE_S: Final = 10.0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="dtd-worker",
        description="Trains what the coordinator assigns, in a ring with the other workers.",
        epilog="Precedence: flag, DTD_* environment, configuration file, default.",
    )
    parser.add_argument("--config", metavar="FILE", help="TOML settings")
    parser.add_argument("--coordinator", metavar="HOST:PORT", help="where the coordinator listens")
    parser.add_argument("--name", help="stable name; default: host name and device")
    parser.add_argument("--device", metavar="cpu|cuda:N", help="what to train on")
    parser.add_argument("--threads", metavar="N", help="CPU threads; default: what the job says")
    parser.add_argument("--listen", metavar="HOST:PORT", help="data address")
    parser.add_argument("--advertise", metavar="HOST[:PORT]", help="data address to call")
    parser.add_argument("--state-dir", metavar="DIR", help="where checkpoints are kept")
    parser.add_argument("--log-format", choices=("auto", "json", "console"), help="form of the log")
    parser.add_argument("--version", action="version", version=f"dtd {__version__}")
    return parser.parse_args(arguments)


def _make_state_dir(config: WorkerConfig) -> None:
    try:
        config.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(
            f"state directory {config.state_dir} cannot be used: {error.strerror}",
            remedy="choose another with --state-dir",
        ) from error


async def _serve(config: WorkerConfig) -> member.Restart | member.Exit:
    loop = asyncio.get_running_loop()
    worker = Worker(config)
    stopping = asyncio.Event()

    def stop(name: str) -> None:
        stopping.set()
        worker.stop(name)
        loop.call_later(STOP_PATIENCE_S, worker.stop, f"{name}, and no boundary was reached")

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, signal.Signals(number).name)
    ending = await worker.run()
    # Asked while a restart was under way: the new process would know nothing of it.
    return member.Exit(reason="stopped") if stopping.is_set() else ending


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the worker; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    flags = {key: value for key, value in vars(_parse(given)).items() if value is not None}
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    stderr = sys.stderr
    try:
        require_linux()
        config = load_worker_config(flags, os.environ)
        _make_state_dir(config)
        configure_logging(config.log_format, stderr)
        ending = uvloop.run(_serve(config))
    except DtdError as error:
        stderr.write(f"dtd-worker: {error}\n")
        return error.exit_code
    stderr.flush()
    if isinstance(ending, member.Restart):
        os.execv(sys.executable, [sys.executable, "-m", "dtd.worker.main", *given])  # noqa: S606
    # The training thread may be in the middle of anything; it has nothing left to save.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
