"""`dtdctl models list` and `show`: the registered versions, and the places of copies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from dtd import figures
from dtd.ctl import output
from dtd.ctl.answers import Answer, ask, ask_and_show, show
from dtd.ctl.settings import Settings
from dtd.packages.limits import short
from dtd.registry.card import card as card_of
from dtd.registry.names import MARK, parse_reference
from dtd.wire import messages as m

Version = dict[str, Any]

_LABEL: Final = 19


def list_models(settings: Settings) -> int:
    """Print a line for each version."""
    ask_and_show(settings, m.ListModels(), _print_list)
    return 0


def _print_list(answer: Answer) -> None:
    headings = ("MODEL", "VERSION", "ALIASES", "STATE", "COPIES", "SIZE", "JOB", "STEP", "METRICS")
    rows = [
        (
            one["name"],
            str(one["number"]),
            " ".join(one["aliases"]) or figures.NOTHING,
            one["state"],
            f"{len(one['connected'])}/{one['copies']}",
            figures.size(size_of(one)) if one["files"] else figures.NOTHING,
            one["record"]["job"],
            str(one["record"]["step"]),
            figures.metrics(one["record"]["metrics"]),
        )
        for one in answer["models"]
    ]
    output.print_table(headings, rows)


def size_of(version: Version) -> int:
    """Bytes of one copy."""
    return sum(file["size_bytes"] for file in version["files"])


def one_version(settings: Settings, text: str, *, tickets: bool = False) -> Version:
    """The version that NAME[@WHICH] stands for.

    Raises:
        RequestRefused: there is none.
        UsageError: the text names no model.
    """
    name, which = parse_reference(text)
    answer = ask(settings, m.ListModels(name=name, version=which, tickets=tickets))
    found: list[Version] = answer["models"]
    return found[0]


def show_model(settings: Settings, text: str) -> int:
    """Print everything about a version."""
    version = one_version(settings, text)
    show(settings, version, lambda version: output.print_lines(model_lines(version)))
    return 0


def show_card(settings: Settings, text: str) -> int:
    """Print a version's model card, as Markdown."""
    version = one_version(settings, text)
    version["markdown"] = card_of(version)
    show(settings, version, lambda version: output.print_lines(version["markdown"].splitlines()))
    return 0


def model_lines(version: Version) -> list[str]:
    """A version as text."""
    return [f"{label:<{_LABEL}}{text}" for label, text in _described(version)]


def _described(version: Version) -> Iterator[tuple[str, str]]:
    record = version["record"]
    aliases = " ".join(f"@{alias}" for alias in version["aliases"])
    yield "model", f"{version['name']}@{version['number']}  {version['state']}  {aliases}".rstrip()
    yield "registered", f"{figures.moment(record['registered_s'])} by {record['registered_by']}"
    yield "job", f"{record['job']}  step {record['step']}  generation {record['generation']}"
    yield "task", record["task"]
    confirmed = record["confirmation"]
    yield "state", f"digest {record['digest'] or figures.NOTHING}  {confirmed}"
    yield "evaluation", figures.metrics(record["metrics"])
    prints = record["dataset_fingerprint"]
    yield "data", f"{record['dataset_rows']:,} rows  fingerprint {short(prints) if prints else '-'}"
    package = record["package"]
    yield "code", f"package {short(package)}" if package else "built in or installed"
    for file in version["files"]:
        yield file["name"], f"{figures.size(file['size_bytes'])}  sha256 {file['sha256']}"
    yield from _copies(version)


def _copies(version: Version) -> Iterator[tuple[str, str]]:
    away = [name for name in version["holders"] if name not in version["connected"]]
    there = len(version["connected"])
    yield "copies", f"{there} of {version['copies']}"
    if version["connected"]:
        yield "", f"on {', '.join(version['connected'])}"
    if away:
        yield "", f"on {', '.join(away)}, not connected"
    if version["copying"]:
        yield "", f"being made on {', '.join(version['copying'])}"
    for name, reason in version["failed"].items():
        yield "", f"none on {name}: {reason}"
    if there < version["copies"] and not version["copying"]:
        yield "", f"to repair: dtdctl models copy {version['name']}{MARK}{version['number']}"
