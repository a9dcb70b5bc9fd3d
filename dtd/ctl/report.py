"""`dtdctl report JOB`: asks the coordinator for all records of a job, and writes one file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from dtd import figures
from dtd.ctl import output
from dtd.ctl.answers import pages
from dtd.ctl.settings import Settings
from dtd.errors import UsageError
from dtd.net.control_client import ControlClient
from dtd.observe.report.document import document_of
from dtd.observe.report.facts import Facts, facts_of
from dtd.observe.report.render import to_html, to_markdown
from dtd.observe.report.words import never_trained
from dtd.wire import messages as m

POINTS: Final = 500
"""Points of each curve: more would not be seen."""
STDOUT: Final = Path("-")


def write_report(
    settings: Settings, job: str, *, against: str, form: str, file: Path | None
) -> int:
    """Write the report of a job.

    Args:
        settings: the coordinator.
        job: its id.
        against: the id of another one to compare it with; empty: none.
        form: "html" or "md".
        file: where it is written; None: JOB.html or JOB.md here, `-`: stdout.

    Raises:
        RequestRefused: there is no such job; the nearest one is named.
        UsageError: the file cannot be written.
    """
    with settings.connect() as client:
        events = _events(client)
        facts = _facts(client, job, events)
        other = _facts(client, against, events) if against else None
    made = figures.moment(time.time())
    document = document_of(facts, other, made=made)
    text = to_html(document) if form == "html" else to_markdown(document)
    place = file if file is not None else Path(f"{job}.{form}")
    if place == STDOUT:
        output.print_document(text)
        return 0
    _write(place, text)
    output.print_lines([str(place)])
    if not facts.has_trained:
        output.say(never_trained(facts))
    return 0


def _write(place: Path, text: str) -> None:
    try:
        place.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{place} cannot be written: {error.strerror}", remedy="name another file with -o"
        ) from None


def _events(client: ControlClient) -> list[dict[str, Any]]:
    answers = pages(client.request, lambda after: m.ReadEvents(after=after), "events")
    return [event for answer in answers for event in answer["events"]]


def _facts(client: ControlClient, job: str, events: list[dict[str, Any]]) -> Facts:
    details = client.request(m.ShowJob(job=job))

    def request(after: int) -> m.Message:
        return m.GetMetrics(job=job, workers=True, points=POINTS, after=after)

    return facts_of(details, list(pages(client.request, request, "series")), events)
