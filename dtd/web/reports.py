"""The report of a job for the page, as `dtdctl report` writes it, made in a thread.

It contains only data that every person who may log in may read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from dtd import figures
from dtd.report.document import document_of
from dtd.report.facts import facts_of
from dtd.report.page import to_html
from dtd.wire import messages as m

POINTS: Final = 500
"""Points of each curve: more would not be seen."""
MOST_PAGES: Final = 400
"""Most pages of incidents or of curves; the rest is left out."""

Look = Callable[[m.Message], Awaitable[dict[str, Any]]]


async def report_of(look: Look, job: str) -> bytes:
    """A job's report as HTML.

    Args:
        look: asks the coordinator.
        job: its id.

    Raises:
        DtdError: there is no such job.
    """
    details = await look(m.ShowJob(job=job))
    answers = await _pages(
        look, "series", lambda at: m.GetMetrics(job=job, workers=True, points=POINTS, after=at)
    )
    events = await _pages(look, "events", lambda at: m.ReadEvents(after=at))
    first = answers[0] if answers else {"stopped": "", "dropped": 0}
    series = [one for answer in answers for one in answer["series"]]
    happened = [event for answer in events for event in answer["events"]]
    made = figures.moment(time.time())

    def write() -> bytes:
        facts = facts_of(details, {**first, "series": series}, happened)
        return to_html(document_of(facts, None, made=made)).encode()

    return await asyncio.get_running_loop().run_in_executor(None, write)


async def _pages(look: Look, key: str, make: Callable[[int], m.Message]) -> list[dict[str, Any]]:
    """Answers in order, until one brings nothing new under `key`."""
    found: list[dict[str, Any]] = []
    after = 0
    while len(found) < MOST_PAGES:
        answer = await look(make(after))
        if not answer[key]:
            break
        found.append(answer)
        after = answer["next"]
    return found
