"""`dtdctl status` and `dtdctl events`: how the cluster is, and what has happened in it.

`status` prints the job, its workers and why it waits, and judges them once, for the exit code; its
JSON is described by `docs/status.schema.json`.  `events` prints incidents; in JSON each is one
object on a line of its own, whether followed or not.  No heavy import; `--watch` is
`dtd.ctl.commands.watch`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

from dtd.ctl import output
from dtd.ctl.answers import ask_and_show, items, persist
from dtd.ctl.commands.jobs import progress_words
from dtd.ctl.settings import Settings
from dtd.doctor.memory import PARTS
from dtd.net.clients.control_client import ControlClient
from dtd.text import figures
from dtd.text.shown import one_line
from dtd.wire import messages as m

Status = Mapping[str, Any]
Event = Mapping[str, Any]

EXIT_DEGRADED: Final = 4
REASON_CHARACTERS: Final = 300
# Training that makes no progress for less than this is nothing to speak of.
STALLED_S: Final = 1.0
_TROUBLED: Final = frozenset({"lost", "refused", "away", "barred"})
_HELD_UP: Final = {"waiting": "waits", "saving": "is saving"}
_INDENT: Final = " " * 13
_FRAME: Final = re.compile(r'^ *File "(.+)", line (\d+), in (.+)$', re.MULTILINE)

_MEMORY_HEADINGS: Final = ("WORKER", *(part.upper() for part in PARTS))
_EVENT_HEADINGS: Final = (
    *("TIME", "KIND", "JOB", "WORKER", "GENERATION", "STEP"),
    *("DETECTED", "RECOVERED", "REDONE", "LOST", "EVENT"),
)
_ONLY_WIDE: Final = ("JOB", "GENERATION", "STEP", "DETECTED", "RECOVERED", "REDONE", "LOST")
_COSTS: Final = ("detected after", "recovered after", "steps redone", "steps lost")


def show_status(settings: Settings, *, watch: bool, memory: bool) -> int:
    """Print the status; the exit code tells whether it is healthy."""
    if watch:
        from dtd.ctl.commands.watch import watch_status  # seldom needed, and slow to load

        watch_status(settings)
        return 0

    def print_status(status: Status) -> None:
        lines = status_lines(status, wide=settings.is_wide)
        output.print_lines(lines + (memory_lines(status) if memory else []))

    status = ask_and_show(settings, m.GetStatus(), print_status)
    return EXIT_DEGRADED if degraded_because(status) else 0


def degraded_because(status: Status) -> str:
    """The reason for an unhealthy system, in words; empty when it is healthy."""
    for one in status["jobs"]:
        if one["state"] in _HELD_UP:
            return f"job {one['id']} {_HELD_UP[one['state']]}: {one['explain'] or one['reason']}"
    troubled = [worker for worker in status["workers"] if worker["state"] in _TROUBLED]
    if troubled:
        return "; ".join(f"{w['name']} is {w['state']}: {w['reason']}" for w in troubled)
    return "; ".join(one["message"] for one in status.get("troubles", ()))


def status_lines(status: Status, *, wide: bool = False) -> list[str]:
    """The whole status as text; `wide`: all columns."""
    coordinator = status["coordinator"]
    uptime = figures.duration(coordinator["uptime_s"])
    version = coordinator["version"]
    lines = [f"coordinator  {coordinator['address']}  up {uptime}  dtd {version}"]
    jobs = [line for job in status["jobs"] for line in _job_lines(job)]
    lines += jobs or _no_job_lines(status)
    if status.get("queue"):
        lines.append(f"queue        {', '.join(status['queue'])}")
        why = status.get("queue_explain")
        lines += [f"{_INDENT}{why}"] if why else []
    lines.append("")
    workers = status["workers"]
    lines += _worker_lines(workers, wide=wide) if workers else ["no workers registered"]
    return [*lines, *_diagnostic_lines(status.get("troubles", ()))]


def _diagnostic_lines(diagnostics: Sequence[Status]) -> list[str]:
    lines = ["", "troubles"] if diagnostics else []
    for one in diagnostics:
        lines.append(f"  {figures.duration(one['since_s'])}  {one['message']}")
        lines.append(f"       try: {one['remedy']}")
    return lines


def _no_job_lines(status: Status) -> list[str]:
    why = [f"{_INDENT}{status['explain']}"] if status["explain"] else []
    return ["job          none", *why, *_last_job_lines(status.get("last_job"))]


def _job_lines(job: Status) -> list[str]:
    reason = job["explain"] or job["reason"]
    why = [f"{_INDENT}{reason}"] if reason else []
    state = output.paint(job["state"], output.STATE_STYLES.get(job["state"]))
    head = f"job          {job['id']}  {state}  generation {job['generation']}"
    servers = job.get("servers", 0)
    head += f"  workers {job['world_size'] - servers}" + _range_words(job.get("allotment"))
    head += f"  servers {servers}" if servers else ""
    return [head, f"{_INDENT}{'  '.join(progress_words(job))}", *why, *_straggler_lines(job)]


def _range_words(allotment: Status | None) -> str:
    """The numbers of workers that a job takes, and why it has fewer than the most."""
    if allotment is None or allotment["least"] == allotment["most"]:
        return ""
    why = f": {allotment['why']}" if allotment["why"] else ""
    return f" of {allotment['least']} to {allotment['most']}{why}"


def _straggler_lines(job: Status) -> list[str]:
    slow = job.get("straggler")
    if not slow:
        return []
    return [f"straggler    {slow['name']} costs {figures.span(slow['cost_s'])} a step"]


def _last_job_lines(job: Status | None) -> list[str]:
    if job is None:
        return []
    state = output.paint(job["state"], output.STATE_STYLES.get(job["state"]))
    ago = figures.duration(time.time() - job["ended_s"])
    steps = figures.steps(job["step"], job["total_steps"])
    lines = [f"last job     {job['id']}  {state}  step {steps}  {ago} ago"]
    text = [
        one_line(job["reason"], REASON_CHARACTERS),
        _failed_at(job["traceback"]),
    ]
    if job["reason"] or job["traceback"]:
        text.append(f"more: dtdctl show {job['id']}, dtdctl logs {job['id']}")
    return lines + [f"{_INDENT}{line}" for line in text if line]


def _failed_at(traceback: str) -> str:
    """The innermost place of a traceback; empty without one."""
    frames = _FRAME.findall(traceback)
    if not frames:
        return ""
    path, line, function = frames[-1]
    return f"in {function}, {path}:{line}"


def _worker_lines(workers: Sequence[Status], *, wide: bool) -> list[str]:
    """A table; it names each worker's job if there are several."""
    several = len({worker.get("job", "") for worker in workers} - {""}) > 1
    headings = (
        *(("WORKER", "JOB") if several else ("WORKER",)),
        *("STATE", "RANK", "STEP", "ROWS", "RATE", "LAST SEEN", "STALL LIMIT", "SENT", "UNCODED"),
        *("DEVICE", "HOST", "DATA PORT", "PID"),
        "NOTE",
    )
    rows = [
        (
            worker["name"],
            *((worker.get("job", ""),) if several else ()),
            worker["state"],
            figures.NOTHING if worker["rank"] is None else str(worker["rank"]),
            str(worker["step"]),
            str(worker.get("rows") or figures.NOTHING),
            figures.rate(worker.get("samples_per_s")),
            figures.duration(worker["last_heartbeat_s"]),
            figures.duration(limit_s) if (limit_s := worker.get("patience_s")) else figures.NOTHING,
            figures.size(worker.get("sent_bytes", 0)),
            figures.size(worker.get("plain_bytes", 0)),
            "server" if worker.get("role") == "server" else worker["device"],
            worker["host"],
            ", ".join(worker.get("addresses", ())) or figures.NOTHING,
            str(worker["pid"]),
            "; ".join(note for note in (worker["reason"], _stalled(worker)) if note)
            or figures.NOTHING,
        )
        for worker in workers
    ]
    only_wide = ("STALL LIMIT", "SENT", "UNCODED", "DATA PORT", "PID")
    return output.table_lines(headings, rows, wide=wide, only_wide=only_wide)


def _stalled(worker: Status) -> str:
    stalled_s = worker.get("stalled_s", 0.0)
    if stalled_s < STALLED_S:
        return ""
    where = f" in {worker['where']}" if worker.get("where") else ""
    patience_s = worker.get("patience_s", 0.0)
    limit = f"limit {figures.duration(patience_s)}" if patience_s else ""
    known = worker.get("evidence") or limit
    about = f" ({known})" if known else ""
    return f"no progress for {figures.duration(stalled_s)}{where}{about}"


def memory_lines(status: Status) -> list[str]:
    """Return a table with two lines for each worker: measured, and predicted by the strategy."""
    measured = [worker for worker in status["workers"] if worker.get("memory")]
    if not measured:
        return ["", "no worker has measured its memory: that is done in a job's second step"]
    rows: list[tuple[str, ...]] = []
    for worker in measured:
        parts = worker["memory"]
        rows.append((worker["name"], *(_size(parts, part, "measured_bytes") for part in PARTS)))
        rows.append(("  predicted", *(_size(parts, part, "predicted_bytes") for part in PARTS)))
    return ["", *output.table_lines(_MEMORY_HEADINGS, rows)]


def _size(parts: Status, part: str, which: str) -> str:
    count = parts.get(part, {}).get(which)
    return figures.NOTHING if count is None else figures.size(count)


def show_events(
    settings: Settings, *, follow: bool, job: str, kinds: Sequence[str], since_s: float
) -> None:
    """Print the incidents that the coordinator remembers, oldest first; or follow them."""

    def wanted(event: Event) -> bool:
        right = job in ("", event["job"]) and (not kinds or event["kind"] in kinds)
        return right and event["time_s"] >= since_s

    if follow:
        _follow_events(settings, wanted)
    with settings.connect() as client:
        if job:
            client.request(m.ShowJob(job=job))  # says so if there is none
        # From cursor 0 there would be the newest page alone.
        first = 1 if job or kinds or since_s else 0
        known = items(client.request, lambda after: m.ReadEvents(after=after or first), "events")
        seen = [event for event in known if wanted(event)]
    if settings.as_json:
        for event in seen:
            output.print_json(event)
        return
    rows = [(*_what(event), *_costs(event), _event(settings, event)) for event in seen]
    output.print_table(
        _EVENT_HEADINGS, rows, wide=settings.is_wide, only_wide=_ONLY_WIDE, none="no events"
    )


def _event(settings: Settings, event: Event) -> str:
    """An event's message, with its costs unless they have columns of their own."""
    message = str(event["message"])
    return message if settings.is_wide else "; ".join([message, *_known_costs(event)])


def _known_costs(event: Event) -> list[str]:
    costs = zip(_COSTS, _costs(event), strict=True)
    return [f"{label} {cost}" for label, cost in costs if cost != figures.NOTHING]


def _follow_events(settings: Settings, wanted: Callable[[Event], bool]) -> NoReturn:
    """Print incidents as they happen; a coordinator that restarts meanwhile is waited for."""
    after = 0

    def follow(client: ControlClient) -> NoReturn:
        nonlocal after
        while True:
            client.ask(m.ReadEvents(after=after, follow=True))
            answer = client.answer()
            assert answer is not None
            for event in filter(wanted, answer["events"]):
                if settings.as_json:
                    output.print_json(event)
                else:
                    output.print_lines([_line(event)])
            after = answer["next"]

    persist(settings, follow)


def _line(event: Event) -> str:
    cells = [cell for cell in _what(event) if cell != figures.NOTHING]
    return "  ".join([*cells, event["message"], *_known_costs(event)])


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
