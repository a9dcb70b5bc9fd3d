"""Install dtd on hosts that each have a systemd of their own, train, and hurt daemons and hosts.

    python -m scripts.systemd_cluster --hosts 3
    python -m scripts.systemd_cluster --faults kill,reboot --json

The hosts are made by systemd-nspawn from this machine's own files, kept in memory, joined by an
Ethernet of 1 Gbit/s, and gone afterwards.  It needs root.

Exit codes: 0 all is as it must be, 1 something is not or could not be done, 2 usage.  The table
goes to stdout, what happens meanwhile to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dtd.ctl import output
from dtd.errors import DtdError, UsageError
from scripts import stop_signals
from scripts.systemdcluster import report
from scripts.systemdcluster.cluster import Cluster
from scripts.systemdcluster.faults import FAULTS, Fault
from scripts.systemdcluster.requirements import why_not
from scripts.systemdcluster.run import run

FEWEST_HOSTS: Final = 2
MOST_HOSTS: Final = 16


def main(arguments: Sequence[str] | None = None) -> int:
    """Hurt a cluster and return the exit code."""
    options = _parser().parse_args(arguments)
    stop_signals.exit_when_asked()
    begun_s = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - begun_s:7.1f} s  {text}", file=sys.stderr, flush=True)

    try:
        faults = _faults(options.faults)
        reason = why_not()
        if reason:
            raise DtdError(f"no host can be booted here: {reason}")
        with (
            tempfile.TemporaryDirectory(prefix="dtd-systemd-") as name,
            contextlib.closing(Cluster(options.hosts, directory=Path(name), say=say)) as cluster,
        ):
            result = run(cluster, faults, say=say)
            stop_signals.ignore()
    except DtdError as error:
        output.say_error(error, as_json=options.json)
        return error.exit_code
    print(json.dumps(report.as_object(result)) if options.json else "\n".join(report.lines(result)))
    return 1 if result.problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/systemd-cluster",
        description="Install dtd on hosts with a systemd of their own, and hurt them.",
    )
    parser.add_argument("--hosts", type=_hosts, default=FEWEST_HOSTS, metavar="N")
    parser.add_argument(
        "--faults", default="all", metavar="A,B,...", help=f"of {', '.join(FAULTS)}"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return parser


def _hosts(text: str) -> int:
    number = int(text)
    if not FEWEST_HOSTS <= number <= MOST_HOSTS:
        raise argparse.ArgumentTypeError(f"must be {FEWEST_HOSTS} to {MOST_HOSTS}")
    return number


def _faults(text: str) -> list[Fault]:
    names = list(FAULTS) if text == "all" else text.split(",")
    unknown = [name for name in names if name not in FAULTS]
    if unknown:
        known = ", ".join(FAULTS)
        raise UsageError(f"--faults: there is no fault {unknown[0]!r}", remedy=f"choose of {known}")
    return [FAULTS[name] for name in names]


if __name__ == "__main__":
    sys.exit(main())
