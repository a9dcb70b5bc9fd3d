"""Collects the parts of a checkpoint that a job starts from, and assembles them on this disk.

A checkpoint of a sharded state is on several workers.  The coordinator names them, and gives a
ticket for each part; as few parts as possible are fetched from their data ports.  Blocking, on the
training thread, before a worker reports what it holds.
"""

from __future__ import annotations

import json
import queue
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from dtd.address import Address
from dtd.core.engine.shards import WHOLE, ShardSet
from dtd.errors import CheckpointError
from dtd.net.blocking_link import Connect
from dtd.net.fetch_client import FetchClient
from dtd.parts.cover import fewest, missing
from dtd.parts.tensor_file import FILES
from dtd.train.checkpoint.assemble import FoundPart, assemble
from dtd.train.checkpoint.drafts import Drafts
from dtd.train.checkpoint.format import MANIFEST_FILE, parse_name, read_manifest, verify
from dtd.train.record import GotOn
from dtd.wire import messages as m
from dtd.wire.greeting import DataCredential

log = structlog.get_logger()

PARTS_BACK_S: Final = 20.0
"""Longer than a worker's process takes to start: all of them do when a job ends."""

ASK_EVERY_S: Final = 1.0

ANSWER_WITHIN_S: Final = 60.0
"""Longer than a coordinator takes to start, and a worker to connect to it again."""

_MAX_NAME: Final = 64
_FETCHED: Final = ".fetched"


class PartRequests:
    """Asks the coordinator who has the parts of a checkpoint.

    Args:
        send: sends to the coordinator, on the event loop; lost while there is no connection.
        post: runs a function on the event loop, from any thread.
        clock: returns the time in seconds.
        wait: waits for so many seconds.
        answer_within_s: bound on the time until an answer.
    """

    def __init__(
        self,
        *,
        send: Callable[[m.Message], None],
        post: Callable[..., None],
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
        answer_within_s: float = ANSWER_WITHIN_S,
    ) -> None:
        self._send = send
        self._post = post
        self._clock = clock
        self._wait = wait
        self._answer_within_s = answer_within_s
        self._wanted: m.GetParts | None = None
        self._answers: queue.SimpleQueue[m.Parts] = queue.SimpleQueue()

    def ask(self, job: str, step: int) -> m.Parts:
        """Return the coordinator's answer; waits for one that is away, in a thread that may wait.

        Workers that have missing parts may be about to come back: it waits for them for a while.

        Args:
            job: the job that the checkpoint is of.
            step: committed steps in it; 0 for the newest.

        Raises:
            CheckpointError: the coordinator does not answer.
        """
        deadline_s = self._clock() + PARTS_BACK_S
        while True:
            answer = self._answer(m.GetParts(job=job, step=step))
            if not answer.missing or self._clock() >= deadline_s:
                return answer
            self._wait(ASK_EVERY_S)

    def received(self, answer: m.Parts) -> None:
        """The coordinator has answered; called on the event loop."""
        wanted = self._wanted
        if wanted is not None and (wanted.job, wanted.step) == (answer.job, answer.step):
            self._wanted = None
            self._answers.put(answer)

    def ask_again(self) -> None:
        """The connection is a new one: nothing asked on the last one will be answered."""
        if self._wanted is not None:
            self._send(self._wanted)

    def _answer(self, request: m.GetParts) -> m.Parts:
        answers: queue.SimpleQueue[m.Parts] = queue.SimpleQueue()  # no late one of another request
        self._post(self._want, request, answers)
        try:
            return answers.get(timeout=self._answer_within_s)
        except queue.Empty:
            self._post(self._give_up, answers)
            raise CheckpointError(
                f"the coordinator has not told within {self._answer_within_s:g} s which workers"
                f" have the checkpoint of {request.job}",
                remedy="check the coordinator and the network to it, and submit the job again",
            ) from None

    def _want(self, request: m.GetParts, answers: queue.SimpleQueue[m.Parts]) -> None:
        self._wanted, self._answers = request, answers
        self._send(request)

    def _give_up(self, answers: queue.SimpleQueue[m.Parts]) -> None:
        if self._answers is answers:
            self._wanted = None


def collect(
    answer: m.Parts, own: FoundPart | None, directory: Path, *, connect: Connect, got_on: GotOn
) -> Path:
    """Assemble the checkpoint that the coordinator's answer is about.

    Args:
        answer: who has which part.
        own: the part on this disk, with this worker's name; None if it has none.
        directory: gets the assembled checkpoint.
        connect: makes connections.
        got_on: called as bytes are received and read.

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
        parts = _gathered(answer, own, place, connect, got_on)
        path = _whole(parts, directory, got_on)
    except OSError as error:
        raise CheckpointError(
            f"parts of a checkpoint cannot be stored in {place}: {error.strerror or error}",
            remedy="free space there",
        ) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)
    log.info("checkpoint_assembled", path=str(path), parts=[one.holder for one in parts])
    return path


def _gathered(
    answer: m.Parts, own: FoundPart | None, place: Path, connect: Connect, got_on: GotOn
) -> list[FoundPart]:
    """As few parts as make the whole, all on this disk; holders that fail are passed over."""
    here: dict[str, ShardSet] = {}
    fetched: dict[str, FoundPart] = {}
    left = [one for one in answer.holders if own is None or one.name != own.holder]
    if own is not None and (mine := read_manifest(own.path)).digest == answer.digest:
        here, fetched = {own.holder: mine.shards}, {own.holder: own}
    failure: CheckpointError | None = None
    while True:
        held = here | {one.name: _part(one) for one in left}
        lacks = missing([*held.values()])
        if lacks:
            raise failure or CheckpointError(f"the workers that are left lack the shards {lacks}")
        names = [[*held][index] for index in fewest([*held.values()])]
        for one in [one for one in left if one.name in names and one.name not in fetched]:
            part = _fetched(one, answer.digest, place, connect, got_on)
            if isinstance(part, CheckpointError):
                log.warning("part_not_fetched", worker=one.name, error=part.message)
                failure = part
                left.remove(one)
                break
            fetched[one.name] = part
        else:
            return [fetched[name] for name in names]


def _part(one: m.PartHolder) -> ShardSet:
    return ShardSet.from_wire(one.part) if one.part else WHOLE


def _whole(parts: list[FoundPart], directory: Path, got_on: GotOn) -> Path:
    """Assemble the parts; what a job without shards has saved is whole already."""
    path = parts[0].path
    if read_manifest(path).part is not None:
        return assemble(parts, directory, got_on)[0]
    drafts, target = Drafts(directory), directory / path.name
    drafts.clear(path.name, target)
    path.rename(target)
    return target


def _fetched(
    one: m.PartHolder, digest: str, place: Path, connect: Connect, got_on: GotOn
) -> FoundPart | CheckpointError:
    """Fetch a part with all its files; or return why the holder's cannot be used."""
    try:
        return _delivered(one, digest, place, connect, got_on)
    except CheckpointError as error:
        about = f"the part of {one.name} cannot be used: {error.message}"
        return type(error)(about, remedy=error.remedy)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        # `verify` trusts a manifest that matches its own hash, and this one is a stranger's.
        about = f"the part of {one.name} cannot be used: its manifest is broken: {error}"
        return CheckpointError(about)


def _delivered(
    one: m.PartHolder, digest: str, place: Path, connect: Connect, got_on: GotOn
) -> FoundPart:
    ticket = DataCredential(
        secret=one.ticket_key, scope=one.resource, expires_unix_s=one.ticket_expires_unix_s
    )
    name = one.resource.rpartition("/")[2]
    if len(name) > _MAX_NAME or parse_name(name) is None:
        raise CheckpointError(f"{name[:_MAX_NAME]!r} names no checkpoint")
    path = place / str(len([*place.glob("*")])) / name
    path.mkdir(parents=True)
    address = Address(one.host, one.port)
    with FetchClient(address, one.resource, ticket, connect=connect) as client:
        (path / MANIFEST_FILE).write_text(json.dumps(client.manifest))
        manifest = read_manifest(path)
        reported = _part(one)
        if manifest.digest != digest:
            raise CheckpointError("it has another state than the worker has reported")
        if manifest.shards != reported:
            raise CheckpointError(
                f"it has {manifest.shards} of the shards, and was reported as {reported}"
            )
        for file in FILES:
            if file in manifest.files:
                client.fetch(file, path / file, on_bytes=lambda _got, _of: got_on())
    verify(path, got_on)
    return FoundPart(holder=one.name, path=path)
