"""What `dtdctl submit` ships with a job: the package of a task that is not built in.

The package is looked for where a person means it to be: beside the job file, in the current
directory, then wherever Python looks.  It is never imported.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dtd.ctl import output
from dtd.errors import RequestRefused, TaskError
from dtd.net.control_client import ControlClient
from dtd.packages.limits import CHUNK_BYTES, short
from dtd.packages.pack import Archive, pack
from dtd.packages.source import find_source, top_level_name
from dtd.wire import messages as m


def packed_task(reference: str, job_file: Path) -> Archive | None:
    """The package of a job's task; None when the workers have it: built in, or installed.

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
            f"task {reference}: there is no package or module {name} beside {job_file}, in"
            f" {Path.cwd()} or installed here",
            remedy="submit it from where it lies, or with --no-ship if the workers have it",
        )
    if source.installed:
        output.say(f"package {name} is installed here and not shipped: workers use their own")
        return None
    if name in sys.stdlib_module_names:
        raise TaskError(
            f"task {reference}: {source.path} has the name of a module that comes with Python",
            remedy="give it another name; the workers would import Python's own",
        )
    assert source.path is not None
    archive = pack(source)
    output.say(
        f"ships {source.path}: {archive.files} {'file' if archive.files == 1 else 'files'},"
        f" {len(archive.content) / 1024:.0f} KiB, {short(archive.digest)}"
    )
    return archive


def ship(client: ControlClient, archive: Archive) -> None:
    """Bring the archive to the coordinator, from where an earlier attempt has ended.

    Raises:
        RequestRefused: the coordinator does not take it.
    """
    size, have = len(archive.content), -1
    answer = _put(client, archive, offset=0, piece=b"")
    while answer < size:
        if answer <= have:
            raise RequestRefused(
                f"the coordinator stays at {answer} of {size} bytes of the task's package",
                remedy="somebody else may be sending the same package: submit again",
            )
        have = answer
        piece = archive.content[have : have + CHUNK_BYTES]
        answer = _put(client, archive, offset=have, piece=piece)


def _put(client: ControlClient, archive: Archive, *, offset: int, piece: bytes) -> int:
    message = m.PutPackage(digest=archive.digest, size=len(archive.content), offset=offset)
    return int(client.request(message, piece)["have"])
