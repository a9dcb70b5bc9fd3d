"""`dtdctl status --watch`: a live display on a terminal, a line for each change anywhere else.

Polls the coordinator over one connection; while it is unreachable the last display stays, with a
note.  Ctrl-C ends it, and is not a failure.  rich is loaded here and by `watch_view`, and only on a
terminal.
"""

from __future__ import annotations

import signal
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from dtd import figures
from dtd.ctl import output
from dtd.ctl.settings import Settings
from dtd.errors import CoordinatorUnreachable, RequestRefused
from dtd.net.control_client import ControlClient
from dtd.shown import one_line
from dtd.wire import messages as m

Values = Mapping[str, Any]

LOOK_EVERY_S: Final = 1.0
MOST_EVENTS: Final = 50
EXIT_DONE: Final = 0


def watch_status(settings: Settings) -> int:
    """Show the status until Ctrl-C.

    Raises:
        CoordinatorUnreachable: it does not answer the first time.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    watcher = Watcher(settings)
    try:
        watcher.look()
        if sys.stdout.isatty() and not settings.as_json:
            _show(watcher)
        else:
            _print_changes(watcher, as_json=settings.as_json)
    except KeyboardInterrupt:
        return EXIT_DONE
    finally:
        watcher.close()
    return EXIT_DONE


class Watcher:
    """The coordinator's last answers.

    Attributes:
        status: the answer to GET_STATUS.
        history: the answer to GET_FIGURES.
        events: the newest ones, the newest last.
        fresh: those of them that the last answer added.
        note: why all this may be out of date; empty when it is not.
    """

    def __init__(self, settings: Settings) -> None:
        self.status: dict[str, Any] = {}
        self.history: dict[str, Any] = {}
        self.events: deque[dict[str, Any]] = deque(maxlen=MOST_EVENTS)
        self.fresh: list[dict[str, Any]] = []
        self.note = ""
        self._settings = settings
        self._client: ControlClient | None = None
        self._after = 0

    def look(self) -> None:
        """Poll again; after the first answer an unreachable coordinator only sets the note."""
        self.fresh = []
        try:
            client = self._client or self._settings.connect()
            self._client = client
            self.status = client.request(m.GetStatus())
            self.history = client.request(m.GetFigures())
            self._read_events(client)
            self.note = ""
        except (CoordinatorUnreachable, RequestRefused) as error:
            self.close()
            if not self.status:
                raise
            self.note = one_line(f"{error.message}; training goes on without it")

    def close(self) -> None:
        """Hang up."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _read_events(self, client: ControlClient) -> None:
        while True:
            page = client.request(m.ReadEvents(after=self._after))
            self.fresh += page["events"]
            self.events.extend(page["events"])
            self._after = page["next"]
            if not page["events"]:
                return


def _show(watcher: Watcher) -> None:
    from rich.console import Console
    from rich.live import Live

    from dtd.ctl.watch.view import Scene, view

    console = Console(highlight=False, no_color=not output.wants_colour(sys.stdout))
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            scene = Scene(watcher.status, watcher.history, tuple(watcher.events), watcher.note)
            size = console.size
            live.update(view(scene, width=size.width, height=size.height), refresh=True)
            time.sleep(LOOK_EVERY_S)
            watcher.look()


def _print_changes(watcher: Watcher, *, as_json: bool) -> None:
    """One line for each change, with the time, for a log file."""
    before: tuple[Any, ...] | None = None
    watcher.fresh.clear()  # earlier events are not new
    while True:
        now = what_matters(watcher.status, watcher.note)
        if now != before or watcher.fresh:
            if as_json:
                output.print_json(watcher.status)
            else:
                output.print_lines(change_lines(watcher, changed=now != before))
        before = now
        time.sleep(LOOK_EVERY_S)
        watcher.look()


def what_matters(status: Values, note: str) -> tuple[Any, ...]:
    """Values whose change is worth a line; steps and rates change all the time."""
    job = status["job"] or {}
    return (
        *(job.get(key) for key in ("id", "state", "generation", "world_size", "epoch", "eval")),
        tuple((worker["name"], worker["state"]) for worker in status["workers"]),
        tuple(diagnostic["message"] for diagnostic in status.get("troubles") or ()),
        note,
    )


def change_lines(watcher: Watcher, *, changed: bool) -> Iterator[str]:
    """The events that are new, then how things stand if that has changed."""
    for event in watcher.fresh:
        yield f"{figures.moment(event['time_s'])} {event['kind']}: {event['message']}"
    if not changed:
        return
    at = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S")
    if watcher.note:
        yield f"{at} {watcher.note}"
        return
    yield f"{at} {standing(watcher.status)}"


def standing(status: Values) -> str:
    """The status in one line."""
    job = status["job"]
    states: dict[str, int] = {}
    for worker in status["workers"]:
        states[worker["state"]] = states.get(worker["state"], 0) + 1
    workers = ", ".join(f"{count} {state}" for state, count in states.items()) or "none"
    if job is None:
        return f"no job; workers: {workers}"
    words = [
        f"{job['id']} {job['state']}",
        f"generation {job['generation']}",
        f"step {figures.steps(job['step'], job['total_steps'])}",
        f"epoch {job['epoch']}",
        f"loss {figures.number(job['loss'])}",
        figures.rate(job["samples_per_s"]),
        f"workers: {workers}",
    ]
    if job.get("eval"):
        words.append(f"eval {figures.metrics(job['eval'])}")
    words += [diagnostic["message"] for diagnostic in status.get("troubles") or ()]
    return "  ".join(words)
