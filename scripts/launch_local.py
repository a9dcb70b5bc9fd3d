"""Train on this machine: a real coordinator and real workers on loopback, until the job ends.

    python -m scripts.launch_local --task digits --num_workers 4 --epochs 5 --batch_size 128

Exit codes: 0 the job is done, 1 the daemons could not run, 2 usage or invalid job, 4 the job
failed, 128 + signal when interrupted.  Whatever happens, no process of it is left.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from dtd.ctl import figures, output
from dtd.ctl.settings import read_address
from dtd.errors import DtdError, JobFailed, UsageError
from dtd.job import load_job, parse_job, to_mapping
from scripts import job_watch, stop_signals
from scripts.child import TAIL_LINES
from scripts.launch_display import Display, open_display
from scripts.launch_summary import LocalRun, summary_lines, summary_object
from scripts.local_cluster import LocalCluster

DEFAULT_LISTEN: Final = "127.0.0.1:0"
# All workers are registered before the job is submitted and the coordinator waits for those that
# warm up, so there is nobody else to settle for.
LAUNCHER_SETTINGS: Final = ("elastic.settle_s=0",)
# Workers that take no part although they are there: the person should know why.
KEPT_OUT: Final = frozenset({"refused", "barred"})
_DEFAULTS: Final = {"task": "digits", "epochs": 5, "batch_size": 128, "lr": 0.1}
DEFAULT_MOMENTUM: Final = 0.9
_KEYS: Final = {
    "task": "job.task",
    "epochs": "job.epochs",
    "batch_size": "job.global_batch_size",
    "lr": "optimizer.lr",
    "threads": "train.threads",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one job and return the exit code."""
    options = _parser().parse_args(arguments)
    stop_signals.exit_when_asked()
    try:
        run = launch(options, job_spec(options))
    except DtdError as error:
        output.say_error(error, as_json=options.json)
        return error.exit_code
    print(json.dumps(summary_object(run)) if options.json else "\n".join(summary_lines(run)))
    if run.state == "done":
        return 0
    output.say_error(_job_failed(run, options), as_json=options.json)
    return JobFailed.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.launch_local",
        description="Train on this machine: real daemons on loopback, until the job ends.",
    )
    add = parser.add_argument
    add("--task", help="built-in task or package.module:attribute (default: digits)")
    add("--num_workers", "--num-workers", type=int, default=2, metavar="N")
    add("--epochs", type=int, help="passes over the training data (default: 5)")
    add("--batch_size", "--batch-size", type=int, help="global batch (default: 128)")
    add("--lr", type=float, help="learning rate (default: 0.1)")
    add("--device", default="cpu", help="cpu or cuda:N (default: cpu)")
    add("--threads", type=int, metavar="N", help="torch threads of each worker")
    add("--job", type=Path, metavar="JOB.toml", help="a job file; the options above override it")
    add("--set", action="append", default=[], metavar="A.B=V", help="override a key of the job")
    add("--listen", default=DEFAULT_LISTEN, metavar="HOST:PORT", help="default: a free port")
    add("--state-dir", type=Path, metavar="DIR", help="kept; default: temporary and removed")
    add("--json", action="store_true", help="one JSON object on stdout")
    return parser


def job_spec(options: argparse.Namespace) -> dict[str, Any]:
    """The validated job that the options describe, ready to submit.

    Raises:
        UsageError: an option or the job is invalid.
    """
    if options.num_workers < 1:
        raise UsageError(f"--num_workers: {options.num_workers} is less than 1")
    typed = {name: value for name in _KEYS if (value := getattr(options, name)) is not None}
    if options.job is None:
        typed = {**_DEFAULTS, **typed}
    momentum = [] if options.job is not None else [f"optimizer.momentum={DEFAULT_MOMENTUM}"]
    overrides = [f"{_KEYS[name]}={json.dumps(value)}" for name, value in typed.items()]
    overrides = [*LAUNCHER_SETTINGS, *momentum, *overrides, *options.set]
    if options.job is not None:
        return to_mapping(load_job(options.job, overrides))
    return to_mapping(parse_job('job.name = "local"', source="options", overrides=overrides))


def launch(options: argparse.Namespace, spec: dict[str, Any]) -> LocalRun:
    """Start the daemons, run the job, stop the daemons.

    Raises:
        DtdError: the daemons could not run.
    """
    listen = read_address(options.listen, source="--listen")
    with _directory(options.state_dir) as directory, open_display() as display:
        cluster = LocalCluster(
            directory=directory,
            listen=listen,
            workers=options.num_workers,
            device=options.device,
            say=display.say,
        )
        try:
            cluster.start()
            workers = figures.counted(options.num_workers, "worker")
            display.say(f"coordinator at {cluster.address}, {workers}")
            return _run_job(cluster, spec, display)
        finally:
            stop_signals.ignore()
            cluster.stop()


def _run_job(cluster: LocalCluster, spec: dict[str, Any], display: Display) -> LocalRun:
    started_s = time.monotonic()
    last: dict[str, Any] = {}
    told: set[tuple[str, str]] = set()

    def on_status(status: dict[str, Any]) -> None:
        display.update(status)
        for worker in status["workers"]:
            what = (worker["name"], worker["state"])
            if worker["state"] in KEPT_OUT and what not in told:
                told.add(what)
                display.say(f"{worker['name']} is {worker['state']}: {worker['reason']}")
        if status["job"] is not None and status["job"]["id"] == job:
            last.update(status["job"])

    job = job_watch.submit(cluster.address, spec)
    answer = job_watch.follow(cluster.address, job, on_status=on_status, tend=cluster.tend)
    took_s = time.monotonic() - started_s
    if answer["state"] == "failed":
        for line in job_watch.printed_lines(cluster.address, job)[-TAIL_LINES:]:
            display.say(line)
    return LocalRun(
        job=job,
        state=answer["state"],
        reason=answer["reason"] or "",
        result=answer["result"] or {},
        last=last,
        restarts=dict(cluster.restarts),
        took_s=took_s,
    )


def _job_failed(run: LocalRun, options: argparse.Namespace) -> JobFailed:
    logs = "read the workers' logs in " + str(options.state_dir)
    keep = "add --state-dir DIR to keep the workers' logs"
    return JobFailed(
        f"job {run.job} is {run.state}: {run.reason or 'no reason was given'}",
        remedy=logs if options.state_dir else keep,
    )


@contextlib.contextmanager
def _directory(given: Path | None) -> Iterator[Path]:
    """The given directory, made if missing; or a temporary one that is removed."""
    if given is None:
        with tempfile.TemporaryDirectory(prefix="dtd-", ignore_cleanup_errors=True) as temporary:
            yield Path(temporary)
        return
    try:
        given.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--state-dir: {given} cannot be made: {error.strerror}") from None
    if not os.access(given, os.W_OK | os.X_OK):
        raise UsageError(f"--state-dir: {given} is not writable")
    yield given.resolve()


if __name__ == "__main__":
    sys.exit(main())
