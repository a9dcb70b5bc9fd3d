"""A package goes through the coordinator: from an operator, to whichever worker lacks it."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from dtd.errors import RequestRefused
from dtd.packages.limits import CHUNK_BYTES
from dtd.wire import messages as m

CONTENT = bytes(range(256)) * (CHUNK_BYTES // 256) + b"the rest"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def put(client: Any, offset: int, piece: bytes, digest: str = DIGEST) -> int:
    message = m.PutPackage(digest=digest, size=len(CONTENT), offset=offset)
    return int(client.request(message, piece)["have"])


def test_a_package_outlives_the_coordinator_with_its_job(
    start_daemon: Any, play: Any, spec: Any
) -> None:
    first = start_daemon()
    with first.connect() as client:
        assert put(client, 0, CONTENT[:100]) == 100
    second = start_daemon()
    with second.connect() as client:
        assert put(client, 100, CONTENT[100:]) == len(CONTENT)
    second.ask(m.SubmitJob(spec=spec, package=DIGEST))
    worker = play(start_daemon())
    assert worker.hear(m.Prepare).package == DIGEST
    worker.say(m.GetPackage(digest=DIGEST, offset=len(CONTENT) - 4))
    assert worker.hear_all(m.Package)[1] == b"rest"


def test_a_job_whose_package_is_not_here_is_refused(daemon: Any, spec: Any) -> None:
    for digest, says in ((DIGEST, "is not here"), ("../../etc/passwd", "sha256")):
        with pytest.raises(RequestRefused, match=says):
            daemon.ask(m.SubmitJob(spec=spec, package=digest))


def test_bytes_that_are_not_what_they_are_called_are_refused(daemon: Any) -> None:
    with daemon.connect() as client, pytest.raises(RequestRefused, match="damaged"):
        put(client, 0, CONTENT[::-1])
    with daemon.connect() as client:
        assert put(client, 0, b"") == 0
