"""Whether workers can train together: the same code, data, model and numerics.

Pure functions of the reports with which workers end their warm-up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from dtd.cluster import figures
from dtd.wire import messages as m

_FIELDS: Final = attrgetter(
    *("task_digest", "dataset_rows", "dataset_fingerprint", "numerics_fingerprint"),
    *("steps_total", "batches", "plan_digest"),
)


def reference(reports: Sequence[m.Warmed], *, steps_total: int = 0) -> m.Warmed:
    """The report with which most workers agree.

    Among equally common reports, the first whose number of steps equals the job's known number
    (`steps_total`) takes precedence.  A single worker that later reports another number therefore
    does not change the length of the job.
    """
    alike = Counter(map(_compared, reports))
    first: dict[tuple[object, ...], m.Warmed] = {}
    for one in reports:
        first.setdefault(_compared(one), one)

    def agreement(one: m.Warmed) -> tuple[int, bool]:
        agree = sum(alike[kind] for kind, other in first.items() if not disagreement(one, other))
        return agree, one.steps_total == steps_total

    return max(first.values(), key=agreement)


def _compared(report: m.Warmed) -> tuple[object, ...]:
    """The figures that `disagreement` compares."""
    return *_FIELDS(report), _required(report)


def _required(report: m.Warmed) -> str:
    return figures.heard(report.environment).get(figures.REQUIRED, "")


def disagreement(
    reference: m.Warmed, other: m.Warmed, *, by: tuple[str, str] = ("others", "it")
) -> str:
    """Why two workers must not train together; empty if they may.  `by`: their names.

    The code of the task is compared first, since it may be the reason for the other differences.
    """
    code, known = other.task_digest, reference.task_digest
    if code and known and code != known:
        return (
            f"{by[1]} has other code of the task ({code[:12]}) than {by[0]} ({known[:12]}):"
            " have `dtdctl submit` ship it, or install the same version on both"
        )
    known, found = _required(reference), _required(other)
    if known != found:
        return (
            f"it has {found or 'no packages'} for the job, and {by[0]} {known or 'no packages'}:"
            " name versions in the job's requirements"
        )
    if reference.dataset_rows != other.dataset_rows:
        return f"its dataset has {other.dataset_rows} rows, not {reference.dataset_rows}"
    if reference.dataset_fingerprint != other.dataset_fingerprint:
        return "sampled rows of its dataset, or their order, differ from the other workers'"
    known, numerics = reference.numerics_fingerprint, other.numerics_fingerprint
    if known and numerics and known != numerics:
        return (
            "its numerics differ (another torch version, device type or processor):"
            f' {numerics}, not {known}: have the same torch on both, or [strategy] update = "owner"'
        )
    if reference.steps_total != other.steps_total:
        return f"it would train {other.steps_total} steps, not {reference.steps_total}"
    if reference.batches != other.batches:
        return f"it trains with {other.batches}, not {reference.batches}"
    if reference.plan_digest != other.plan_digest:
        return (
            "its model has other parameters than the other workers', or its optimizer has them in"
            " another order or in other groups"
        )
    return ""
