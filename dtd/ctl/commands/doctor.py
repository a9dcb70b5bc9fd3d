"""`dtdctl doctor`: checks the cluster, and forecasts how fast a job would be on it.

Asks the coordinator to have hosts and links measured (EXAMINE), one at a time; with a job file also
a few steps on every idle worker.  A running job is not disturbed: bandwidths are measured beside it
only with --force.  `dtd.doctor` judges the measurements.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

from dtd import __version__
from dtd.ctl import output
from dtd.ctl.answers import ask, show
from dtd.ctl.commands.submit import packed_task, ship
from dtd.ctl.settings import Settings
from dtd.doctor import checks
from dtd.doctor.checks import Finding, fail, ok, warn
from dtd.doctor.forecast import Forecast
from dtd.doctor.job_memory import NEEDED_PARTS, check_division, check_memory, divided
from dtd.doctor.larger import ASSUMED, Repeated, check_growth, growth_of
from dtd.doctor.memory import REPLICATED
from dtd.doctor.strategies import check_choice, check_servers, choices_of, forecasts, world_of
from dtd.errors import CoordinatorUnreachable, RequestRefused
from dtd.job import JobSpec, load_job, to_mapping
from dtd.net.clients.control_client import ControlClient
from dtd.packages.archive import Archive
from dtd.text import figures
from dtd.text.names import natural_key
from dtd.text.shown import counted
from dtd.wire import messages as m

SCHEMA: Final = 1
EXIT_FAILED: Final = 4
_AWAY: Final = frozenset({"lost", "released", "refused", "away"})
_MARKS: Final = {"ok": ("ok  ", output.GREEN), "warn": ("warn", output.YELLOW)}
_FAIL: Final = ("FAIL", output.RED)
ANSWER_TIMEOUT_S: Final = 200.0
"""Beyond the coordinator's own patience with a worker."""
_LINK_HEADINGS: Final = ("FROM", "AT", "TO", "ROUND TRIP", "BANDWIDTH")
_NEEDED_HEADINGS: Final = (
    *("MEMORY OF", *(part.upper() for part in NEEDED_PARTS)),
    *("ALL", "AVAILABLE"),
)
_FORECAST_HEADINGS: Final = (
    *("WORKERS", "STEP", "COMPUTE", "EXPOSED", "DATA", "SENT/STEP", "RATE", "LIMITED BY"),
)
_LARGER_HEADINGS: Final = (*_FORECAST_HEADINGS, "FASTER WITH")
_CHOICE_HEADINGS: Final = ("STRATEGY", "CODEC", "SENT/STEP", "STEP", "SPEEDUP", "RISK")
_STATE_HEADINGS: Final = (
    *("STATE", "MIRRORS", "PARAMETERS", "GRADIENTS", "OPTIMIZER", "ALL", "FITS FROM"),
)

Values = Mapping[str, Any]
Report = dict[str, Any]


class _Job(NamedTuple):
    """A job to forecast, and the package of its task unless the workers have it."""

    spec: JobSpec
    archive: Archive | None


def doctor(settings: Settings, job_file: Path | None, *, force: bool) -> int:
    """Examine and print; the exit code tells whether anything failed."""
    job = None
    if job_file is not None:
        spec = load_job(job_file)
        job = _Job(spec, packed_task(spec.job.task, job_file, spec.job.requirements))
    try:
        report = _examine(settings, job, force=force)
    except CoordinatorUnreachable as error:
        failed = fail("coordinator", error.message, error.remedy)
        show(settings, _report([failed]), _print)
        return error.exit_code
    show(settings, report, _print)
    bad = any(finding["state"] == "fail" for finding in report["checks"])
    return EXIT_FAILED if bad else 0


def _examine(settings: Settings, job: _Job | None, *, force: bool) -> Report:
    status = ask(settings, m.GetStatus())
    workers = [one for one in status["workers"] if one["state"] not in _AWAY]
    names = sorted((worker["name"] for worker in workers), key=natural_key)
    sent_s = time.time()
    coordinator = ask(settings, m.Examine(what="host", spec={}), within_s=ANSWER_TIMEOUT_S)
    own_skew_s = (sent_s + time.time()) / 2 - coordinator["time_s"]
    hosts, silent = _measure(
        settings, {name: m.Examine(what="host", worker=name, spec={}) for name in names}
    )
    bandwidths = status["job"] is None or force
    links, unreached = _measure_links(settings, list(hosts), bandwidths=bandwidths, force=force)
    found = [
        *checks.check_coordinator(
            coordinator, address=str(settings.targets()[0].address), own_version=__version__
        ),
        *(_silence(name, error) for name, error in silent.items()),
        *checks.check_versions(coordinator, hosts),
        *checks.check_clocks(hosts, own_skew_s=own_skew_s),
        *checks.check_disks(coordinator, hosts),
        *checks.check_timeouts(coordinator, hosts, links),
        *checks.check_ports(unreached, len(links)),
        *checks.check_links(links),
        *checks.check_addresses(links),
        *_crowd(names, status["job"], bandwidths=bandwidths),
    ]
    report = _report(found, hosts=hosts, links=links)
    if job is not None:
        _add_job(report, settings, job, workers)
    return report


def _place(worker: dict[str, Any]) -> str:
    """The place of its memory: workers on one host share it, each GPU has its own."""
    host: str = worker["host"]
    return host if worker["device"] == "cpu" else f"{host} {worker['device']}"


def _silence(name: str, error: RequestRefused) -> Finding:
    return fail(
        "ports",
        f"{name} cannot be examined: {error.message}",
        error.remedy or "read its log; an older version of dtd cannot answer this request",
    )


def _crowd(names: Sequence[str], job: Any, *, bandwidths: bool) -> Iterator[Finding]:
    if not names:
        yield warn(
            "coordinator",
            "no worker is connected",
            "start one with: dtd-worker --coordinator HOST:PORT",
        )
    if not bandwidths and len(names) > 1:
        yield ok(
            "links",
            f"job {job['id']} is running, so bandwidths were not measured",
            "use --force to measure anyway",
        )


def _report(found: Sequence[Finding], **more: Any) -> Report:
    return {
        "schema": SCHEMA,
        "checks": [dataclasses.asdict(finding) for finding in found],
        "hosts": {},
        "links": [],
        "memory": [],
        "forecast": [],
        "larger": None,
        "strategies": [],
        "state": [],
        **more,
    }


_NOT_MEASURED: Final = warn(
    "job",
    "no worker is idle, so no step of the job could be measured",
    "try again when no job is running",
)


def _add_job(
    report: Report, settings: Settings, job: _Job, workers: Sequence[dict[str, Any]]
) -> None:
    """Add what a step on every idle worker shows, measured on all at once as in the job."""
    servers = [one["name"] for one in workers if one.get("role") == "server"]
    trainers = [one["name"] for one in workers if one["name"] not in servers]
    places = {one["name"]: _place(one) for one in workers if one["state"] == "idle"}
    idle = sorted((name for name in trainers if name in places), key=natural_key)
    most = min(len(idle), job.spec.elastic.max_workers)
    steps, refusals = _measure_steps(settings, job, idle[:most])
    memory = [_memory_of(name, places[name], step) for name, step in steps.items()]
    links = report["links"]
    listed = choices_of(world_of(steps, links, spec=job.spec, servers=servers))
    repeated = Repeated.fitted(steps, links, spec=job.spec, servers=servers)
    growth = growth_of(repeated) if repeated is not None else None
    states = divided(job.spec, list(steps.values()))
    found = [
        *check_servers(job.spec, len(servers)),
        *(_refused(error) for error in refusals.values()),
        *([] if idle else [_NOT_MEASURED]),
        *check_memory(memory, steps, job.spec),
        *check_choice(listed),
        *(check_growth(growth) if growth is not None else []),
        *check_division(states, job.spec, len(steps)),
    ]
    report["checks"] += map(dataclasses.asdict, found)
    report["memory"], report["steps"] = memory, steps
    report["forecast"] = [
        dataclasses.asdict(one)
        for one in forecasts(steps, links, most=most, spec=job.spec, servers=servers)
    ]
    report["larger"] = dataclasses.asdict(growth) if growth is not None else None
    report["strategies"] = [dataclasses.asdict(one) for one in listed]
    report["state"] = [dataclasses.asdict(one) for one in states]


def _measure_steps(
    settings: Settings, job: _Job, names: Sequence[str]
) -> tuple[dict[str, dict[str, Any]], dict[str, RequestRefused]]:
    """Have these workers take steps of the job; returns what they measured, and refusals."""
    package = ""
    if job.archive is not None and names:
        package = job.archive.digest
        with settings.connect() as client:
            ship(client, job.archive)
    step = m.Examine(what="step", spec=to_mapping(job.spec), worlds=len(names), package=package)
    return _measure(settings, {name: dataclasses.replace(step, worker=name) for name in names})


def _refused(error: RequestRefused) -> Finding:
    return fail("job", error.message, error.remedy)


def _memory_of(worker: str, place: str, step: dict[str, Any]) -> dict[str, Any]:
    return {
        "worker": worker,
        "place": place,
        "parts": step["memory"],
        "needed_bytes": sum(step["memory"].values()),
        "available_bytes": step["available_bytes"],
    }


def _print(report: Report) -> None:
    lines = []
    for finding in report["checks"]:
        mark, style = _MARKS.get(finding["state"], _FAIL)
        lines.append(f"{output.paint(mark, style)}  {finding['message']}")
        if finding["remedy"]:
            lines.append(f"      try: {finding['remedy']}")
    larger = report["larger"]["worlds"] if report["larger"] else []
    tables = (
        (_LINK_HEADINGS, map(_link_row, report["links"])),
        (_NEEDED_HEADINGS, map(_need_row, report["memory"])),
        (_FORECAST_HEADINGS, map(_forecast_row, report["forecast"])),
        (_LARGER_HEADINGS, map(_larger_row, larger)),
        (_CHOICE_HEADINGS, map(_choice_row, report["strategies"])),
        (_STATE_HEADINGS, map(_state_row, report["state"])),
    )
    for headings, rows in tables:
        if listed := list(rows):
            lines += ["", *output.table_lines(headings, listed)]
            lines += [ASSUMED] if headings is _LARGER_HEADINGS else []
    output.print_lines(lines)


def _link_row(link: Values) -> tuple[str, ...]:
    speeds = figures.span(link["rtt_s"]), figures.bandwidth(link["bytes_per_s"])
    return link["from"], link["host"], link["to"], *speeds


def _forecast_row(one: dict[str, Any]) -> tuple[str, ...]:
    made = Forecast(**one)
    return (
        str(made.world_size),
        figures.span(made.step_s),
        figures.span(made.compute_s + made.optimizer_s),
        figures.span(made.exposed_s),
        figures.span(made.data_s),
        _sent(made.sent_bytes, coded=made.coded),
        figures.rate(made.samples_per_s),
        made.limit,
    )


def _larger_row(one: Values) -> tuple[str, ...]:
    better = one["better"]
    faster = figures.NOTHING
    if better is not None:
        faster = f"{better['strategy']}, {better['codec']}: {figures.span(better['step_s'])}"
    return *_forecast_row(one["forecast"]), faster


def _sent(sent_bytes: int | None, *, coded: bool) -> str:
    if sent_bytes is None:
        return figures.NOTHING
    return figures.size(sent_bytes) + (", coded" if coded else "")


def _need_row(need: Values) -> tuple[str, ...]:
    return (
        need["worker"],
        *(figures.size(need["parts"].get(part, 0)) for part in NEEDED_PARTS),
        figures.size(need["needed_bytes"]),
        figures.size(need["available_bytes"]),
    )


def _state_row(one: Values) -> tuple[str, ...]:
    parts = [one[part] for part in ("parameters", "gradients", "optimizer")]
    name = "replicated" if one["stage"] == REPLICATED else f"sharded, stage {one['stage']}"
    least = one["least_workers"]
    return (
        name + (" (the job's)" if one["own"] else ""),
        figures.NOTHING if one["stage"] == REPLICATED else str(one["mirrors"]),
        *map(figures.size, (*parts, sum(parts))),
        figures.NOTHING if least is None else counted(least, "worker"),
    )


def _choice_row(one: Values) -> tuple[str, ...]:
    speedup = one["speedup"]
    return (
        one["strategy"] + (f", {every} steps" if (every := one["every_steps"]) > 1 else ""),
        one["codec"] + (" (the job's)" if one["own"] else ""),
        _sent(one["bytes_per_step"], coded=one["coded"]),
        figures.span(one["step_s"]),
        f"{speedup:.2f} x" if speedup is not None else figures.NOTHING,
        one["risk"],
    )


def _measure(
    settings: Settings, requests: Mapping[str, m.Examine]
) -> tuple[dict[str, dict[str, Any]], dict[str, RequestRefused]]:
    """Concurrent measurements, each over a connection of its own, and those that were refused."""
    answers: dict[str, dict[str, Any]] = {}
    refusals: dict[str, RequestRefused] = {}
    with ExitStack() as stack:
        clients = {name: stack.enter_context(settings.connect()) for name in requests}
        for name, client in clients.items():
            client.ask(requests[name])
        for name, client in clients.items():
            try:
                answers[name] = _answer(client)
            except RequestRefused as error:
                refusals[name] = error
    return answers, refusals


def _answer(client: ControlClient) -> dict[str, Any]:
    answer = client.answer(timeout_s=ANSWER_TIMEOUT_S)
    if answer is None:
        raise CoordinatorUnreachable(
            f"the coordinator did not answer within {ANSWER_TIMEOUT_S:g} s", remedy="read its log"
        )
    return answer


def _measure_links(
    settings: Settings, names: Sequence[str], *, bandwidths: bool, force: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Both directions between every two workers, one at a time; and those that do not work."""
    links: list[dict[str, Any]] = []
    unreached: list[dict[str, Any]] = []
    what = "bandwidth" if bandwidths else "latency"
    ways = [(sender, receiver) for sender in names for receiver in names if sender != receiver]
    for number, (sender, receiver) in enumerate(ways, start=1):
        if sys.stderr.isatty():
            output.say(f"measuring {sender} -> {receiver} ({number}/{len(ways)})")
        request = m.Examine(what=what, worker=receiver, peer=sender, spec={}, force=force)
        way = {"from": sender, "to": receiver}
        answers, refusals = _measure(settings, {receiver: request})
        links += [
            {**way, "bytes_per_s": None, "same_host": False, **one} for one in answers.values()
        ]
        unreached += [
            {**way, "reason": error.message, "remedy": error.remedy} for error in refusals.values()
        ]
    return links, unreached
