"""`dtdctl metrics JOB` and `dtdctl report JOB`: figures of a job, as data and as a report.

Figures are those of a job over its steps, and of its workers and links over time.  A table has a
line for each; JSON has all points, and so have CSV and Parquet, a line for each point.  Parquet
needs pyarrow, which is loaded for it only.
"""

from __future__ import annotations

import asyncio
import csv
import importlib
import itertools
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from dtd.ctl import output
from dtd.ctl.answers import Answer, pages
from dtd.ctl.settings import Settings
from dtd.errors import UsageError
from dtd.net.clients.control_client import ControlClient
from dtd.observe.report.document import as_mapping, document_of
from dtd.observe.report.facts import Facts, facts_of, records_of
from dtd.observe.report.render import to_html, to_markdown
from dtd.observe.report.words import never_trained
from dtd.text import figures
from dtd.wire import messages as m

Series = dict[str, Any]

COLUMNS: Final = (
    *("job", "name", "kind", "source", "to"),
    *("begin", "end", "count", "min", "mean", "max"),
)
_HEADINGS: Final = ("FIGURE", "OF", "STEPS", "POINTS", "FIRST", "MIN", "MEAN", "MAX", "LAST")
_ROWS_AT_ONCE: Final = 50_000
_STDOUT: Final = Path("-")


def show_metrics(
    settings: Settings,
    job: str,
    *,
    names: tuple[str, ...],
    workers: bool,
    from_step: int,
    to_step: int,
    points: int,
) -> None:
    """Print a job's figures in the form that was asked for; no names: all, step 0: the newest."""
    if settings.form == "parquet":
        _pyarrow()  # say now that it is missing, not after the download

    def request(after: int) -> m.Message:
        return m.GetMetrics(
            job=job,
            names=names,
            workers=workers,
            from_step=from_step,
            to_step=to_step,
            points=points,
            after=after,
        )

    with settings.connect() as client:
        first = client.request(request(0))
        rest = pages(client.request, lambda after: request(after or first["next"]), "series")
        answers = itertools.chain([first], rest if first["series"] else ())
        _print(settings.form, job, first, answers)
    _explain(job, first)


def _print(form: str, job: str, first: Answer, answers: Iterable[Answer]) -> None:
    series = (one for answer in answers for one in answer["series"])
    if form == "json":
        kept = {key: first[key] for key in ("job", "steps", "stopped", "dropped")}
        output.print_json({**kept, "series": list(series)})
    elif form == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(_lines(job, series))
    elif form == "parquet":
        write_parquet(sys.stdout.buffer, _lines(job, series))
    else:
        rows = [_row(one) for one in series]
        if rows:
            output.print_table(_HEADINGS, rows)


def _explain(job: str, first: Answer) -> None:
    if not first["steps"]:
        output.say(f"{job} has not trained a step that is known: see `dtdctl show {job}`")
    if first["stopped"]:
        output.say(f"nothing is stored at present: {first['stopped']}")
    if first["dropped"]:
        output.say(f"{first['dropped']} rows were dropped since the coordinator started")


def _lines(job: str, series: Iterable[Series]) -> Iterator[list[Any]]:
    for one in series:
        head = [job, one["name"], one["kind"], one["source"], one["to"]]
        for point in one["points"]:
            yield [*head, *point]


def _row(one: Series) -> list[str]:
    known = [point for point in one["points"] if point[2]]
    count = sum(point[2] for point in known)
    mean = sum(point[2] * point[4] for point in known) / count if count else None
    begin, end = (known[0][0], known[-1][1]) if known else (0, 0)
    of_steps = one["kind"] in ("steps", "evaluations")
    return [
        one["name"],
        f"{one['source']} to {one['to']}" if one["to"] else one["source"] or "job",
        f"{begin}-{end}" if known and of_steps else figures.NOTHING,
        str(len(known)),
        figures.number(known[0][4] if known else None),
        figures.number(min((point[3] for point in known), default=None)),
        figures.number(mean),
        figures.number(max((point[5] for point in known), default=None)),
        figures.number(known[-1][4] if known else None),
    ]


def write_parquet(stream: BinaryIO, lines: Iterable[list[Any]]) -> None:
    """Write lines of `COLUMNS` as one Parquet file."""
    arrow, parquet = _pyarrow()
    if stream.isatty():
        raise UsageError(
            "Parquet is not for a terminal", remedy="redirect it: -o parquet > metrics.parquet"
        )
    kinds = [*[arrow.string()] * 5, *[arrow.int64()] * 3, *[arrow.float64()] * 3]
    schema = arrow.schema(list(zip(COLUMNS, kinds, strict=True)))
    rest = iter(lines)
    with parquet.ParquetWriter(stream, schema) as writer:
        while page := list(itertools.islice(rest, _ROWS_AT_ONCE)):
            columns = [list(column) for column in zip(*page, strict=True)]
            writer.write_table(arrow.table(columns, schema=schema))


def _pyarrow() -> tuple[Any, Any]:
    try:
        arrow = importlib.import_module("pyarrow")
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise UsageError(
            "-o parquet needs pyarrow, which is not installed here",
            remedy="pip install pyarrow, or use -o csv",
        ) from None
    return arrow, parquet


def write_report(settings: Settings, job: str, *, against: str, file: Path | None) -> None:
    """Write the report of a job: to JOB.html or JOB.md, JSON to stdout, or to `file`."""
    with settings.connect() as client:
        facts = _facts(client, job)
        other = _facts(client, against) if against else None
    if settings.as_json:
        text = output.json_text(as_mapping(facts, other)) + "\n"
    else:
        document = document_of(facts, other, made=figures.moment(time.time()))
        text = {"html": to_html, "md": to_markdown}[settings.form](document)
    place = file or Path("-" if settings.as_json else f"{job}.{settings.form}")
    if place == _STDOUT:
        output.print_document(text)
        return
    try:
        place.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{place} cannot be written: {error.strerror}",
            remedy="name another file with --output FILE",
        ) from None
    output.print_lines([str(place)])
    if not facts.has_trained:
        output.say(never_trained(facts))


def _facts(client: ControlClient, job: str) -> Facts:
    async def look(request: m.Message) -> Answer:
        return client.request(request)

    return facts_of(*asyncio.run(records_of(look, job)))
