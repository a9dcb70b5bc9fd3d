"""The commands about the records of jobs: show, compare, tag and note.

Settings that have their default are left out of tables; JSON has everything, as it came.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from dtd.ctl import output
from dtd.ctl.answers import Answer, ask_and_show
from dtd.ctl.commands.jobs import result_words
from dtd.ctl.settings import Settings
from dtd.job.differences import changed_settings
from dtd.packages.limits import short
from dtd.text import figures
from dtd.text.figures import sparklines
from dtd.text.shown import counted, one_line
from dtd.wire import messages as m

_LABEL: Final = 13
_MOST_CHECKPOINTS: Final = 20
_OF_THE_TRACEBACK: Final = 40
_OF_THE_ENVIRONMENT: Final = ("dtd", "python", "torch", "device", "processor")
_MODES: Final = {"resume": "everything", "weights": "only the weights"}
_CURVE_CHARACTERS: Final = 48
_DIGESTS: Final = frozenset({"package", "task_digest", "dataset_fingerprint", "weights"})
_VALUE_CHARACTERS: Final = 40


def show_job(settings: Settings, job: str) -> None:
    """Print all records of a job."""
    ask_and_show(settings, m.ShowJob(job=job), lambda answer: output.print_lines(job_lines(answer)))


def job_lines(job: Answer) -> list[str]:
    """The whole of it as text."""
    lines = [*_head(job), *_results(job), "", "settings that are not the default"]
    lines += [f"  {key} = {value}" for key, value in changed_settings(job["spec"])]
    lines += ["", "checkpoints"]
    lines += list(_checkpoints(job)) or ["  none yet"]
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
        yield _line("started", figures.moment(job["started_s"]), ended, took and f"duration {took}")
    if job.get("tags"):
        yield _line("tags", *job["tags"])
    if job.get("note"):
        first, *rest = str(job["note"]).splitlines() or [""]
        yield _line("note", first)
        yield from (_line("", line) for line in rest)
    if job["from_job"]:
        step = f"at step {job['from_step']}" if job["from_step"] else "at its newest checkpoint"
        what = _MODES.get(job["from_mode"], job["from_mode"])
        yield _line("starts from", f"{what} of {job['from_job']} {step}")
    if job.get("weights"):
        yield _line("starts from", f"the weights of a file, {short(job['weights'])}")
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


def compare_jobs(
    settings: Settings, jobs: Sequence[str], *, names: tuple[str, ...], points: int
) -> None:
    """Print the comparison; without names the loss and the figures of evaluations."""
    request = m.CompareJobs(jobs=tuple(jobs), names=names, points=points)
    ask_and_show(settings, request, _print)


def _print(answer: Answer) -> None:
    ids = [job["id"] for job in answer["jobs"]]
    output.print_table(("", *ids), list(_heads(answer["jobs"])))
    _print_part(("DIFFERS", "", *ids), list(_differences(answer)), none="they do not differ")
    _print_part(("FIGURE", "", *ids), list(_figures(answer)), none="no figures are known")
    lines = list(curve_lines(answer))
    if lines:
        output.print_lines(["", *lines])


def _print_part(headings: Sequence[str], rows: list[tuple[str, ...]], *, none: str) -> None:
    if not rows:
        output.say(none)
        return
    output.print_lines([""])
    output.print_table(headings, rows)


def _heads(jobs: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    yield "state", *(job["state"] for job in jobs)
    yield "step", *(figures.steps(job["step"], job["total_steps"]) for job in jobs)
    yield "duration", *(_took(job) for job in jobs)
    if any(job["tags"] for job in jobs):
        yield "tags", *(" ".join(job["tags"]) or figures.NOTHING for job in jobs)
    if any(job["note"] for job in jobs):
        yield "note", *(_shown(job["note"] or None) for job in jobs)


def _took(job: dict[str, Any]) -> str:
    if not job["started_s"] or not job["ended_s"]:
        return figures.NOTHING
    return figures.duration(job["ended_s"] - job["started_s"])


def _differences(answer: Answer) -> Iterator[tuple[str, ...]]:
    for one in answer["differences"]:
        shortened = one["key"] in _DIGESTS
        values = [_shown(value, digest=shortened) for value in one["values"]]
        label = "starts from" if one["of"] == "origin" else one["of"]
        yield label, one["key"], *values


def _shown(value: Any, *, digest: bool = False) -> str:
    text = figures.NOTHING if value is None or value == "" else str(value)
    return short(text) if digest else one_line(text, _VALUE_CHARACTERS)


def _figures(answer: Answer) -> Iterator[tuple[str, ...]]:
    for one in answer["figures"]:
        best = "lowest" if one["lower_is_better"] else "highest"
        yield one["name"], "last", *(figures.number(of and of["last"]) for of in one["of"])
        yield "", best, *(_best(of) for of in one["of"])


def _best(of: dict[str, Any] | None) -> str:
    if of is None:
        return figures.NOTHING
    steps = str(of["end"]) if of["begin"] == of["end"] else f"{of['begin']}-{of['end']}"
    return f"{figures.number(of['best'])} at {steps}"


def curve_lines(answer: Answer) -> Iterator[str]:
    """Each run's curve of each figure, on one line; all of a figure on the same axes."""
    ids = [job["id"] for job in answer["jobs"]]
    label = max(map(len, ids))
    for one in answer["curves"]:
        known = [point for points in one["of"] for point in points]
        if not known:
            continue
        low, high = (pick(value for _, value in known) for pick in (min, max))
        last = max(step for step, _ in known)
        yield f"{one['name']}  {figures.number(low)} to {figures.number(high)}, step 0 to {last}"
        drawn = sparklines(one["of"], width=_CURVE_CHARACTERS)
        for job_id, line in zip(ids, drawn, strict=True):
            yield f"  {job_id:<{label}}  {line}"


def add_tags(settings: Settings, job: str, *, tags: Sequence[str]) -> None:
    """Add tags to a job."""
    ask_and_show(settings, m.AnnotateJob(job=job, add=tuple(tags)), _say_tags)


def remove_tags(settings: Settings, job: str, *, tags: Sequence[str]) -> None:
    """Remove tags from a job."""
    ask_and_show(settings, m.AnnotateJob(job=job, remove=tuple(tags)), _say_tags)


def _say_tags(answer: Answer) -> None:
    output.say(f"tags of {answer['job']}: {' '.join(answer['tags']) or 'none'}")


def write_note(settings: Settings, job: str, text: str) -> None:
    """Replace the note about a job."""
    ask_and_show(settings, m.AnnotateJob(job=job, note=text, sets_note=True), _say_note)


def _say_note(answer: Answer) -> None:
    output.say(f"note of {answer['job']}: {answer['note'] or 'none'}")
