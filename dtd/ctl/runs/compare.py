"""`dtdctl compare JOB JOB...`: the differences and results of runs, with curves of characters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from dtd import figures
from dtd.ctl import output
from dtd.ctl.answers import Answer, ask_and_show
from dtd.ctl.settings import Settings
from dtd.wire import messages as m

_WIDTH: Final = 48
_DIGEST_CHARACTERS: Final = 12
_DIGESTS: Final = frozenset({"package", "task_digest", "dataset_fingerprint", "weights"})
_CHARACTERS: Final = 40
_LABELS: Final = {
    "setting": "setting",
    "code": "code",
    "data": "data",
    "origin": "begins with",
    "environment": "environment",
    "workers": "workers",
}


def compare_jobs(
    settings: Settings, jobs: Sequence[str], *, names: tuple[str, ...], points: int
) -> int:
    """Print the comparison.

    Args:
        settings: the coordinator and the form.
        jobs: their ids, at least two.
        names: of the figures; none: the loss and those of evaluations.
        points: the most of each curve.

    Raises:
        RequestRefused: a job or a figure is not known.
    """
    request = m.CompareJobs(jobs=tuple(jobs), names=names, points=points)
    ask_and_show(settings, request, _print)
    return 0


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
    yield "took", *(_took(job) for job in jobs)
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
        yield _LABELS.get(one["of"], one["of"]), one["key"], *values


def _shown(value: Any, *, digest: bool = False) -> str:
    text = figures.NOTHING if value is None or value == "" else str(value)
    most = _DIGEST_CHARACTERS if digest else _CHARACTERS
    if digest:
        return text[:most]
    return text if len(text) <= most else f"{text[: most - 3]}..."


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
    from dtd.curves import sparklines

    ids = [job["id"] for job in answer["jobs"]]
    label = max(map(len, ids))
    for one in answer["curves"]:
        known = [point for points in one["of"] for point in points]
        if not known:
            continue
        low, high = (pick(value for _, value in known) for pick in (min, max))
        last = max(step for step, _ in known)
        yield f"{one['name']}  {figures.number(low)} to {figures.number(high)}, step 0 to {last}"
        drawn = sparklines(one["of"], width=_WIDTH)
        for job_id, line in zip(ids, drawn, strict=True):
            yield f"  {job_id:<{label}}  {line}"
