"""`dtdctl status`: the job, its loss and rate, the workers, who is slow, and why it waits.

Prints what the coordinator says and judges it once, for the exit code.  The JSON form is described
by `docs/status.schema.json`.  No heavy import unless `--watch` asks for a live display.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from dtd.ctl import figures, output
from dtd.ctl.settings import Settings
from dtd.errors import CoordinatorUnreachable
from dtd.wire import messages as m

Status = Mapping[str, Any]

EXIT_HEALTHY: Final = 0
EXIT_DEGRADED: Final = 4
WATCH_EVERY_S: Final = 1.0
_TROUBLED: Final = frozenset({"suspect", "lost", "refused"})
# A worker whose own computing takes this many times the others' median holds everybody up.
SLOW_FACTOR: Final = 1.5
# Less than this is noise, whatever the factor.
SLOW_BY_AT_LEAST_S: Final = 0.005


def show_status(settings: Settings) -> int:
    """Print the status once; the exit code says whether it is healthy."""
    with settings.connect() as client:
        status = client.request(m.GetStatus())
    if settings.as_json:
        output.print_json(status)
    else:
        print("\n".join(status_lines(status, colour=output.wants_colour(sys.stdout))))
    return EXIT_DEGRADED if degraded_because(status) else EXIT_HEALTHY


def watch_status(settings: Settings) -> NoReturn:
    """Print the status every second until interrupted; a coordinator that is away is waited for."""
    if settings.as_json or not sys.stdout.isatty():
        _watch_plainly(settings)
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    colour = output.wants_colour(sys.stdout)
    with Live(console=Console(), auto_refresh=False, transient=False) as live:
        while True:
            live.update(
                Text.from_ansi("\n".join(_lines_now(settings, colour=colour))), refresh=True
            )
            time.sleep(WATCH_EVERY_S)


def _watch_plainly(settings: Settings) -> NoReturn:
    while True:
        show_status(settings)
        time.sleep(WATCH_EVERY_S)


def _lines_now(settings: Settings, *, colour: bool) -> list[str]:
    try:
        with settings.connect() as client:
            return status_lines(client.request(m.GetStatus()), colour=colour)
    except CoordinatorUnreachable as error:
        return [f"{error.message}; training goes on without it, and this display waits for it"]


def degraded_because(status: Status) -> str:
    """Why the system is not healthy, in words; empty when it is."""
    job = status["job"]
    if job is not None and job["state"] == "waiting":
        return f"job {job['id']} waits: {job['reason'] or status.get('explain', '')}"
    troubled = [worker for worker in status["workers"] if worker["state"] in _TROUBLED]
    if troubled:
        return "; ".join(f"{w['name']} is {w['state']}: {w['reason']}" for w in troubled)
    return ""


def status_lines(status: Status, *, colour: bool) -> list[str]:
    """The whole status as text."""
    coordinator = status["coordinator"]
    uptime = figures.duration(coordinator["uptime_s"])
    version = coordinator["version"]
    lines = [f"coordinator  {coordinator['address']}  up {uptime}  dtd {version}"]
    lines += _job_lines(status, colour=colour)
    if status.get("queue"):
        lines.append(f"queue        {', '.join(status['queue'])}")
    lines.append("")
    workers = status["workers"]
    lines += _worker_lines(workers, colour=colour) if workers else ["no worker is registered"]
    return lines


def _job_lines(status: Status, *, colour: bool) -> list[str]:
    job = status["job"]
    reason = status.get("explain") or (job or {}).get("reason")
    why = [f"             {reason}"] if reason else []
    if job is None:
        return ["job          none", *why]
    state = output.paint(job["state"], output.state_style(job["state"]), colour=colour)
    head = f"job          {job['id']}  {state}  generation {job['generation']}"
    head += f"  workers {job['world_size']}"
    progress = [
        f"step {figures.steps(job['step'], job['total_steps'])}",
        f"epoch {job['epoch']}",
        f"loss {figures.number(job['loss'])}",
        figures.rate(job["samples_per_s"]),
        f"steps lost {job['steps_lost']}",
    ]
    if job.get("eval"):
        progress.append(f"eval {figures.metrics(job['eval'])}")
    return [head, f"             {'  '.join(progress)}", *why]


def _worker_lines(workers: Sequence[Status], *, colour: bool) -> list[str]:
    headings = ("WORKER", "STATE", "RANK", "STEP", "RATE", "HEARD", "DEVICE", "HOST", "PID", "NOTE")
    slow = slow_workers(workers)
    rows = [
        (
            worker["name"],
            worker["state"],
            figures.NOTHING if worker["rank"] is None else str(worker["rank"]),
            str(worker["step"]),
            figures.rate(worker.get("samples_per_s")),
            figures.duration(worker["last_heartbeat_s"]),
            worker["device"],
            worker["host"],
            str(worker["pid"]),
            worker["reason"] or slow.get(worker["name"], ""),
        )
        for worker in workers
    ]
    return output.table_lines(headings, rows, colour=colour)


def slow_workers(workers: Sequence[Status]) -> dict[str, str]:
    """Who holds the others up, and by how much: computing time against the others' median."""
    times_s = {w["name"]: w.get("compute_s") or 0.0 for w in workers}
    notes = {}
    for name, own_s in times_s.items():
        others_s = sorted(t for other, t in times_s.items() if other != name and t > 0)
        usual_s = others_s[len(others_s) // 2] if others_s else 0.0
        if usual_s and own_s > max(SLOW_FACTOR * usual_s, usual_s + SLOW_BY_AT_LEAST_S):
            notes[name] = f"slow: computes {own_s / usual_s:.1f}x as long as the others"
    return notes
