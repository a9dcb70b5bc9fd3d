"""`dtdctl profile`: records steps of a running job, merges them into a trace, names its limit.

The coordinator has all workers record; their files are fetched from their data ports, put on the
coordinator's clock and merged, without torch.  A worker that recorded nothing, or whose file cannot
be had, is named, and the others are merged.
"""

from __future__ import annotations

import gzip
import json
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dtd.ctl import output
from dtd.ctl.answers import RECONNECT_EVERY_S, Answer, ask, show
from dtd.ctl.commands.checkpoints import HOLDERS_BACK_S, connect_for
from dtd.ctl.settings import Settings
from dtd.errors import CheckpointError, HolderUnreachable, ProfileError, UsageError
from dtd.net.clients.blocking_link import Connect
from dtd.net.clients.fetch_client import FetchClient, addresses_in
from dtd.observe.profile.limits import StepTimes, Verdict, median_times, verdict
from dtd.observe.profile.spans import NS
from dtd.observe.profile.trace import MAX_JSON_BYTES, WorkerTrace, decoded, trace_events
from dtd.text import figures
from dtd.text.shown import counted
from dtd.wire import messages as m
from dtd.wire.session import DataCredential

SUFFIX: Final = ".trace.json.gz"
LATE_S: Final = 90.0
"""Time of the answer beyond the limit: workers finish a step, and write their files."""

HEADINGS: Final = ("WORKER", "STEP", "COMPUTE", "WAITS", "DATA", "OPTIMIZER", "OVERLAP", "CLOCK")
_WORDS: Final = {
    "compute": "compute",
    "communication": "exposed communication",
    "data": "data",
    "optimizer": "the optimizer",
    "straggler": "a straggler",
}

Values = Mapping[str, Any]


def profile_job(
    settings: Settings, job: str, target: Path | None, *, steps: int, limit_s: float
) -> None:
    """Record, fetch, merge, write, and print what limits a step."""
    path = target or Path(f"{job}{SUFFIX}")
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent} is not a directory")
    output.say(f"recording {counted(steps, 'step')} of {job}")
    answer = ask(
        settings, m.Profile(job=job, steps=steps, limit_s=limit_s), within_s=limit_s + LATE_S
    )
    missing = {one["name"]: one["reason"] for one in answer["workers"] if one["reason"]}
    traces = _fetch_all(settings, answer, missing)
    for name, reason in missing.items():
        output.say(f"without {name}: {reason}")
    if not traces:
        raise ProfileError("no worker's profile could be fetched", remedy="record another one")
    _write(path, traces)
    times = median_times({one.name: one.spans for one in traces})
    report = _report(answer, path, times, missing)
    show(settings, report, lambda report: output.print_lines(report_lines(report)))


# --- fetching ------------------------------------------------------------------------------------


def _fetch_all(settings: Settings, answer: Answer, missing: dict[str, str]) -> list[WorkerTrace]:
    """Fetch and check every file; a worker that restarts is asked again."""
    traces: dict[str, WorkerTrace] = {}
    spec = {"sync": {"encryption": "tls" if answer["encrypted"] else ""}}
    connect = connect_for(settings, answer["job"], spec)
    deadline_s = time.monotonic() + HOLDERS_BACK_S
    with tempfile.TemporaryDirectory() as scratch:
        while True:
            for one in answer["workers"]:
                name = one["name"]
                if name in traces or (one["reason"] or name in missing):
                    continue
                try:
                    traces[name] = _fetch(one, answer["file"], Path(scratch) / name, connect)
                except HolderUnreachable as error:
                    if time.monotonic() >= deadline_s:
                        missing[name] = error.message
                except (CheckpointError, ProfileError) as error:
                    missing[name] = error.message
            if len(traces) + len(missing) >= len(answer["workers"]):
                return sorted(traces.values(), key=lambda trace: trace.rank)
            time.sleep(RECONNECT_EVERY_S)
            answer = ask(settings, m.Profile(job=answer["job"], file=answer["file"]))


def _fetch(one: Values, file: str, scratch: Path, connect: Connect) -> WorkerTrace:
    if not one["alive"]:
        raise HolderUnreachable("it is not connected any more")
    resource, name = f"profile/{file}", f"{file}.json.gz"
    ticket = DataCredential(
        secret=one["ticket_key"], scope=resource, expires_s=one["ticket_expires_s"]
    )
    with FetchClient(addresses_in(one), resource, ticket, connect=connect) as client:
        client.fetch(name, scratch)
    return decoded(
        _read(scratch, one["name"]),
        name=one["name"],
        rank=one["rank"],
        offset_ns=int(one["clock_ahead_s"] * NS),
    )


def _read(path: Path, name: str) -> Any:
    """The contents of a fetched file; its unpacked size is bounded."""
    try:
        with gzip.open(path) as file:
            text = file.read(MAX_JSON_BYTES + 1)
        if len(text) > MAX_JSON_BYTES:
            raise ProfileError(f"the profile of {name} has more than {MAX_JSON_BYTES} bytes")
        return json.loads(text)
    except (OSError, EOFError, ValueError, RecursionError):
        raise ProfileError(f"the profile of {name} is damaged") from None


def _write(path: Path, traces: Sequence[WorkerTrace]) -> None:
    fresh = path.with_name(f".{path.name}.part")
    opened: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(fresh, "wt", encoding="utf-8") as file:
            file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
            for number, event in enumerate(trace_events(traces)):
                file.write(",\n" if number else "")
                file.write(json.dumps(event, separators=(",", ":")))
            file.write("\n]}\n")
        fresh.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from None


# --- the limit of the step -----------------------------------------------------------------------


def _report(
    answer: Answer, path: Path, times: Mapping[str, StepTimes], missing: Mapping[str, str]
) -> dict[str, Any]:
    said = {one["name"]: one for one in answer["workers"]}
    workers = [
        {
            "name": name,
            "serves": said[name]["serves"],
            "step_s": one.step_s,
            "compute_s": one.compute_s,
            "exposed_s": one.exposed_s,
            "data_s": one.data_s,
            "optimizer_s": one.optimizer_s,
            "overlap": one.hidden_s / one.busy_s if one.busy_s else None,
            "clock_ahead_s": said[name]["clock_ahead_s"],
            "clock_uncertainty_s": said[name]["clock_uncertainty_s"],
            "dropped": said[name]["dropped"],
            "note": said[name]["note"],
        }
        for name, one in times.items()
    ]
    training = {name: one for name, one in times.items() if not said[name]["serves"]}
    found = verdict(training) if training else None
    return {
        "schema": 1,
        "job": answer["job"],
        "generation": answer["generation"],
        "path": str(path),
        "limit": (found.limit or None) if found else None,
        "parts": dict(found.parts) if found else {},
        "step_s": found.step_s if found else None,
        "overlap": found.overlap if found else None,
        "slowest": found.slowest if found else "",
        "says": _says(found),
        "workers": workers,
        "missing": dict(missing),
    }


def _says(found: Verdict | None) -> str:
    if found is None:
        return "no step was recorded as a whole by all workers: record more steps, or for longer"
    if not found.limit:
        return (
            f"a step takes {figures.span(found.step_s)}; nothing stands out: no part takes a"
            " quarter of it, or more than all that is none of them"
        )
    limit_s = found.parts[found.limit]
    share = limit_s / found.step_s if found.step_s else 0.0
    who = f" ({found.slowest})" if found.limit == "straggler" else ""
    said = f"a step takes {figures.span(found.step_s)}; limited by {_WORDS[found.limit]}{who}:"
    said += f" {figures.span(limit_s)}, {share:.0%} of it"
    if found.overlap is not None:
        said += f"; {found.overlap:.0%} of the communication is overlapped"
    return said


def report_lines(report: Values) -> list[str]:
    """The report as text."""
    rows = [
        (
            one["name"],
            *(
                figures.span(one[key])
                for key in ("step_s", "compute_s", "exposed_s", "data_s", "optimizer_s")
            ),
            figures.NOTHING if one["overlap"] is None else f"{one['overlap']:.0%}",
            f"+-{1e6 * one['clock_uncertainty_s']:.0f} us",
        )
        for one in report["workers"]
    ]
    lines = output.table_lines(HEADINGS, rows) if rows else []
    notes = [f"{one['name']}: {note}" for one in report["workers"] for note in _notes(one)]
    opened = f"open {report['path']} in https://ui.perfetto.dev"
    return [*lines, *notes, report["says"], opened]


def _notes(one: Values) -> Iterable[str]:
    if one["note"]:
        yield str(one["note"])
    dropped = sum((one["dropped"] or {}).values())
    if dropped:
        yield f"{dropped} spans were left out, the shortest operations first"
