"""The package of a task that is not built in, which `dtdctl submit` ships with a job.

The package is searched for beside the job file, in the current directory, then on Python's path.
With it goes what it imports from the folder in which it is.  Nothing is imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from dtd import figures
from dtd.ctl import output
from dtd.errors import RequestRefused, TaskError, UsageError
from dtd.net.control_client import ControlClient
from dtd.packages.archive import Archive, pack
from dtd.packages.archives import WeightsFile
from dtd.packages.limits import CHUNK_BYTES, short
from dtd.packages.source import (
    OWN_NAME,
    Source,
    find_source,
    module_name,
    top_level_name,
    with_imports,
)
from dtd.shown import counted
from dtd.wire import messages as m

WEIGHTS: Final = "weights"
"""Name of a file of weights in PUT_PACKAGE."""


def packed_task(reference: str, job_file: Path) -> Archive | None:
    """The package of a job's task, with its imports from its folder.

    None when the workers have it: built in, or installed.

    Args:
        reference: "package.module:attribute", or a built-in task's name.
        job_file: looked beside first.

    Raises:
        TaskError: there is no such package, or it cannot be shipped.
    """
    name = top_level_name(reference)
    if not name:
        return None
    source = find_source(name, [job_file.absolute().parent, Path.cwd(), *sys.path])
    if source is None:
        raise TaskError(
            f"task {reference}: no package or module {name} was found beside {job_file}, in"
            f" {Path.cwd()} or installed here",
            remedy="submit the job from the directory that contains it, or with --no-ship if the "
            "workers have it",
        )
    if source.installed:
        output.say(f"package {name} is installed here and not shipped: workers use their own")
        return None
    sources = with_imports(source, module_name(reference))
    for one in sources:
        _check_name(reference, one)
    archive = pack(sources)
    beside = "".join(f", {one.path.name}" for one in sources[1:] if one.path is not None)
    output.say(
        f"ships {source.path}{beside}: {counted(archive.files, 'file')},"
        f" {len(archive.content) / 1024:.0f} KiB, {short(archive.digest)}"
    )
    return archive


def _check_name(reference: str, source: Source) -> None:
    """Check that a module can be imported by its name on a worker.

    Raises:
        TaskError: the worker would import another one.
    """
    if source.name == OWN_NAME:
        whose = "dtd itself"
    elif source.name in sys.stdlib_module_names:
        whose = "a module of Python's standard library"
    else:
        return
    raise TaskError(
        f"task {reference}: {source.path} has the name of {whose}",
        remedy="rename it; the workers would import the other one",
    )


def ship(client: ControlClient, archive: Archive) -> None:
    """Upload the archive to the coordinator, continuing an earlier attempt.

    Raises:
        RequestRefused: the coordinator does not take it.
    """
    content = archive.content
    _bring(
        client,
        m.PutPackage(digest=archive.digest, size=len(content), offset=0),
        lambda offset: content[offset : offset + CHUNK_BYTES],
        what="the task's package",
    )


def ship_weights(client: ControlClient, weights: WeightsFile) -> None:
    """Upload a file of weights to the coordinator, as `ship`.

    Raises:
        RequestRefused: the coordinator does not take it.
        UsageError: it cannot be read any more.
    """
    size = figures.size(weights.size_bytes)
    output.say(f"ships {weights.path}: {size}, {short(weights.digest)}")
    try:
        with weights.path.open("rb") as file:

            def read(offset: int) -> bytes:
                file.seek(offset)
                return file.read(CHUNK_BYTES)

            first = m.PutPackage(
                digest=weights.digest, size=weights.size_bytes, offset=0, kind=WEIGHTS
            )
            _bring(client, first, read, what=str(weights.path))
    except OSError as error:
        raise UsageError(f"{weights.path} cannot be read: {error.strerror or error}") from None


def _bring(
    client: ControlClient, first: m.PutPackage, read: Callable[[int], bytes], *, what: str
) -> None:
    """Piece by piece; `first` asks how much is there."""
    have, answer = -1, int(client.request(first)["have"])
    while answer < first.size:
        if answer <= have:
            raise RequestRefused(
                f"the coordinator still has {answer} of {first.size} bytes of {what}",
                remedy="another client may be uploading the same content: submit again",
            )
        have = answer
        message = replace(first, offset=have)
        answer = int(client.request(message, read(have))["have"])
