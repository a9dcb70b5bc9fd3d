"""Parts of a checkpoint from which a job starts, fetched from others and assembled on this disk.

A checkpoint of a sharded state is on several workers.  The coordinator names them, and gives a
ticket for each part; as few parts as possible are fetched from their data ports.  Where two of
them differ, others are fetched in their place.  Blocking, on the training thread, before a worker
reports what it holds.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import structlog

from dtd.checkpoint.assemble import FoundPart, assemble, gathered, settled
from dtd.checkpoint.drafts import Drafts
from dtd.checkpoint.format import (
    MANIFEST_FILE,
    Progress,
    read_manifest,
    verify,
)
from dtd.checkpoint.tensor_file import FILES
from dtd.engine.shards import WHOLE, ShardSet
from dtd.errors import CheckpointError, PartsDiffer
from dtd.net.addresses.routes import addresses
from dtd.net.clients.blocking_link import Connect
from dtd.net.clients.fetch_client import FetchClient
from dtd.wire import messages as m
from dtd.wire.session import DataCredential
from dtd.worker.control import Requests

log = structlog.get_logger()

PARTS_BACK_S: Final = 20.0
"""Longer than a worker's process takes to start: all of them do when a job ends."""

ASK_EVERY_S: Final = 1.0

ANSWER_WITHIN_S: Final = 60.0
"""Longer than a coordinator takes to start, and a worker to connect to it again."""

_FETCHED: Final = ".fetched"


def ask_for_parts(
    requests: Requests,
    job: str,
    step: int,
    *,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> m.Parts:
    """Ask the coordinator for the holders of a checkpoint's parts, with step 0 of the newest.

    Workers that have missing parts may be about to come back: it waits for them for a while.

    Raises:
        CheckpointError: the coordinator does not answer.
    """
    deadline_s = clock() + PARTS_BACK_S
    while True:
        try:
            answer, _ = requests.ask(m.GetParts(job=job, step=step), timeout_s=ANSWER_WITHIN_S)
        except TimeoutError:
            raise CheckpointError(
                f"the coordinator has not told within {ANSWER_WITHIN_S:g} s which workers have the"
                f" checkpoint of {job}",
                remedy="check the coordinator and the network to it, and submit the job again",
            ) from None
        assert isinstance(answer, m.Parts)
        if not answer.missing or clock() >= deadline_s:
            return answer
        wait(ASK_EVERY_S)


def collect(
    answer: m.Parts, own: FoundPart | None, directory: Path, *, connect: Connect, progress: Progress
) -> Path:
    """Assemble the checkpoint that the coordinator's answer is about.

    Raises:
        CheckpointError: parts are missing or damaged, their holders do not deliver them, or there
            is no room.
    """
    if answer.missing:
        raise CheckpointError(
            f"no connected worker has the shards {answer.missing}",
            remedy="start these workers, or name an earlier checkpoint: --resume-from JOB@STEP",
        )
    place = directory / _FETCHED
    try:
        gathering = _Gathering(answer, own, place, connect, progress)
        (path, parts), without = settled(
            lambda without: gathering.assembled(directory, without), gathering.distrust
        )
    except OSError as error:
        raise CheckpointError(
            f"parts of a checkpoint cannot be stored in {place}: {error.strerror or error}",
            remedy="free space there",
        ) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)
    holders = [one.holder for one in parts]
    log.info("checkpoint_assembled", path=str(path), parts=holders, left_out=sorted(without))
    return path


class _Gathering:
    """Parts of one checkpoint that have been fetched, and their holders that have not failed."""

    def __init__(
        self,
        answer: m.Parts,
        own: FoundPart | None,
        place: Path,
        connect: Connect,
        progress: Progress,
    ) -> None:
        self._digest, self._place = answer.digest, place
        self._connect, self._progress = connect, progress
        self._holders = {one.name: one for one in answer.holders}
        self._left = {one.name: _part(one) for one in answer.holders}
        self._parts: dict[str, FoundPart] = {}
        if own is not None:
            self._add_own(own)
        self._order = [*self._left]

    def _add_own(self, own: FoundPart) -> None:
        """Take this worker's part, before all others, if it is of that checkpoint."""
        manifest = read_manifest(own.path)
        self._left.pop(own.holder, None)
        listed = self._holders.get(own.holder)
        belongs = listed is not None and listed.resource.rpartition("/")[2] == own.path.name
        if manifest.digest == self._digest if manifest.digest else belongs:
            self._left = {own.holder: manifest.shards, **self._left}
            self._parts[own.holder] = own

    def assembled(
        self, directory: Path, without: frozenset[str]
    ) -> tuple[Path, Sequence[FoundPart]]:
        """Fetch and assemble as few parts as make the whole, none of them of these workers.

        Raises:
            PartsDiffer: two of them contradict each other.
            CheckpointError: the others do not make the whole, or there is no room.
        """
        parts = gathered(self._left, without, self._fetched, _tell)
        try:
            path = _whole(parts, directory, self._progress)
        except PartsDiffer as error:
            log.warning("parts_differ", workers=list(error.holders), error=error.message)
            raise
        return path, parts

    def distrust(self, name: str) -> tuple[bool, int]:
        """Order workers: parts on whose digest no ring has agreed come last, then the list's."""
        return not read_manifest(self._parts[name].path).digest, self._order.index(name)

    def _fetched(self, name: str) -> FoundPart:
        if name not in self._parts:
            one = self._holders[name]
            self._parts[name] = _fetched(
                one, self._digest, self._place, self._connect, self._progress
            )
        return self._parts[name]


def _tell(name: str, error: CheckpointError) -> None:
    log.warning("part_not_fetched", worker=name, error=error.message)


def _part(one: m.PartHolder) -> ShardSet:
    return ShardSet.from_wire(one.part) if one.part else WHOLE


def _whole(parts: list[FoundPart], directory: Path, progress: Progress) -> Path:
    """Assemble the parts; a checkpoint of a job without shards is whole already."""
    path = parts[0].path
    if read_manifest(path).part is not None:
        return assemble(parts, directory, progress)[0]
    drafts, target = Drafts(directory), directory / path.name
    drafts.clear(path.name, target)
    path.rename(target)
    return target


def _fetched(
    one: m.PartHolder, digest: str, place: Path, connect: Connect, progress: Progress
) -> FoundPart:
    """Fetch a part with all its files."""
    ticket = DataCredential(
        secret=one.ticket_key, scope=one.resource, expires_s=one.ticket_expires_s
    )
    name = one.resource.rpartition("/")[2]
    path = place / str(len([*place.glob("*")])) / name
    path.mkdir(parents=True)
    with FetchClient(addresses(one), one.resource, ticket, connect=connect) as client:
        (path / MANIFEST_FILE).write_text(json.dumps(client.manifest))
        manifest = read_manifest(path)
        reported = _part(one)
        uncompared = manifest.part is not None and not manifest.digest
        if manifest.digest != digest and not uncompared:
            raise CheckpointError(f"{one.name} has another state than it has reported")
        if manifest.shards != reported:
            raise CheckpointError(
                f"{one.name} has {manifest.shards} of the shards, and has reported {reported}"
            )
        for file in FILES:
            if file in manifest.files:
                client.fetch(file, path / file, on_bytes=lambda _got, _of: progress())
    verify(path, progress)
    return FoundPart(holder=one.name, path=path)
