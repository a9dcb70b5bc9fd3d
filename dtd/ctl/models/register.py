"""`dtdctl models register`: the next version of a model, and the wait for its first copy."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dtd.ctl import output
from dtd.ctl.answers import ask, show
from dtd.ctl.models.change import read_text
from dtd.ctl.models.fetch import bring
from dtd.ctl.models.show import Version, one_version
from dtd.ctl.origins import parse_job_at_step
from dtd.ctl.settings import Settings
from dtd.errors import DtdError, UsageError
from dtd.registry.names import MARK
from dtd.wire import messages as m

LOOK_AGAIN_S: Final = 0.2
MODES: Final = ("", "max", "min")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A model version to be registered.

    Attributes:
        job: JOB or JOB@STEP.
        name: the model.
        best: the metric that chooses the best checkpoint; empty for the newest.
        mode: "max", "min", or empty for the job's own.
        copies: how many workers keep it.
        card: a file with text for the card.
        export: a directory for a further copy.
    """

    job: str
    name: str
    best: str
    mode: str
    copies: int
    card: Path | None
    export: Path | None


def register(settings: Settings, wanted: Wanted, *, timeout_s: float) -> int:
    """Register it, wait for a copy, and print NAME@NUMBER.

    Raises:
        RequestRefused: there is no such checkpoint, or the name is not valid.
        DtdError: no copy was made in time; the version stays, and copies are tried again.
        UsageError: options contradict one another, or a file cannot be used.
    """
    job, step = parse_job_at_step(wanted.job, source="JOB")
    if step and wanted.best:
        raise UsageError(
            "a step and --best name two checkpoints", remedy="use JOB@STEP, or JOB --best METRIC"
        )
    if wanted.mode not in MODES:
        raise UsageError(f"--mode must be max or min, not {wanted.mode!r}")
    request = m.RegisterModel(
        name=wanted.name,
        job=job,
        step=step,
        best=wanted.best,
        mode=wanted.mode,
        copies=wanted.copies,
        card=read_text(wanted.card) if wanted.card is not None else "",
    )
    version = ask(settings, request)["models"][0]
    version = _await_copy(settings, version, timeout_s=timeout_s)
    named = f"{version['name']}{MARK}{version['number']}"
    record = version["record"]
    output.say(f"{named} is step {record['step']} of {record['job']}, {record['confirmation']}")
    if len(version["holders"]) < version["copies"]:
        output.say(f"{len(version['holders'])} of {version['copies']} copies are there by now")
    if wanted.export is not None:
        there = one_version(settings, named, tickets=True)
        target = wanted.export / version["name"] / f"v{version['number']}"
        bring(settings, there, target)
        output.say(f"exported to {target}")
    show(settings, version, lambda _version: output.print_lines([named]))
    return 0


def _await_copy(settings: Settings, version: Version, *, timeout_s: float) -> Version:
    named = f"{version['name']}{MARK}{version['number']}"
    deadline_s = time.monotonic() + timeout_s
    while version["state"] != "ready":
        if time.monotonic() >= deadline_s:
            reasons = [f"{name}: {why}" for name, why in version["failed"].items()]
            raise DtdError(
                f"{named} is registered, and has no copy after {timeout_s:g} s"
                + "".join(f"; {reason}" for reason in reasons),
                remedy=f"copies are tried again: dtdctl models show {named}; or give up:"
                f" dtdctl models delete {named}",
            )
        time.sleep(LOOK_AGAIN_S)
        version = one_version(settings, named)
    return version
