"""Copies of registered models on this worker's disk: made, described, opened for others, deleted.

    <state directory>/models/<version>/
        model.safetensors        weights
        ema.safetensors          their averages, where a job takes them
        record.json              size and hashes of these files

A copy is made of a checkpoint on this disk, by a link where possible, or fetched from workers that
have a copy, the checkpoint, or its parts.  It is a directory of its own, so neither retention nor
the deletion of the job touches it.  Only directories that are called as a version are ever removed.
Blocking; runs in a thread of its own (`PinnedModels`).
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import queue
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from dtd.checkpoint.fetch import fetch_model, fetch_parts, fetch_whole, merge_parts
from dtd.checkpoint.format import TEMPORARY, parse_name, part_files, read_manifest, verify
from dtd.checkpoint.tensor_file import AVERAGES_FILE, MODEL_FILE
from dtd.errors import CheckpointError, DtdError, RequestRefused
from dtd.host.durable import make_directory, sync_directory, synced
from dtd.net.clients.blocking_link import Connect
from dtd.net.clients.fetch_client import file_digest
from dtd.net.data_port.resources import Resource, file_blob
from dtd.registry import MOST_OF_A_WORKER
from dtd.text.json_reader import read_json
from dtd.text.shown import one_line
from dtd.wire import messages as m
from dtd.worker.files.checkpoints import named_checkpoint

log = structlog.get_logger()

MODELS: Final = "models"
"""Name of the directory in a state directory."""
RECORD: Final = "record.json"
PREFIX: Final = "model/"
_FILES: Final = (MODEL_FILE, AVERAGES_FILE)
_VERSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\.v\d{1,10}\.[0-9a-f]{12}")
_READ_BYTES: Final = 1 << 20
_MAX_RECORD_BYTES: Final = 64 * 1024

Attempt = Callable[[Path], object]
"""Puts a version's files into a directory."""


def held(place: Path) -> tuple[str, ...]:
    """The versions whose files are here with the sizes that were recorded."""
    if not place.is_dir():
        return ()
    found = [path for path in sorted(place.iterdir()) if _VERSION.fullmatch(path.name)]
    return tuple(path.name for path in found if _is_complete(path))[:MOST_OF_A_WORKER]


def remove_drafts(place: Path) -> None:
    """Remove files that an earlier process has left half made or half removed."""
    for path in place.glob(f"{TEMPORARY}*"):
        shutil.rmtree(path, ignore_errors=True)


def open_model(place: Path, resource: str) -> Resource:
    """The files of a version, for others to fetch.

    Raises:
        CheckpointError: there is no copy here.
    """
    version = resource.removeprefix(PREFIX)
    path = place / version
    if not _VERSION.fullmatch(version) or not (path / RECORD).is_file():
        raise CheckpointError(
            f"{resource} is not on this worker's disk", remedy="see `dtdctl models show`"
        )
    return Resource(
        manifest=(path / RECORD).read_bytes(),
        blobs=[file_blob(path / name) for name in _FILES if (path / name).is_file()],
    )


def drop_model(place: Path, version: str) -> None:
    """Delete the copy of a version, if there is one.

    Raises:
        OSError: it cannot be deleted.
    """
    path = place / version
    if _VERSION.fullmatch(version) and path.is_dir() and not path.is_symlink():
        doomed = path.with_name(f"{TEMPORARY}{version}-deleted")
        path.rename(doomed)
        shutil.rmtree(doomed)


def pin_model(
    order: m.PinModel, place: Path, *, worker: str, checkpoints: Sequence[Path], connect: Connect
) -> tuple[m.ModelFile, ...]:
    """Make a copy of a version, durable when this returns; one that is here is left as it is.

    Raises:
        CheckpointError: no source has delivered the registered files, or there is no room.
    """
    if not _VERSION.fullmatch(order.version):
        raise CheckpointError(f"{order.version[:100]!r} is not called as a version")
    target, draft = place / order.version, place / f"{TEMPORARY}{order.version}"
    try:
        if _is_complete(target) and order.files in ((), _recorded(target)):
            return _recorded(target)
        make_directory(place)
        attempts = list(_attempts(order, worker=worker, checkpoints=checkpoints, connect=connect))
        files = _first_success(attempts, draft, order.files)
        drop_model(place, order.version)
        draft.rename(target)
        sync_directory(place)
        return files
    except OSError as error:
        raise CheckpointError(
            f"{order.version} cannot be kept in {place}: {error.strerror or error}",
            remedy="free space there",
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


# --- sources of the files ------------------------------------------------------------------------


def _attempts(
    order: m.PinModel, *, worker: str, checkpoints: Sequence[Path], connect: Connect
) -> Iterator[Attempt]:
    """Ways to the files, the cheapest first."""
    copies = [one for one in order.sources if one.resource.startswith(PREFIX)]
    others = [one for one in order.sources if one not in copies]
    wholes = [one for one in others if not one.part]
    for one in wholes:
        if one.name == worker:
            yield functools.partial(_link_own, one, checkpoints)
    for one in copies:
        yield functools.partial(fetch_model, _listed(one), connect=connect)
    for one in wholes:
        if one.name != worker:
            yield functools.partial(fetch_whole, _listed(one), connect=connect)
    parts = [_listed(one) for one in others if one.part]
    if parts:
        yield functools.partial(fetch_parts, parts, connect=connect, said=set(), say=_note)


def _first_success(
    attempts: Sequence[Attempt], draft: Path, expected: tuple[m.ModelFile, ...]
) -> tuple[m.ModelFile, ...]:
    failure: DtdError = CheckpointError("no connected worker has its files")
    for attempt in attempts:
        shutil.rmtree(draft, ignore_errors=True)
        make_directory(draft)
        try:
            attempt(draft)
            files = _record(draft)
        except (CheckpointError, RequestRefused) as error:
            _note(error.message)
            failure = error
            continue
        if expected in ((), files):
            return files
        failure = CheckpointError("a source has other files than were registered")
        _note(failure.message)
    raise failure


def _link_own(source: m.ModelSource, checkpoints: Sequence[Path], draft: Path) -> None:
    """Take the files of a checkpoint on this disk; another file system gets a copy.

    Of a sharded state of which it has all shards, tensors get their shapes.
    """
    path = named_checkpoint(checkpoints, source.resource)
    manifest = read_manifest(path)
    if manifest.digest != source.digest:
        raise CheckpointError(f"{path} has another state than was reported")
    if manifest.part is not None:
        verify(path)
        merge_parts([part_files(path, manifest, source.name)], draft)
        return
    for name in _FILES:
        if name not in manifest.files:
            continue
        try:
            os.link(path / name, draft / name)
        except OSError:
            shutil.copyfile(path / name, draft / name)
        if file_digest(draft / name) != manifest.files[name].hash:
            raise CheckpointError(f"{path / name} does not match the hash in its manifest")


def _listed(source: m.ModelSource) -> dict[str, Any]:
    """A source as the coordinator lists a checkpoint's holder."""
    folder, _, name = source.resource.rpartition("/")
    return {
        "job": "",
        "worker": source.name,
        "data_host": source.host,
        "data_port": source.port,
        "data_others": list(source.others),
        "resource": source.resource,
        "folder": folder.rpartition("/")[2],
        "name": name,
        "directory": source.resource,
        "step": (parse_name(name) or (0, 0))[1],
        "digest": source.digest,
        "verified": bool(source.digest),
        "part": list(source.part),
        "ticket_key": source.ticket_key,
        "ticket_expires_s": source.ticket_expires_s,
    }


def _note(text: str) -> None:
    log.info("model_source", text=text)


# --- the record ----------------------------------------------------------------------------------


def _record(draft: Path) -> tuple[m.ModelFile, ...]:
    """Describe the files of a draft, and have them on the disk."""
    files: dict[str, dict[str, Any]] = {}
    for name in _FILES:
        if (draft / name).exists():
            files[name] = _described(draft / name)
    with synced((draft / RECORD).open("w")) as file:
        json.dump({"files": files}, file)
    sync_directory(draft)
    return _recorded(draft)


def _described(path: Path) -> dict[str, Any]:
    content = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            content.update(piece)
        os.fsync(file.fileno())
    size_bytes = path.stat().st_size
    return {
        "hash": file_digest(path),
        "size_bytes": size_bytes,
        "sha256": content.hexdigest(),
    }


def _recorded(path: Path) -> tuple[m.ModelFile, ...]:
    """The files that the record of a copy lists."""
    try:
        with (path / RECORD).open("rb") as file:
            record = file.read(_MAX_RECORD_BYTES)
        files = read_json(record, max_bytes=_MAX_RECORD_BYTES)["files"]
        return tuple(
            m.ModelFile(
                name=name,
                size_bytes=int(files[name]["size_bytes"]),
                sha256=str(files[name]["sha256"]),
            )
            for name in _FILES
            if name in files
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path / RECORD} is damaged: {error}") from None


def _is_complete(path: Path) -> bool:
    try:
        files = _recorded(path)
        return bool(files) and all(
            (path / one.name).stat().st_size == one.size_bytes for one in files
        )
    except (OSError, CheckpointError):
        return False


# --- the coordinator's orders, one after the other -----------------------------------------------


class PinnedModels:
    """Carries out PIN_MODEL and UNPIN_MODEL.

    Args:
        connect: tells how to reach other workers, encrypted or not.
        send: sends to the coordinator, from any thread; lost while there is no connection.
    """

    def __init__(
        self,
        place: Path,
        *,
        worker: str,
        checkpoints: Callable[[], Sequence[Path]],
        connect: Callable[[bool], Connect],
        send: Callable[[m.Message], None],
    ) -> None:
        self._place = place
        self._worker = worker
        self._checkpoints = checkpoints
        self._connect = connect
        self._send = send
        self._orders: queue.SimpleQueue[m.Message] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def order(self, message: m.Registered | m.PinModel | m.UnpinModel) -> None:
        """Carry out the coordinator's order, soon; after REGISTERED report the copies here."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="models", daemon=True)
            self._thread.start()
        self._orders.put(message)

    def _work(self) -> None:
        remove_drafts(self._place)
        while True:
            message = self._orders.get()
            try:
                answer = self._carried_out(message)
            except OSError as error:
                log.warning("model_not_deleted", error=str(error))
                answer = m.ModelsHeld(versions=held(self._place))
            self._send(answer)

    def _carried_out(self, message: m.Message) -> m.Message:
        if isinstance(message, m.PinModel):
            return self._pinned(message)
        if isinstance(message, m.UnpinModel):
            drop_model(self._place, message.version)
            log.info("model_dropped", version=message.version)
        return m.ModelsHeld(versions=held(self._place))

    def _pinned(self, order: m.PinModel) -> m.ModelPinned:
        try:
            files = pin_model(
                order,
                self._place,
                worker=self._worker,
                checkpoints=self._checkpoints(),
                connect=self._connect(order.encrypted),
            )
        except DtdError as error:
            log.warning("model_not_pinned", version=order.version, reason=error.message)
            return m.ModelPinned(version=order.version, reason=one_line(error.message))
        log.info("model_pinned", version=order.version)
        return m.ModelPinned(version=order.version, files=files)
