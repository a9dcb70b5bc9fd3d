"""`dtdctl models fetch`: a version's files from a worker that keeps them, and their digests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dtd.ctl import output
from dtd.ctl.answers import show
from dtd.ctl.checkpoints import connect_for
from dtd.ctl.models.show import Version, one_version
from dtd.ctl.settings import Settings
from dtd.errors import CheckpointError, RequestRefused, UsageError
from dtd.net.weights import fetch_model
from dtd.registry.card import card

CARD_FILE: Final = "README.md"
RECORD_FILE: Final = "version.json"
_READ_BYTES: Final = 1 << 20
_RECORDED: Final = ("name", "number", "id", "record", "files")


def fetch(settings: Settings, text: str, directory: Path | None) -> int:
    """Fetch a version into a directory, and print the lines that load it.

    Raises:
        RequestRefused: there is no such version, or no worker that keeps it is connected.
        CheckpointError: no worker delivers the registered files.
        UsageError: the directory cannot be written to, or has other files.
    """
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
    return 0


def bring(settings: Settings, version: Version, directory: Path) -> list[Path]:
    """Fetch a version's files, its card and its record into a directory; raises as `fetch`.

    Args:
        settings: the coordinator.
        version: as LIST_MODELS answers with tickets.
        directory: made if missing.
    """
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
            (directory / CARD_FILE).write_text(card(version), "utf-8")
            kept = {key: version[key] for key in _RECORDED}
            (directory / RECORD_FILE).write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
            return paths
    except OSError as error:
        why = error.strerror or error
        raise UsageError(f"{directory} cannot be written to: {why}") from None
    assert failure is not None
    raise failure


def _check(paths: Sequence[Path], version: Version) -> None:
    """Whether these are the files that were registered; others are removed.

    Raises:
        CheckpointError: they are not.
    """
    expected = {file["name"]: file["sha256"] for file in version["files"]}
    found = {path.name: sha256_of(path) for path in paths}
    if found != expected:
        for path in paths:
            path.unlink()
        raise CheckpointError(
            "its files do not have the digests that were registered",
            remedy="the copy on that worker is damaged or replaced; fetch it again from another",
        )


def sha256_of(path: Path) -> str:
    """The sha256 of a file, in hex."""
    content = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            content.update(piece)
    return content.hexdigest()


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
