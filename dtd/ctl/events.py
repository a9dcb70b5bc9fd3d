"""`dtdctl events`: incidents, and with `--follow` each one as it happens.

In JSON every event is one object on a line of its own, whether followed or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from dtd.ctl import figures, output
from dtd.ctl.pages import pages
from dtd.ctl.patience import Patience
from dtd.ctl.settings import Settings
from dtd.errors import CoordinatorUnreachable
from dtd.wire import messages as m

Event = Mapping[str, Any]


def list_events(settings: Settings) -> int:
    """Print all incidents that the coordinator remembers, oldest first."""
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
        output.print_table(
            ("TIME", "KIND", "JOB", "WORKER", "GENERATION", "STEP", "WHAT"),
            [_cells(event) for event in seen],
        )
    return 0


def follow_events(settings: Settings) -> NoReturn:
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
            print("  ".join(cell for cell in _cells(event) if cell != figures.NOTHING), flush=True)


def _cells(event: Event) -> tuple[str, ...]:
    return (
        figures.moment(event["time_s"]),
        event["kind"],
        event["job"] or figures.NOTHING,
        event["worker"] or figures.NOTHING,
        str(event["generation"] or figures.NOTHING),
        str(event["step"] or figures.NOTHING),
        event["message"],
    )
