"""`dtdctl status --watch`: a live display on a terminal.

Polls the coordinator over one connection; while it is unreachable the last display stays, with a
note.  Ctrl-C ends it, and is not a failure.  The screen, from the coordinator's answers:

    coordinator and address · the job · its loss · workers and their step time · links · events

Everything is text in lines of the given width, with rich's styles: with NO_COLOR, or in a test, the
same characters remain, so no information is in colour alone.
"""

from __future__ import annotations

import math
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from rich.text import Text

from dtd.ctl import output
from dtd.ctl.settings import Settings
from dtd.errors import CoordinatorUnreachable, RequestRefused, UsageError
from dtd.net.clients.control_client import ControlClient
from dtd.observe.step_parts import STEP_PARTS
from dtd.text import figures
from dtd.text.figures import is_logarithmic, progress_bar, shares, sparklines
from dtd.text.shown import one_line
from dtd.wire import messages as m

Values = Mapping[str, Any]

LOOK_EVERY_S: Final = 1.0
MOST_EVENTS: Final = 50
MOST_POINTS: Final = 500
"""Points of the loss curve: more than a screen is wide."""


def watch_status(settings: Settings) -> None:
    """Show the status until Ctrl-C."""
    if settings.as_json or not sys.stdout.isatty():
        raise UsageError(
            "--watch draws on a terminal",
            remedy="dtdctl events --follow has a line for each event; dtdctl status -o json",
        )
    signal.signal(signal.SIGINT, signal.default_int_handler)
    watcher = Watcher(settings)
    try:
        _show(watcher, watcher.look())
    except KeyboardInterrupt:
        pass
    finally:
        watcher.close()


class Scene(NamedTuple):
    """The content of the screen: answers, [step, loss] of the job, and events, the newest last.

    A note says why this may be out of date.
    """

    status: Values
    figures: Values
    loss: Sequence[Sequence[float]]
    events: Sequence[Values]
    note: str = ""


class Watcher:
    """Polls the coordinator."""

    def __init__(self, settings: Settings) -> None:
        self._scene: Scene | None = None
        self._events: deque[dict[str, Any]] = deque(maxlen=MOST_EVENTS)
        self._settings = settings
        self._client: ControlClient | None = None
        self._after = 0

    def look(self) -> Scene:
        """Poll again; after the first answer an unreachable coordinator only sets the note."""
        try:
            client = self._client or self._settings.connect()
            self._client = client
            status, now = client.request(m.GetStatus()), client.request(m.GetFigures())
            loss = _loss(client, status["job"])
            self._read_events(client)
            self._scene = Scene(status, now, loss, tuple(self._events))
        except (CoordinatorUnreachable, RequestRefused) as error:
            self.close()
            if self._scene is None:
                raise
            note = one_line(f"{error.message}; training goes on without it")
            self._scene = self._scene._replace(note=note)
        return self._scene

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _read_events(self, client: ControlClient) -> None:
        while True:
            page = client.request(m.ReadEvents(after=self._after))
            self._events.extend(page["events"])
            self._after = page["next"]
            if not page["events"]:
                return


def _loss(client: ControlClient, job: Values | None) -> list[list[float]]:
    if job is None:
        return []
    request = m.GetMetrics(job=job["id"], names=("loss",), points=MOST_POINTS)
    series = client.request(request)["series"]
    return [[point[1], point[4]] for one in series for point in one["points"] if point[2]]


def _show(watcher: Watcher, scene: Scene) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False, no_color=not output.wants_colour(sys.stdout))
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            size = console.size
            live.update(view(scene, width=size.width, height=size.height), refresh=True)
            time.sleep(LOOK_EVERY_S)
            scene = watcher.look()


MOST_WORKERS: Final = 16
MOST_LINKS: Final = 8
LEAST_EVENTS: Final = 3
WORKERS_FRAME: Final = 4
"""Lines around the workers: their heading, how many more there are, the legend, and one below."""
_FIGURES_WIDTH: Final = 34  # what stands beside name and bar


def view(scene: Scene, *, width: int, height: int) -> Text:
    """The whole screen: at most `height` lines of at most `width` characters.

    Events are always visible: on a small screen the links are dropped first, then the curve, then
    workers.
    """
    head, diagnostics = [*_head(scene, width)], [*_troubles(scene)]
    spare = height - len(head) - len(diagnostics) - 1 - min(LEAST_EVENTS, len(scene.events))
    workers = _workers(scene, width, most=min(MOST_WORKERS, max(2, spare - WORKERS_FRAME)))
    spare -= len(workers)
    loss, links = [*_loss_curve(scene, width)], [*_links(scene.figures)]
    loss = loss if len(loss) <= spare else []
    links = links if len(loss) + len(links) <= spare else []
    lines = [*head, *loss, *workers, *links, *diagnostics]
    room = max(LEAST_EVENTS, height - len(lines) - 1)
    lines += _events(scene.events[-room:])
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return Text("\n", no_wrap=True, overflow="crop").join(lines[:height])


def _line(*pieces: str | tuple[str, str]) -> Text:
    """One line, whatever others wrote into it."""
    return Text.assemble(*map(_piece, pieces), no_wrap=True)


def _piece(piece: str | tuple[str, str]) -> str | tuple[str, str]:
    return one_line(piece) if isinstance(piece, str) else (one_line(piece[0]), piece[1])


def _heading(text: str) -> Text:
    return _line((text, "bold"))


# --- the job -----------------------------------------------------------------------------------


def _head(scene: Scene, width: int) -> Iterator[Text]:
    coordinator, job = scene.status["coordinator"], scene.status["job"]
    up = figures.duration(coordinator["uptime_s"])
    yield _line(("dtd", "bold"), f" {coordinator['version']}  {coordinator['address']}  up {up}")
    if scene.note:
        yield _line((scene.note, "yellow"))
    if job is None:
        yield _line("no job")
    else:
        yield from _job(scene.status, job, width)
    why = scene.status.get("explain") or (job or {}).get("reason")
    if why:
        yield _line((why, "yellow"))
    slow = (job or {}).get("straggler")
    if slow:
        cost = figures.span(slow["cost_s"])
        yield _line(("straggler ", "yellow"), f"{slow['name']} costs {cost} a step")
    yield _line("")


def _job(status: Values, job: Values, width: int) -> Iterator[Text]:
    yield _line(
        (job["id"], "bold"),
        "  ",
        (job["state"], output.STATE_STYLES.get(job["state"], "")),
        f"  generation {job['generation']}  {figures.ranks(job)}"
        f"  epoch {job['epoch']}  loss {figures.number(job['loss'])}"
        f"  {figures.rate(job['samples_per_s'])}",
    )
    total = job["total_steps"]
    left = f"  ETA {figures.duration(eta_s(status))}" if total else ""
    steps = f"step {figures.steps(job['step'], total)} "
    if total:
        bar = progress_bar(job["step"] / total, width=max(8, width - len(steps) - len(left)))
        yield _line(steps, (bar, "green"), left)
    else:
        yield _line(steps)


def eta_s(status: Values) -> float | None:
    """Time until the last step, at the speed of the slowest worker; None when no worker trains."""
    job = status["job"]
    step_s = max((worker.get("step_s", 0.0) for worker in status["workers"]), default=0.0)
    if job is None or not job["total_steps"] or step_s <= 0:
        return None
    return float(step_s * (job["total_steps"] - job["step"]))


def _loss_curve(scene: Scene, width: int) -> Iterator[Text]:
    finite = [value for _, value in scene.loss if math.isfinite(value)]
    if len(finite) > 1:
        ends = f"{figures.number(min(finite))} to {figures.number(max(finite))}"
        yield _heading(f"LOSS  {ends}{' (logarithmic)' if is_logarithmic(finite) else ''}")
        yield _line((sparklines([scene.loss], width=width)[0], "cyan"))
        yield _line("")


# --- workers and links -------------------------------------------------------------------------


def _workers(scene: Scene, width: int, *, most: int) -> list[Text]:
    workers = scene.status["workers"]
    if not workers:
        return [_line("no workers registered")]
    names = max(6, *(min(20, len(worker["name"])) for worker in workers))
    bar = max(10, width - names - _FIGURES_WIDTH)
    times = {one["name"]: one for one in scene.figures.get("workers", ())}
    longest_s = max((one["step_s"] for one in times.values()), default=0.0)
    heading = (
        f"{'WORKER':<{names}} {'STATE':<8} {'STEP TIME':<{bar}} {'':>7} {'MEMORY':>9} {'SEEN':>5}"
    )
    lines = [_heading(heading)]
    lines += [_worker(one, times.get(one["name"]), names, bar, longest_s) for one in workers[:most]]
    if len(workers) > most:
        lines.append(_line(f"and {len(workers) - most} more: see dtdctl status"))
    if times:
        legend = [
            piece for part in STEP_PARTS for piece in ((part.mark, part.style), f" {part.name}  ")
        ]
        lines.append(_line(*legend))
    return [*lines, _line("")]


def _worker(worker: Values, times: Values | None, names: int, bar: int, longest_s: float) -> Text:
    pieces: list[str | tuple[str, str]] = [
        f"{worker['name'][:names]:<{names}} ",
        (f"{worker['state'][:8]:<8} ", output.STATE_STYLES.get(worker["state"], "")),
    ]
    step = figures.NOTHING
    if times is None:
        pieces.append(f"{worker['reason'][:bar]:<{bar}}")
    else:
        lengths = shares([times[part.field] for part in STEP_PARTS], whole=longest_s, width=bar)
        pieces += [(part.mark * n, part.style) for part, n in zip(STEP_PARTS, lengths, strict=True)]
        pieces.append(" " * (bar - sum(lengths)))
        step = figures.span(times["step_s"])
    memory = figures.size(worker.get("memory_bytes", 0))
    seen = figures.duration(worker["last_heartbeat_s"])
    pieces.append(f" {step:>7} {memory:>9} {seen:>5}")
    return _line(*pieces)


def _links(figures_now: Values) -> Iterator[Text]:
    links = [link for link in figures_now.get("links", ()) if link["rtt_s"] or link["bytes_per_s"]]
    if not links:
        return
    ways = [f"{link['from']} -> {link['to']}" for link in links]
    names = max(map(len, ways))
    yield _heading(f"{'LINK':<{names}}  {'ROUND TRIP':>10}  {'RATE':>10}")
    for way, link in list(zip(ways, links, strict=True))[:MOST_LINKS]:
        rtt = figures.span(link["rtt_s"] or None)
        yield _line(f"{way:<{names}}  {rtt:>10}  {figures.bandwidth(link['bytes_per_s']):>10}")
    yield _line("")


# --- events ------------------------------------------------------------------------------------


def _troubles(scene: Scene) -> Iterator[Text]:
    diagnostics = scene.status.get("troubles") or ()
    if not diagnostics:
        return
    yield _line(("TROUBLES", "bold red"))
    for diagnostic in diagnostics[:LEAST_EVENTS]:
        yield _line(f"{diagnostic.get('where', '')}: {diagnostic['message']}")
        if diagnostic.get("remedy"):
            yield _line(f"  try: {diagnostic['remedy']}")
    yield _line("")


def _events(events: Sequence[Values]) -> list[Text]:
    lines = [_heading("EVENTS")] if events else []
    for event in events:
        at = datetime.fromtimestamp(event["time_s"]).astimezone().strftime("%H:%M:%S")
        lines.append(_line(f"{at} {event['kind']}: {event['message']}"))
    return lines
