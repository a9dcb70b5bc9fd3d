"""The commands about sweeps: read a sweep file, begin, show, list, cancel."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dtd.ctl import output
from dtd.ctl.answers import Answer, ask_and_show, show
from dtd.ctl.commands.submit import packed_task, ship
from dtd.ctl.settings import Settings
from dtd.errors import JobSpecError
from dtd.job import MAX_JOB_BYTES, load_job, to_mapping
from dtd.job.sweep import read_sweep
from dtd.text import figures
from dtd.text.toml_source import CONTENT_ERRORS, content_fault, read_text
from dtd.wire import messages as m


def load_sweep(path: Path) -> tuple[dict[str, Any], Path]:
    """A sweep file as a map, and the file of its job; `job = "JOB.toml"` is read into `base`."""
    try:
        raw = tomllib.loads(read_text(path, limit_bytes=MAX_JOB_BYTES))
    except OSError as error:
        why = f"cannot be read: {error.strerror or error}"
        raise JobSpecError(str(path), (why,)) from error
    except CONTENT_ERRORS as error:
        raise JobSpecError(str(path), (content_fault(error),)) from error
    named, source = raw.pop("job", None), path
    if named is not None and (not isinstance(named, str) or "base" in raw):
        raise JobSpecError(
            str(path), ("job: must be the name of a job file, and then there is no [base]",)
        )
    if named is not None:
        source = path.parent / named
        raw["base"] = to_mapping(load_job(source))
    return read_sweep(raw, source=str(path)).to_mapping(), source


def begin_sweep(settings: Settings, path: Path, *, ship_package: bool) -> None:
    """Begin a sweep and print its id."""
    spec, source = load_sweep(path)
    job = spec["base"]["job"]
    archive = packed_task(job["task"], source, job["requirements"]) if ship_package else None
    with settings.connect() as client:
        if archive is not None:
            ship(client, archive)
        package = archive.digest if archive is not None else ""
        answer = client.request(m.BeginSweep(spec=spec, package=package))
    show(settings, answer, lambda answer: output.print_lines([answer["sweep"]]))


def show_sweep(settings: Settings, sweep: str) -> None:
    """Print a sweep."""
    ask_and_show(settings, m.ShowSweep(sweep=sweep), lambda one: output.print_lines(_lines(one)))


def list_sweeps(settings: Settings) -> None:
    """Print the sweeps."""

    def say(answer: Answer) -> None:
        headings = ("SWEEP", "JOB", "STATE", "METHOD", "METRIC", "TRIALS", "NOTE")
        rows = [
            (
                one["id"],
                one["job"],
                one["state"],
                one["method"],
                one["metric"],
                f"{one['begun']}/{one['planned']}",
                one["reason"],
            )
            for one in answer["sweeps"]
        ]
        output.print_table(headings, rows, none="no sweeps")

    ask_and_show(settings, m.ListSweeps(), say)


def cancel_sweep(settings: Settings, sweep: str) -> None:
    """Cancel a sweep and the jobs of its trials."""
    ask_and_show(settings, m.CancelSweep(sweep=sweep), "{sweep} is {state}")


def _lines(sweep: Mapping[str, Any]) -> list[str]:
    head = f"{sweep['id']}  {sweep['state']}  {sweep['method']} over {sweep['job']}"
    head += f"  trials {sweep['begun']}/{sweep['planned']}  {sweep['direction']} {sweep['metric']}"
    lines = [head, *([sweep["reason"]] if sweep["reason"] else [])]
    best = sweep["best"]
    if best is not None:
        value = figures.number(best["value"])
        lines.append(f"best  trial {best['number']}  {best['job']}  {sweep['metric']} {value}")
        lines += [f"      {name} = {value}" for name, value in best["params"].items()]
    if sweep["importance"]:
        ranked = sorted(sweep["importance"].items(), key=lambda one: -one[1])
        lines.append("importance  " + "  ".join(f"{name} {100 * of:.0f} %" for name, of in ranked))
    names = list(sweep["space"])
    rows = [
        (
            str(one["number"]),
            one["state"],
            one["job"],
            figures.number(one["value"]),
            *(_setting(one["params"].get(name, "")) for name in names),
            one["reason"].partition("\n")[0],
        )
        for one in sweep["trials"]
    ]
    headings = ("TRIAL", "STATE", "JOB", sweep["metric"].upper(), *names, "NOTE")
    table = output.table_lines(headings, rows) if rows else ["no trial has begun"]
    return [*lines, "", *table]


def _setting(value: object) -> str:
    """A setting's value in a column; the best trial's are shown in full above."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
