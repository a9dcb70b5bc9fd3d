"""The commands of dtdctl and their options.

This file only declares them; each hands over to the function of the same name.  `--coordinator` and
`-o` were taken by `main` before typer sees the arguments, so that they may stand anywhere.
"""

from __future__ import annotations

import enum
import math
from pathlib import Path
from typing import Annotated

import typer

from dtd import __version__
from dtd.ctl import checkpoints as checkpoint_commands
from dtd.ctl import events as event_commands
from dtd.ctl import jobs as job_commands
from dtd.ctl import jobs as worker_commands
from dtd.ctl import origins as origin_commands
from dtd.ctl import output
from dtd.ctl import status as status_commands
from dtd.ctl import web as web_commands
from dtd.ctl.access.app import add_access_commands
from dtd.ctl.install.app import add_install_commands
from dtd.ctl.models.app import add_model_commands
from dtd.ctl.origins import read_origin
from dtd.ctl.runs.app import add_run_commands
from dtd.ctl.settings import (
    ADDRESS_VARIABLE,
    CREDENTIAL_VARIABLE,
    FORMS,
    Settings,
)
from dtd.ctl.sweeps.app import sweep_app
from dtd.errors import UsageError

app = typer.Typer(
    name="dtdctl",
    help="Query and control a dtd coordinator.",
    epilog="Exit codes: 0 healthy or done, 1 the command failed, 2 usage or invalid job,"
    " 3 no coordinator, 4 degraded (status) or job failed (wait).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
add_access_commands(app)
add_run_commands(app)
add_model_commands(app)
add_install_commands(app)
app.add_typer(sweep_app, name="sweep")

JobFile = Annotated[Path, typer.Argument(metavar="JOB.toml", help="The job file.")]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="A job's id, as `jobs` lists it.")]
WorkerName = Annotated[str, typer.Argument(metavar="NAME", help="A worker's name.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=V", help="Override a key of the job file; repeatable."),
]


class SignalName(enum.StrEnum):
    """Signals that kill-worker can send."""

    KILL = "KILL"
    TERM = "TERM"
    STOP = "STOP"


class ReportForm(enum.StrEnum):
    """Formats of a report."""

    HTML = "html"
    MD = "md"


class BetterMode(enum.StrEnum):
    """Which values of a metric are better."""

    MAX = "max"
    MIN = "min"


def _print_version(wanted: bool) -> None:
    if wanted:
        output.print_lines([f"dtd {__version__}"])
        raise typer.Exit


@app.callback()
def declare_common_options(
    _coordinator: Annotated[
        str,
        typer.Option(
            "--coordinator", metavar="HOST:PORT|unix:/PATH[,...]", envvar=ADDRESS_VARIABLE
        ),
    ] = "a coordinator of this host",
    _credential: Annotated[
        str, typer.Option("--credential", metavar="FILE", envvar=CREDENTIAL_VARIABLE)
    ] = "~/.config/dtd/ctl.credential",
    _output: Annotated[str, typer.Option("--output", "-o", metavar="|".join(FORMS))] = FORMS[0],
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="And exit.")
    ] = False,
) -> None:
    """Query and control a dtd coordinator.

    --coordinator, --credential and -o may stand anywhere on the line.
    """


def _finish(exit_code: int) -> None:
    raise typer.Exit(exit_code)


@app.command()
def validate(context: typer.Context, job_file: JobFile, set_: Overrides = None) -> None:
    """Check a job file: all errors at once, with line and nearest known key."""
    settings: Settings = context.obj
    _finish(job_commands.validate(job_file, set_ or (), as_json=settings.as_json))


@app.command()
def submit(
    context: typer.Context,
    job_file: Annotated[
        Path | None, typer.Argument(metavar="[JOB.toml]", help="The job file.")
    ] = None,
    set_: Overrides = None,
    like: Annotated[
        str,
        typer.Option(
            "--like",
            metavar="JOB",
            help="Repeat this job instead: its settings, code and origin.",
        ),
    ] = "",
    resume_from: Annotated[
        str,
        typer.Option(
            "--resume-from",
            metavar="JOB[@STEP]",
            help="Continue from another job's checkpoint: model, optimizer, data position.",
        ),
    ] = "",
    weights_from: Annotated[
        str,
        typer.Option(
            "--weights-from",
            metavar="JOB[@STEP]|FILE.safetensors",
            help="Start at step 0 with the weights of another job or of a file.",
        ),
    ] = "",
    strict: Annotated[
        bool,
        typer.Option("--strict/--no-strict", help="Whether all of those weights must fit."),
    ] = True,
    either_from: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="JOB[@STEP]",
            help="Deprecated: --weights-from if JOB is done, otherwise --resume-from.",
        ),
    ] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the job has ended.")] = False,
    no_ship: Annotated[
        bool, typer.Option("--no-ship", help="Use the task's code installed on the workers.")
    ] = False,
) -> None:
    """Queue a job and print its id; the task's own package is shipped to the workers."""
    if (job_file is None) != bool(like):
        raise UsageError(
            "a job is submitted either from a file or like an earlier job",
            remedy="dtdctl submit JOB.toml, or dtdctl submit --like JOB",
        )
    origin = read_origin(
        resume_from=resume_from, weights_from=weights_from, either_from=either_from, strict=strict
    )
    made = job_commands.Submission(
        overrides=set_ or (), origin=origin, wait_for_end=wait, ships=not no_ship
    )
    if job_file is None:
        from dtd.ctl.runs.repeat import submit_like

        _finish(submit_like(context.obj, like, made))
    else:
        _finish(job_commands.submit(context.obj, job_file, made))


@app.command()
def status(
    context: typer.Context,
    watch: Annotated[bool, typer.Option("--watch", help="Keep the display up to date.")] = False,
    memory: Annotated[
        bool, typer.Option("--memory", help="Also each worker's memory by part.")
    ] = False,
) -> None:
    """Show the job, its loss and rate, the workers, the slowest one, and why the job waits."""
    if watch:
        from dtd.ctl.watch.command import watch_status

        _finish(watch_status(context.obj))
    _finish(status_commands.show_status(context.obj, memory=memory))


@app.command()
def wait(
    context: typer.Context,
    job: JobId,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="S", min=0.0, help="Give up after S seconds.")
    ] = math.inf,
) -> None:
    """Wait until a job has ended; exit 4 if it failed or was cancelled."""
    _finish(job_commands.wait(context.obj, job, timeout_s=timeout))


@app.command()
def cancel(context: typer.Context, job: JobId) -> None:
    """Stop a job at its next step boundary, keeping a checkpoint."""
    _finish(job_commands.cancel(context.obj, job))


@app.command()
def resume(
    context: typer.Context,
    job: JobId,
    set_: Overrides = None,
) -> None:
    """Continue a job that failed, was cancelled or is waiting.

    An ended job continues as a new one, from its newest checkpoint. A waiting one continues
    without waiting for absent workers that may hold newer state, which may lose steps.
    """
    _finish(origin_commands.resume(context.obj, job, overrides=set_ or ()))


@app.command()
def extend(
    context: typer.Context,
    job: JobId,
    epochs: Annotated[
        int | None,
        typer.Option("--epochs", metavar="N", min=1, help="Total number, counted from the start."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option("--steps", metavar="N", min=1, help="Total number, counted from the start."),
    ] = None,
    set_: Overrides = None,
) -> None:
    """Extend an ended job, as a new job; the schedule follows its new length."""
    length = {"epochs": epochs or 0, "steps": steps or 0}
    _finish(origin_commands.extend(context.obj, job, **length, overrides=set_ or ()))


@app.command()
def doctor(
    context: typer.Context,
    job_file: Annotated[
        Path | None, typer.Argument(metavar="[JOB.toml]", help="Also forecast this job's step.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Measure bandwidths even while a job runs.")
    ] = False,
) -> None:
    """Examine coordinator, workers and links; with a job, forecast step time and memory."""
    from dtd.ctl.doctor import command as doctor_commands

    _finish(doctor_commands.doctor(context.obj, job_file, force=force))


@app.command("kill-worker")
def kill_worker(
    context: typer.Context,
    name: WorkerName,
    signal: Annotated[
        SignalName, typer.Option("--signal", case_sensitive=False, help="The signal to send.")
    ] = SignalName.KILL,
) -> None:
    """Send a signal to a worker's process, to test recovery."""
    _finish(worker_commands.kill(context.obj, name, signal.value))


@app.command()
def drain(context: typer.Context, name: WorkerName) -> None:
    """Let a worker leave at the next step boundary, losing nothing."""
    _finish(worker_commands.drain(context.obj, name))


@app.command()
def jobs(
    context: typer.Context,
    tag: Annotated[str, typer.Option("--tag", metavar="TAG", help="Only jobs that have it.")] = "",
) -> None:
    """List all jobs with their results, newest first."""
    _finish(job_commands.list_jobs(context.obj, tag=tag))


@app.command()
def delete(
    context: typer.Context,
    job: Annotated[
        str, typer.Argument(metavar="JOB[@STEP]", help="An ended job, or a checkpoint of it.")
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete an ended job with its checkpoints on all workers, or its checkpoints of one step."""
    from dtd.ctl.jobs import delete

    _finish(delete(context.obj, job, confirmed=yes))


@app.command("show")
def show_job(context: typer.Context, job: JobId) -> None:
    """Show a job: settings, code, data, results, times, incidents, checkpoints."""
    from dtd.ctl.show import show_job

    _finish(show_job(context.obj, job))


@app.command()
def metrics(
    context: typer.Context,
    job: JobId,
    names: Annotated[
        str,
        typer.Option("--names", metavar="A,B", help="Only these figures; default: all."),
    ] = "",
    workers: Annotated[
        bool, typer.Option("--workers", help="Also those of each worker and link.")
    ] = False,
    from_step: Annotated[
        int, typer.Option("--from-step", metavar="N", min=0, help="The first step.")
    ] = 0,
    to_step: Annotated[
        int, typer.Option("--to-step", metavar="N", min=0, help="The last step; 0: the newest.")
    ] = 0,
    points: Annotated[
        int,
        typer.Option(
            "--points", metavar="N", min=1, max=20_000, help="At most so many of each figure."
        ),
    ] = 1000,
) -> None:
    """Show figures of a job over its steps; -o csv and -o parquet print them for other programs."""
    from dtd.ctl.metrics import show_metrics

    wanted = tuple(name for name in names.split(",") if name)
    steps = (from_step, to_step)
    _finish(
        show_metrics(context.obj, job, names=wanted, workers=workers, steps=steps, points=points)
    )


@app.command()
def report(
    context: typer.Context,
    job: JobId,
    against: Annotated[
        str, typer.Option("--against", metavar="JOB", help="Compare it with another job.")
    ] = "",
    form: Annotated[
        ReportForm, typer.Option("--format", help="A page to look at, or Markdown.")
    ] = ReportForm.HTML,
    file: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Default: JOB.html or JOB.md; -: stdout"
        ),
    ] = None,
) -> None:
    """Write a job's report: curves, rates, scaling, where time went, incidents, in words too."""
    from dtd.ctl.report import write_report

    _finish(write_report(context.obj, job, against=against, form=form.value, file=file))


@app.command()
def logs(context: typer.Context, job: JobId) -> None:
    """Print what a job's own code printed, per rank."""
    _finish(job_commands.logs(context.obj, job))


@app.command()
def fetch(
    context: typer.Context,
    job: Annotated[str, typer.Argument(metavar="JOB[@STEP]", help="Whose weights.")],
    directory: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="Destination directory; default: ./JOB")
    ] = None,
    best: Annotated[
        str,
        typer.Option(
            "--best", metavar="METRIC", help="The best checkpoint by this metric, not the last."
        ),
    ] = "",
    mode: Annotated[
        BetterMode | None,
        typer.Option("--mode", help="Which is better; default: the job's setting."),
    ] = None,
) -> None:
    """Fetch a job's weights as safetensors, and show how to load them."""
    _finish(
        checkpoint_commands.fetch(
            context.obj, job, directory, best_metric=best, mode=mode.value if mode else ""
        )
    )


@app.command()
def web(context: typer.Context) -> None:
    """Print the address of the coordinator's web page, with a code to log in once."""
    _finish(web_commands.open_web(context.obj))


@app.command()
def profile(
    context: typer.Context,
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job that trains.")],
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="The trace; default: ./JOB.trace.json.gz"),
    ] = None,
    steps: Annotated[int, typer.Option("--steps", metavar="N", help="Steps to record.")] = 5,
    limit: Annotated[
        float, typer.Option("--limit", metavar="SECONDS", help="Record no longer than this.")
    ] = 60.0,
) -> None:
    """Record steps on all workers as one trace for Perfetto, and say what limits them."""
    from dtd.ctl.profile import profile_job

    _finish(profile_job(context.obj, job, file, steps=steps, limit_s=limit))


@app.command()
def events(
    context: typer.Context,
    follow: Annotated[
        bool, typer.Option("--follow", help="Print each event when it happens.")
    ] = False,
) -> None:
    """List incidents: cause, worker, time to detection and recovery, steps redone and lost."""
    if follow:
        event_commands.follow_events(context.obj)
    _finish(event_commands.list_events(context.obj))


@app.command()
def checkpoints(
    context: typer.Context,
    job: Annotated[str, typer.Argument(metavar="[JOB]", help="Only those of this job.")] = "",
) -> None:
    """List checkpoints: of which job and step, how large, on which worker, in which directory.

    VERIFIED says whether all ranks have agreed on the saved state. Continue from one with
    `dtdctl submit JOB.toml --resume-from JOB@STEP`; fetch its weights with `dtdctl fetch JOB`.
    """
    _finish(checkpoint_commands.list_checkpoints(context.obj, job))
