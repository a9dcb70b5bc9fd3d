"""The commands about registered models: register, list, show, alias, card, fetch, copy, delete."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dtd.checkpoint.fetch import fetch_model
from dtd.ctl import output
from dtd.ctl.answers import Answer, ask, ask_and_show, parse_job_at_step, show
from dtd.ctl.commands.checkpoints import connect_for
from dtd.ctl.settings import Settings
from dtd.errors import CheckpointError, DtdError, RequestRefused, UsageError
from dtd.packages.archives import digest_of_file
from dtd.packages.limits import short
from dtd.registry import MARK, parse_reference
from dtd.registry import card as card_of
from dtd.text import figures
from dtd.wire import messages as m

Version = dict[str, Any]

CARD_FILE: Final = "README.md"
RECORD_FILE: Final = "version.json"
LOOK_AGAIN_S: Final = 0.2
_RECORDED: Final = ("name", "number", "id", "record", "files")
_LABEL: Final = 19
_STDIN: Final = Path("-")


def register(
    settings: Settings,
    text: str,
    name: str,
    *,
    best_metric: str,
    mode: str,
    copies: int,
    card: Path | None,
    export: Path | None,
    timeout_s: float,
) -> None:
    """Register a checkpoint as a model's next version, wait for a copy, and print NAME@NUMBER."""
    job, step = parse_job_at_step(text, source="JOB")
    if step and best_metric:
        raise UsageError(
            "a step and --best name two checkpoints", remedy="use JOB@STEP, or JOB --best METRIC"
        )
    request = m.RegisterModel(
        name=name,
        job=job,
        step=step,
        best=best_metric,
        mode=mode,
        copies=copies,
        card=read_text(card) if card is not None else "",
    )
    version = _await_copy(settings, ask(settings, request)["models"][0], timeout_s=timeout_s)
    named = f"{version['name']}{MARK}{version['number']}"
    _say_registered(version)
    if export is not None:
        there = one_version(settings, named, tickets=True)
        target = export / version["name"] / f"v{version['number']}"
        bring(settings, there, target)
        output.say(f"exported to {target}")
    show(settings, version, lambda _version: output.print_lines([named]))


def _say_registered(version: Version) -> None:
    record, there = version["record"], len(version["holders"])
    output.say(
        f"{version['name']}{MARK}{version['number']} is step {record['step']} of {record['job']},"
        f" {record['confirmation']}"
    )
    if there < version["copies"]:
        output.say(f"{there} of {version['copies']} copies are there by now")


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


def list_models(settings: Settings) -> None:
    """Print a line for each version."""
    ask_and_show(settings, m.ListModels(), _print_list)


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
    output.print_table(headings, rows, none="no registered models")


def size_of(version: Version) -> int:
    """Bytes of one copy."""
    return sum(file["size_bytes"] for file in version["files"])


def one_version(settings: Settings, text: str, *, tickets: bool = False) -> Version:
    """The version that NAME[@WHICH] stands for."""
    name, which = parse_reference(text)
    answer = ask(settings, m.ListModels(name=name, version=which, tickets=tickets))
    found: list[Version] = answer["models"]
    return found[0]


def show_model(settings: Settings, text: str, *, card: bool) -> None:
    """Print everything about a version, or its model card, as Markdown."""
    version = one_version(settings, text)
    if card:
        version["markdown"] = card_of(version)
        lines = version["markdown"].splitlines()
    else:
        lines = [f"{label:<{_LABEL}}{text}" for label, text in _described(version)]
    show(settings, version, lambda _version: output.print_lines(lines))


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


def fetch(settings: Settings, text: str, directory: Path | None) -> None:
    """Fetch a version into a directory, and print the lines that load it."""
    version = one_version(settings, text, tickets=True)
    target = directory or Path(f"{version['name']}-v{version['number']}")
    paths = bring(settings, version, target)
    lines = plain_loading_lines(version["record"]["spec"], paths)
    named = f"{version['name']}@{version['number']}"
    answer = {
        "name": version["name"],
        "version": version["number"],
        "files": version["files"],
        "path": str(paths[0]),
        "averages": str(paths[1]) if paths[1:] else "",
        "load": lines,
    }
    output.say(f"{target}: {named}, as registered; load it with")
    show(settings, answer, lambda answer: output.print_lines(answer["load"]))


def bring(settings: Settings, version: Version, directory: Path) -> list[Path]:
    """Fetch a version's files, its card and its record into a directory."""
    if not version["files"]:
        raise RequestRefused(
            f"version {version['number']} of {version['name']} has no copy yet",
            remedy=f"see why: dtdctl models show {version['name']}@{version['number']}",
        )
    if not version["sources"]:
        raise RequestRefused(
            f"no worker that keeps it is connected: {', '.join(version['holders'])}",
            remedy="start one of them",
        )
    connect = connect_for(settings, version["record"]["job"], version["record"]["spec"])
    failure: CheckpointError | None = None
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for source in version["sources"]:
            try:
                paths = fetch_model(source, directory, connect)
                _check(paths, version)
            except CheckpointError as error:
                output.say(f"{source['worker']}: {error.message}")
                failure = failure or error
                continue
            (directory / CARD_FILE).write_text(card_of(version), "utf-8")
            kept = {key: version[key] for key in _RECORDED}
            (directory / RECORD_FILE).write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
            return paths
    except OSError as error:
        why = error.strerror or error
        raise UsageError(f"{directory} cannot be written to: {why}") from None
    assert failure is not None
    raise failure


def _check(paths: Sequence[Path], version: Version) -> None:
    """Remove the files and raise `CheckpointError` unless they are those that were registered."""
    expected = {file["name"]: file["sha256"] for file in version["files"]}
    found = {path.name: digest_of_file(path) for path in paths}
    if found != expected:
        for path in paths:
            path.unlink()
        raise CheckpointError(
            "its files do not have the digests that were registered",
            remedy="the copy on that worker is damaged or replaced; fetch it again from another",
        )


def plain_loading_lines(spec: Mapping[str, Any], paths: Sequence[Path]) -> list[str]:
    """Python that builds the task's model and gives it the weights, or their averages if there are.

    Of a task of the user's own it needs torch, safetensors and the task's module, and no dtd.
    """
    module, colon, attribute = str(spec["job"]["task"]).partition(":")
    load = f"load_model(model, {str(paths[0])!r})"
    if paths[1:]:
        load += f"; load_model(model, {str(paths[1])!r}, strict=False)"
    if colon:
        first, *rest = attribute.split(".")
        made = ".".join((first, *rest))
        arguments = ", ".join(f"{key}={value!r}" for key, value in spec["task"].items())
        begin = f"from safetensors.torch import load_model; from {module} import {first}"
        return [begin, f"model = {made}({arguments}).build_model()", load]
    return [
        "from safetensors.torch import load_model; from dtd.train.task import load_task",
        f"model = load_task({module!r}, {dict(spec['task'])!r}).build_model()",
        load,
    ]


def set_alias(settings: Settings, text: str, version: int) -> None:
    """Have NAME@ALIAS stand for a version; 0 removes the alias."""
    name, alias = parse_reference(text)
    if not alias:
        raise UsageError(
            f"{text!r} names no alias", remedy=f"write NAME@ALIAS, for example {name}@production"
        )

    def tell(_answer: Answer) -> None:
        what = f"stands for version {version}" if version else "is removed"
        output.say(f"{name}@{alias} {what}")

    ask_and_show(settings, m.AliasModel(name=name, alias=alias, version=version), tell)


def write_card(settings: Settings, text: str, file: Path) -> None:
    """Replace the text of a version's card by a file's."""
    content = read_text(file)
    version = one_version(settings, text)
    name, number = version["name"], version["number"]

    def tell(_answer: Answer) -> None:
        output.say(f"the card of {name}@{number} has a new text of {len(content)} characters")

    ask_and_show(settings, m.DescribeModel(name=name, version=number, card=content), tell)


def read_text(file: Path) -> str:
    """The text of a file, or of stdin for `-`."""
    try:
        return sys.stdin.read() if file == _STDIN else file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from None


def copy(settings: Settings, text: str) -> None:
    """Have the copies made that a version lacks, or with a name alone all of the model."""
    name, which = parse_reference(text)
    number = one_version(settings, text)["number"] if which else 0
    ask_and_show(settings, m.CopyModel(name=name, version=number), _say_copies)


def _say_copies(answer: Answer) -> None:
    for one in answer["models"]:
        there = f"{len(one['connected'])} of {one['copies']} copies are on connected workers"
        making = f"; being made on {', '.join(one['copying'])}" if one["copying"] else ""
        output.say(f"{one['name']}@{one['number']}: {there}{making}")


def delete(settings: Settings, text: str, *, confirmed: bool) -> None:
    """Delete a version, or with a name alone all of the model."""
    name, which = parse_reference(text)
    going = ask(settings, m.ListModels(name=name, version=which))["models"]
    for one in going:
        for alias in one["aliases"]:
            raise RequestRefused(
                f"{name}@{alias} stands for version {one['number']}",
                remedy="have it stand for another one, or remove it:"
                f" dtdctl models alias {name}@{alias} 0",
            )
    if not confirmed:
        _confirm(name, going)
    number = going[0]["number"] if MARK in text else 0
    ask_and_show(settings, m.DeleteModel(name=name, version=number), _say_deleted)


def _confirm(name: str, going: list[Answer]) -> None:
    numbers = ", ".join(str(one["number"]) for one in going)
    size = figures.size(sum(size_of(one) * len(one["holders"]) for one in going))
    output.say(f"this deletes version {numbers} of {name}: {size} on workers")
    output.confirm_deletion()


def _say_deleted(answer: Answer) -> None:
    for one in answer["models"]:
        away = [name for name in one["holders"] if name not in one["connected"]]
        later = f"; {', '.join(away)} will delete it when connected" if away else ""
        output.say(f"{one['name']}@{one['number']} is deleted{later}")
