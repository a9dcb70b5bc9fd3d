"""Train on this machine: a real coordinator and real workers, until the job ends.

    python -m scripts.launch_local --task digits --num_workers 4 --epochs 5 --batch_size 128

Exit codes: 0 the job is done, 1 the daemons could not run, 2 usage or invalid job, 4 the job
failed, 128 + signal when interrupted.  No process of it is left in any case; logs and checkpoints
are, in the directory that it prints, unless --discard is given.  A run in a terminal whose web page
was opened in a browser serves it until Ctrl-C after the job's end, too; later

    python -m scripts.launch_local --show DIR

serves it again, for any run's directory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NoReturn

from dtd.address import Address
from dtd.checkpoint.assemble import FoundPart, assemble
from dtd.checkpoint.choice import fewest
from dtd.checkpoint.format import parse_name, read_manifest
from dtd.checkpoint.tensor_file import MODEL_FILE
from dtd.coordinator.store.database import FILE_NAME
from dtd.ctl import output
from dtd.errors import CheckpointError, DtdError, JobFailed, UsageError
from dtd.host.places import home_directory
from dtd.host.streams import fit_streams
from dtd.job import load_job, parse_job, to_mapping
from dtd.job.terms import folder_of
from dtd.text import figures
from dtd.text.shown import one_line
from scripts.cluster.local import LocalCluster
from scripts.cluster.networks import COORDINATOR
from scripts.cluster.processes import TAIL_LINES, exit_on_stop_signals, ignore_stop_signals
from scripts.launch_report import Display, LocalRun, open_display, summary_lines, summary_object

# --- place of logs and checkpoints, which outlive the command -------------------------------------


_MANY: Final = 1000
ASSEMBLED: Final = "assembled"
_ELSEWHERE: Final = "name a directory with --state-dir DIR, or keep nothing with --discard"


@contextlib.contextmanager
def run_directory(given: Path | None, *, discard: bool, name: str) -> Iterator[Path]:
    """The directory of one run: the one that is given, a new one, or one that is removed.

    Args:
        given: by the person; made if missing.
        discard: nothing is to be kept.
        name: of the job; a new directory is called after it and the time.

    Raises:
        UsageError: it cannot be made or written.
    """
    if discard and given is not None:
        raise UsageError(
            f"--discard stands beside --state-dir {given}", remedy="give one of the two"
        )
    if discard:
        with tempfile.TemporaryDirectory(prefix="dtd-", ignore_cleanup_errors=True) as temporary:
            yield Path(temporary)
        return
    yield _made(given) if given is not None else _new(_runs(os.environ), name)


def _made(given: Path) -> Path:
    try:
        given.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--state-dir: {given} cannot be created: {error.strerror}") from None
    if not os.access(given, os.W_OK | os.X_OK):
        raise UsageError(f"--state-dir: {given} is not writable")
    return given.resolve()


def _runs(environ: Mapping[str, str]) -> Path:
    remedy = f"set it, or {_ELSEWHERE}"
    base = environ.get("XDG_STATE_HOME") or home_directory(remedy=remedy) / ".local" / "state"
    return Path(base) / "dtd" / "runs"


def _new(runs: Path, name: str) -> Path:
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in range(1, _MANY):
        made = runs / (stem if number == 1 else f"{stem}-{number}")
        try:
            made.mkdir(parents=True, mode=0o700)
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(
                f"{made} cannot be created: {error.strerror}",
                remedy=_ELSEWHERE,
            ) from None
        return made.resolve()
    raise UsageError(f"{runs} has {_MANY} runs of this second", remedy="use --state-dir DIR")


def newest_weights(directory: Path, spec: Mapping[str, Any], folder: str) -> Path | None:
    """The weights in the newest checkpoint of a job that any of the run's workers has written."""
    elsewhere = spec["checkpoint"]["directory"]
    homes = [Path(elsewhere)] if elsewhere else directory.glob("*/checkpoints")
    found = [
        (key, file)
        for home in homes
        for file in (home / folder).glob(f"*/{MODEL_FILE}")
        if (key := parse_name(file.parent.name)) is not None
    ]
    return max(found)[1] if found else None


def step_of(weights: Path) -> int:
    """Committed steps of the checkpoint in which these weights lie."""
    key = parse_name(weights.parent.name)
    assert key is not None, weights
    return key[1]


def whole_weights(newest: Path, directory: Path) -> Path:
    """The same weights as torch reads them: parts of a checkpoint are put together.

    Raises:
        CheckpointError: parts are missing or damaged, or there is no room for the whole.
    """
    checkpoint = newest.parent
    if read_manifest(checkpoint).part is None:
        return newest
    folder = checkpoint.parent.name
    parts = [
        FoundPart(holder=path.parents[2].name, path=path)
        for path in sorted(directory.glob(f"*/checkpoints/{folder}/{checkpoint.name}"))
    ]
    chosen = fewest([read_manifest(one.path).shards for one in parts])
    whole, _ = assemble([parts[index] for index in chosen], directory / ASSEMBLED / folder)
    return whole / MODEL_FILE


# --- the command ----------------------------------------------------------------------------------


# All workers are registered before the job is submitted and the coordinator waits for those that
# warm up, so there is no other worker to settle for.
LAUNCHER_SETTINGS: Final = ("elastic.settle_s=0",)
# Workers that take no part although they are there: the person should know why.
KEPT_OUT: Final = frozenset({"refused", "barred"})
WEB_PAGE: Final = "127.0.0.1:0"
NO_WEB_PAGE: Final = "none"
_DEFAULTS: Final = {"task": "digits", "epochs": 5, "batch_size": 128, "lr": 0.1}
SERVERS_HELP: Final = 'parameter servers besides, for [strategy] owners = "servers"'
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
    fit_streams()
    options = _parser().parse_args(arguments)
    exit_on_stop_signals()
    try:
        if options.show is not None:
            show(options)
            return 0
        run = launch(options, job_spec(options))
    except DtdError as error:
        output.say_error(error, as_json=options.json)
        return error.exit_code
    if run.state == "done":
        return 0
    output.say_error(_job_failed(run), as_json=options.json)
    return JobFailed.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.launch_local",
        description="Train on this machine: real daemons, until the job ends.",
    )
    add = parser.add_argument
    add("--task", help="built-in task or package.module:attribute (default: digits)")
    add("--num_workers", "--num-workers", type=int, default=2, metavar="N")
    add("--num_servers", "--num-servers", type=int, default=0, metavar="N", help=SERVERS_HELP)
    add(
        "--epochs",
        type=int,
        help="passes over the training data (default: 5; scripts/quickstart: 20)",
    )
    add("--batch_size", "--batch-size", type=int, help="global batch (default: 128)")
    add("--lr", type=float, help="learning rate (default: 0.1)")
    add("--device", default="cpu", help="cpu or cuda:N (default: cpu)")
    add("--threads", type=int, metavar="N", help="torch threads of each worker")
    add("--job", type=Path, metavar="JOB.toml", help="a job file; the options above override it")
    add("--set", action="append", default=[], metavar="A.B=V", help="override a key of the job")
    add("--listen", metavar="HOST:PORT", help="serve other hosts as well; default: this one alone")
    add(
        "--web",
        default=WEB_PAGE,
        metavar="HOST:PORT|none",
        help="where browsers find the web page; default: a free port of this host",
    )
    add(
        "--state-dir",
        type=Path,
        metavar="DIR",
        help="for logs and checkpoints; default: a new one under ~/.local/state/dtd/runs, printed",
    )
    add("--discard", action="store_true", help="remove logs and checkpoints at the end")
    add("--show", type=Path, metavar="DIR", help="serve the page of a run that has ended")
    add("--json", action="store_true", help="one JSON object on stdout")
    return parser


def job_spec(options: argparse.Namespace) -> dict[str, Any]:
    """The validated job that the options describe, ready to submit.

    Raises:
        UsageError: an option or the job is invalid.
    """
    if options.num_workers < 1:
        raise UsageError(f"--num_workers: {options.num_workers} is less than 1")
    if options.num_servers < 0:
        raise UsageError(f"--num_servers: {options.num_servers} is less than 0")
    typed = {name: value for name in _KEYS if (value := getattr(options, name)) is not None}
    if options.job is None:
        typed = {**_DEFAULTS, **typed}
    momentum = [] if options.job is not None else [f"optimizer.momentum={DEFAULT_MOMENTUM}"]
    overrides = [f"{_KEYS[name]}={json.dumps(value)}" for name, value in typed.items()]
    overrides = [*LAUNCHER_SETTINGS, *momentum, *overrides, *options.set]
    if options.job is not None:
        return to_mapping(load_job(options.job, overrides))
    return to_mapping(parse_job('job.name = "local"', source="options", overrides=overrides))


def _address(flag: str, text: str) -> Address:
    try:
        return Address.parse(text)
    except UsageError as error:
        raise UsageError(f"{flag} {error.message}", remedy=f"write {flag} HOST:PORT") from None


def launch(options: argparse.Namespace, spec: dict[str, Any]) -> LocalRun:
    """Start the daemons, run the job, tell how it ended, stop the daemons.

    Raises:
        DtdError: the daemons could not run.
    """
    listen = _address("--listen", options.listen) if options.listen else None
    web = None if options.web == NO_WEB_PAGE else _address("--web", options.web)
    name = spec["job"]["name"]
    with (
        run_directory(options.state_dir, discard=options.discard, name=name) as directory,
        open_display() as display,
    ):
        cluster = LocalCluster(
            directory=directory,
            listen=listen,
            workers=options.num_workers,
            servers=options.num_servers,
            device=options.device,
            say=display.say,
            web=_served(web, display),
        )
        kept = None if options.discard else directory
        follow = Followed(spec=spec, kept=kept)
        try:
            cluster.start_all()
            everyone = options.num_workers + options.num_servers
            ranks = figures.ranks({"world_size": everyone, "servers": options.num_servers})
            display.say(f"coordinator at {cluster.address}, {ranks}")
            follow.web, link = cluster.web_page()
            if link:
                display.say(f"web page (the link works once): {link}")
            if kept is not None:
                display.say(f"logs and checkpoints are kept in {kept}")
            run = _run_job(cluster, follow, display)
        except SystemExit:
            cluster.stop()
            for line in follow.interrupted_lines():
                display.say(line)
            raise
        else:
            if options.json:
                output.print_json(summary_object(run))
            else:
                output.print_lines(map(one_line, summary_lines(run)))
            if sys.stdout.isatty() and page_was_opened(directory):
                with contextlib.suppress(SystemExit):
                    display.say("the web page is served until Ctrl-C")
                    _await_interrupt()
            return run
        finally:
            ignore_stop_signals()
            cluster.stop()


def show(options: argparse.Namespace) -> None:
    """Serve the web page of a run that has ended, until Ctrl-C.

    Raises:
        DtdError: the directory is no run's, or the coordinator could not run.
    """
    directory = options.show.resolve()
    if not (directory / FILE_NAME).is_file():
        raise UsageError(
            f"--show: {directory} is not the directory of a run: it has no {FILE_NAME}",
            remedy="the launcher prints it as `kept in`",
        )
    web = None if options.web == NO_WEB_PAGE else _address("--web", options.web)
    with open_display() as display:
        cluster = LocalCluster(
            directory=directory, workers=0, device="cpu", say=display.say, web=_served(web, display)
        )
        try:
            cluster.start_all()
            link = cluster.web_page()[1]
            with contextlib.suppress(SystemExit):
                display.say(f"web page (the link works once): {link}")
                display.say("it is served until Ctrl-C")
                _await_interrupt()
        finally:
            ignore_stop_signals()
            cluster.stop()


def page_was_opened(directory: Path) -> bool:
    """Whether the coordinator has logged that a browser logged in to the web page."""
    log = directory / f"{COORDINATOR}.log"
    return log.is_file() and '"web_login"' in log.read_text(errors="replace")


def _await_interrupt() -> NoReturn:
    while True:
        signal.pause()


def _served(web: Address | None, display: Display) -> Address | None:
    """Return the web page's address, if its packages are installed."""
    missing = [name for name in ("aiohttp", "plotly") if find_spec(name) is None]
    if web is None or not missing:
        return web
    display.say(
        f"no web page: {' and '.join(missing)} not installed ; try: pip install aiohttp plotly"
    )
    return None


@dataclass(slots=True, kw_only=True)
class Followed:
    """The job of this run, the directory that stays, and the job part of the last status."""

    spec: dict[str, Any]
    kept: Path | None
    job: str = ""
    identity: str = ""
    last: dict[str, Any] = field(default_factory=dict)
    web: str = ""

    def weights(self) -> Path | None:
        """Return the weights of the newest checkpoint that stays."""
        if self.kept is None or not self.job:
            return None
        return newest_weights(self.kept, self.spec, folder_of(self.job, self.identity))

    def interrupted_lines(self) -> list[str]:
        """Describe the remains of a job that was interrupted, and how to resume it."""
        if self.kept is None:
            return ["interrupted: the daemons are stopped, and nothing is kept (--discard)"]
        if not self.job:
            return [f"interrupted before the job began; logs are in {self.kept}"]
        weights, step = self.weights(), self.last.get("step", 0)
        saved = (
            f"its newest checkpoint, of step {step_of(weights)}: {weights}"
            if weights is not None
            else "it has no checkpoint yet"
        )
        return [
            f"interrupted: the daemons are stopped; {self.job} had reached step {step}",
            f"  {saved}",
            f"  logs and checkpoints are in {self.kept}",
            f"  the same command with --state-dir {self.kept} goes on with it",
        ]


def _run_job(cluster: LocalCluster, followed: Followed, display: Display) -> LocalRun:
    started_s = time.monotonic()
    shown: set[tuple[str, str]] = set()

    def on_status(status: dict[str, Any]) -> None:
        display.update(status)
        for worker in status["workers"]:
            what = (worker["name"], worker["state"])
            if worker["state"] in KEPT_OUT and what not in shown:
                shown.add(what)
                display.say(f"{worker['name']} is {worker['state']}: {worker['reason']}")
        if status["job"] is not None and status["job"]["id"] == job:
            followed.last.update(status["job"])

    job = followed.job = cluster.unfinished(followed.spec)
    if job:
        display.say(f"goes on with {job}, which is not finished in this directory")
    else:
        job = followed.job = cluster.submit(followed.spec)
    followed.identity = cluster.identity(job)
    answer = cluster.follow(job, on_status)
    took_s = time.monotonic() - started_s
    if answer["state"] == "failed":
        for line in cluster.printed_lines(job)[-TAIL_LINES:]:
            display.say(line)
    return LocalRun(
        job=job,
        state=answer["state"],
        reason=answer["reason"] or "",
        result=answer["result"] or {},
        last=followed.last,
        restarts=dict(cluster.restarts),
        took_s=took_s,
        directory=followed.kept,
        weights=_whole(followed, display),
        web=followed.web,
    )


def _whole(followed: Followed, display: Display) -> Path | None:
    """The run's weights as torch reads them; why not, if they cannot be had."""
    newest = followed.weights()
    if newest is None or followed.kept is None:
        return None
    try:
        return whole_weights(newest, followed.kept)
    except CheckpointError as error:
        display.say(f"the newest checkpoint is no whole one: {error.message}")
        return None


def _job_failed(run: LocalRun) -> JobFailed:
    logs = f"read the workers' logs in {run.directory}"
    return JobFailed(
        f"job {run.job} is {run.state}: {run.reason or 'no reason was given'}",
        remedy=logs if run.directory else "without --discard the workers' logs are kept",
    )


if __name__ == "__main__":
    sys.exit(main())
