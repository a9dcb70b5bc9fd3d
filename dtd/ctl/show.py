"""`dtdctl show JOB`: a job's code, data and results.

Settings that have their default are left out of the table; JSON has everything, as it came.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dtd import figures
from dtd.ctl import output
from dtd.ctl.answers import Answer, ask_and_show
from dtd.ctl.jobs import result_words
from dtd.ctl.settings import Settings
from dtd.job.differences import changed_settings
from dtd.packages.limits import short
from dtd.shown import counted
from dtd.wire import messages as m

_LABEL: Final = 13
_MOST_CHECKPOINTS: Final = 20
_OF_THE_TRACEBACK: Final = 40
_OF_THE_ENVIRONMENT: Final = ("dtd", "python", "torch", "device", "processor")
_MODES: Final = {"resume": "everything", "weights": "only the weights"}


def show_job(settings: Settings, job: str) -> int:
    """Print all records of a job."""
    ask_and_show(settings, m.ShowJob(job=job), lambda answer: output.print_lines(job_lines(answer)))
    return 0


def job_lines(job: Answer) -> list[str]:
    """The whole of it as text."""
    lines = [*_head(job), *_results(job), "", "settings that are not the default"]
    lines += [f"  {key} = {value}" for key, value in changed_settings(job["spec"])]
    lines += ["", "checkpoints"]
    lines += list(_checkpoints(job)) or ["  none is known"]
    trace = str(job["result"].get("traceback", "")).splitlines()
    if trace:
        lines += ["", "traceback", *(f"  {line}" for line in trace[-_OF_THE_TRACEBACK:])]
    return lines


def _line(label: str, *words: str) -> str:
    return f"{label:<{_LABEL}}{'  '.join(word for word in words if word)}"


def _head(job: Answer) -> Iterator[str]:
    yield _line("job", job["id"], job["state"], f"step {_steps(job)}", f"epoch {job['epoch']}")
    if job["reason"]:
        yield _line("", job["reason"])
    yield _line("submitted", figures.moment(job["submitted_s"]))
    if job["started_s"]:
        ended = f"ended {figures.moment(job['ended_s'])}" if job["ended_s"] else ""
        took = figures.duration(job["ended_s"] - job["started_s"]) if job["ended_s"] else ""
        yield _line("started", figures.moment(job["started_s"]), ended, took and f"took {took}")
    if job.get("tags"):
        yield _line("tags", *job["tags"])
    if job.get("note"):
        first, *rest = str(job["note"]).splitlines() or [""]
        yield _line("note", first)
        yield from (_line("", line) for line in rest)
    if job["from_job"]:
        step = f"at step {job['from_step']}" if job["from_step"] else "at its newest checkpoint"
        what = _MODES.get(job["from_mode"], job["from_mode"])
        yield _line("begins with", f"{what} of {job['from_job']} {step}")
    if job.get("weights"):
        yield _line("begins with", f"the weights of a file, {short(job['weights'])}")
    yield _line("task", job["task"], _code(job))
    rows = f"{job['dataset_rows']:,} rows" if job["dataset_rows"] else "no worker has reported it"
    prints = job["dataset_fingerprint"]
    yield _line("data", rows, prints and f"fingerprint {short(prints)}")
    if job.get("environment"):
        told = job["environment"]
        shown = [f"{key} {told[key]}" for key in _OF_THE_ENVIRONMENT if told.get(key)]
        yield _line("environment", *shown)
    workers = ", ".join(job["workers"]) or "none yet"
    yield _line("workers", workers, f"generation {job['generation']}")


def _code(job: Answer) -> str:
    if job["package"]:
        return f"package {short(job['package'])}"
    return f"code {short(job['task_digest'])}" if job["task_digest"] else "built in or installed"


def _steps(job: Answer) -> str:
    return figures.steps(job["step"], job["total_steps"])


def _results(job: Answer) -> Iterator[str]:
    yield _line("result", result_words(job["result"]) or figures.NOTHING)
    if job["metrics"]:
        yield _line("evaluation", figures.metrics(job["metrics"]))
    lost = [f"steps lost {job['steps_lost']}", f"skipped {job['skipped_steps']}"]
    yield _line("recovery", *lost)
    kinds = [f"{kind} {count}" for kind, count in job["incidents"].items()]
    yield _line("events", ", ".join(kinds) or "none")
    yield _line("printed", counted(job["lines"], "line"), f"dtdctl logs {job['id']}")


def _checkpoints(job: Answer) -> Iterator[str]:
    known = job["checkpoints"]
    for one in known[:_MOST_CHECKPOINTS]:
        there = "" if one["alive"] else " (away)"
        yield (
            f"  step {one['step']}  generation {one['generation']}"
            f"  {figures.size(one['size_bytes'])}  {one['worker']}{there}"
            f"  {figures.metrics(one['metrics'])}  {one['directory']}"
        )
    if len(known) > _MOST_CHECKPOINTS:
        yield f"  and {len(known) - _MOST_CHECKPOINTS} more: dtdctl checkpoints {job['id']}"
