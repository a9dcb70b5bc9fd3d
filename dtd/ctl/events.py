"""`dtdctl events`: incidents, and with `--follow` each one as it happens.

Each incident: its cause, the worker, the time until detection and until the next committed step,
steps redone and committed steps lost, where known.  In JSON every event is one object on a line of
its own, whether followed or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from dtd import figures
from dtd.ctl import output
from dtd.ctl.answers import Patience, pages
from dtd.ctl.settings import Settings
from dtd.errors import CoordinatorUnreachable
from dtd.wire import messages as m

Event = Mapping[str, Any]

_HEADINGS: Final = (
    *("TIME", "KIND", "JOB", "WORKER", "GENERATION", "STEP"),
    *("DETECTED", "RECOVERED", "REDONE", "LOST", "WHAT"),
)
_LABELS: Final = ("detected after", "recovered after", "steps redone", "steps lost")


def show_events(settings: Settings, *, follow: bool) -> int:
    """Print all incidents that the coordinator remembers, oldest first; or follow them."""
    if follow:
        _follow_events(settings)
    with settings.connect() as client:
        seen = [
            event
            for answer in pages(client.request, lambda after: m.ReadEvents(after=after), "events")
            for event in answer["events"]
        ]
    if settings.as_json:
        for event in seen:
            output.print_json(event)
    else:
        rows = [(*_what(event), *_costs(event), event["message"]) for event in seen]
        output.print_table(_HEADINGS, rows)
    return 0


def _follow_events(settings: Settings) -> NoReturn:
    """Print incidents as they happen; a coordinator that restarts meanwhile is waited for."""
    after = 0
    patience = Patience()
    while True:
        try:
            with settings.connect() as client:
                patience.answered()
                while True:
                    client.ask(m.ReadEvents(after=after, follow=True))
                    answer = client.answer()
                    assert answer is not None
                    _print_followed(answer["events"], as_json=settings.as_json)
                    after = answer["next"]
        except CoordinatorUnreachable as error:
            patience.pause_or_raise(error)


def _print_followed(events: Sequence[Event], *, as_json: bool) -> None:
    for event in events:
        if as_json:
            output.print_json(event)
        else:
            output.print_lines([_line(event)])


def _line(event: Event) -> str:
    costs = zip(_LABELS, _costs(event), strict=True)
    known = [f"{label} {cost}" for label, cost in costs if cost != figures.NOTHING]
    cells = [cell for cell in _what(event) if cell != figures.NOTHING]
    return "  ".join([*cells, event["message"], *known])


def _what(event: Event) -> tuple[str, ...]:
    worker = event["worker"] or event.get("details", {}).get("worker")
    return (
        figures.moment(event["time_s"]),
        event["kind"],
        event["job"] or figures.NOTHING,
        worker or figures.NOTHING,
        str(event["generation"] or figures.NOTHING),
        str(event["step"] or figures.NOTHING),
    )


def _costs(event: Event) -> tuple[str, ...]:
    details = event.get("details", {})
    return (
        figures.span(details.get("detected_after_s")),
        figures.span(details.get("recovered_after_s")),
        figures.number(details.get("steps_redone")),
        figures.number(details.get("steps_lost")),
    )
