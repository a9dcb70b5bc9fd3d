"""Fetching weights from the workers that hold them: of a checkpoint, whole or in parts, or a model.

A worker with the whole delivers its files.  Of a checkpoint of a sharded state, each worker has a
part: as few of them as possible are fetched, compared where they overlap, and merged.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from xxhash import xxh3_64_hexdigest

from dtd.checkpoint.assemble import gathered, settled
from dtd.checkpoint.choice import part_of
from dtd.checkpoint.tensor_file import AVERAGES_FILE, MODEL_FILE, FileMerge, Part, PartFiles
from dtd.errors import CheckpointError, UsageError
from dtd.net.clients.blocking_link import Connect
from dtd.net.clients.fetch_client import FetchClient, addresses_in, file_digest
from dtd.text.shown import one_line
from dtd.wire.session import DataCredential

Checkpoint = Mapping[str, Any]
Say = Callable[[str], None]
"""Tells a user, or a log, something that is no failure of the whole."""

_PARTS: Final = ".parts"
"""A directory beside the target, with fetched bytes of parts that are not merged yet."""


def fetch_whole(one: Checkpoint, directory: Path, connect: Connect) -> list[Path]:
    """Fetch the weights, and their averages if there are any, from a worker that has the whole.

    A worker may have all shards of a sharded state: their tensors are flat, and get their shapes.

    Raises:
        CheckpointError: the worker does not deliver them.
        UsageError: the directory has others.
        OSError: it cannot be written to.
    """
    with _opened(one, connect) as client:
        if client.manifest.get("part") is None:
            return _fetch_files(client, directory)
    return merge_parts([_fetch_part(one, directory, connect)], directory)


def _fetch_files(client: FetchClient, directory: Path) -> list[Path]:
    targets = [directory / name for name in _wanted(client.manifest)]
    for target in targets:
        if not target.exists():
            client.fetch(target.name, target)
        elif file_digest(target) != client.digest_of(target.name):
            raise _holds_others(target)
    return targets


def fetch_parts(
    holders: Sequence[Checkpoint], directory: Path, connect: Connect, said: set[str], say: Say
) -> list[Path]:
    """Fetch parts of the weights, and of their averages, from several workers, and merge them.

    Bytes fetched before a failure are kept beside the target.  `said` has the failures that a user
    has been shown; each is shown once.

    Raises:
        CheckpointError: the delivered parts do not make the whole.
        UsageError: the directory has others.
        OSError: it cannot be written to.
    """
    known = {one["worker"]: one for one in holders}
    left = {name: part_of(one) for name, one in known.items()}

    def tell(name: str, error: CheckpointError) -> None:
        if error.message not in said:
            say(f"{name}: {error.message}")
        said.add(error.message)

    def merged(without: frozenset[str]) -> list[Path]:
        parts = gathered(
            left, without, lambda name: _fetch_part(known[name], directory, connect), tell
        )
        targets = merge_parts(parts, directory)
        names = [one.holder for one in parts]
        unconfirmed = ", ".join(name for name in names if not known[name]["digest"])
        say(
            f"merged from the parts of {', '.join(names)}"
            + (f", which differ from those of {', '.join(sorted(without))}" if without else "")
            + (f"; saved without a digest: those of {unconfirmed}" if unconfirmed else "")
        )
        return targets

    trusted = sorted(holders, key=lambda one: (not one["verified"], not one["digest"]))
    return settled(merged, [one["worker"] for one in trusted].index)[0]


def merge_parts(parts: Sequence[PartFiles], directory: Path) -> list[Path]:
    """Write the weights, and their averages if there are any, of parts that make the whole.

    Raises:
        CheckpointError: they do not.
        UsageError: the directory has others.
        OSError: it cannot be written to.
    """
    (directory / _PARTS).mkdir(exist_ok=True)
    held = parts[0].directory
    names = [name for name in (MODEL_FILE, AVERAGES_FILE) if (held / name).exists()]
    targets = [_merge(name, parts, directory) for name in names]
    shutil.rmtree(directory / _PARTS)
    return targets


def _fetch_part(one: Checkpoint, directory: Path, connect: Connect) -> PartFiles:
    with _opened(one, connect) as client:
        place = directory / _PARTS / xxh3_64_hexdigest(f"{one['digest']} {one['worker']}".encode())
        place.mkdir(parents=True, exist_ok=True)
        for name in _wanted(client.manifest):
            target = place / name
            if not (target.exists() and file_digest(target) == client.digest_of(name)):
                client.fetch(name, target)
        part = Part.from_mapping(client.manifest.get("part"))
        tensors = _tensors(client.manifest)
        if part.shards != part_of(one):
            raise CheckpointError(
                f"its checkpoint of step {one['step']} has {part.shards} of the shards, and was"
                f" reported as {part_of(one)}",
                remedy=f"check that worker: {one['directory']} there is not what the job saved",
            )
        return PartFiles(holder=one["worker"], directory=place, tensors=tensors, part=part)


def _tensors(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    listed = manifest.get("tensors")
    if not isinstance(listed, list) or len({*map(str, listed)}) != len(listed):
        raise CheckpointError("its manifest does not list the tensors of the checkpoint")
    return tuple(map(str, listed))


def _merge(name: str, parts: Sequence[PartFiles], directory: Path) -> Path:
    target, fresh = directory / name, directory / _PARTS / name
    fresh.unlink(missing_ok=True)
    with FileMerge(name, parts) as merge:
        written = merge.write(fresh)
    if target.exists() and file_digest(target) != written.hash:
        raise _holds_others(target)
    fresh.replace(target)
    return target


def _opened(one: Checkpoint, connect: Connect) -> FetchClient:
    """The checkpoint, open at its holder."""
    resource = f"checkpoint/{one.get('folder', one['job'])}/{one['name']}"
    ticket = DataCredential(
        secret=one["ticket_key"], scope=resource, expires_s=one["ticket_expires_s"]
    )
    client = FetchClient(addresses_in(one), resource, ticket, connect=connect)
    offered = client.manifest.get("digest")
    if offered != one["digest"]:
        client.close()
        said = "all ranks agreed on" if one["verified"] else "was reported as"
        raise CheckpointError(
            f"its checkpoint of step {one['step']} has the digest {one_line(str(offered))}, and"
            f" {said} {one['digest']}",
            remedy=f"check that worker: {one['directory']} there is not what the job saved",
        )
    return client


def _wanted(manifest: Mapping[str, Any]) -> list[str]:
    averages = [AVERAGES_FILE] if AVERAGES_FILE in manifest.get("files", {}) else []
    return [MODEL_FILE, *averages]


def _holds_others(target: Path) -> UsageError:
    return UsageError(
        f"{target} exists and holds other weights",
        remedy="name another directory: dtdctl fetch JOB DIR",
    )


def fetch_model(one: Checkpoint, directory: Path, connect: Connect) -> list[Path]:
    """Fetch the files of a registered version from a worker that keeps a copy.

    Raises:
        CheckpointError: the worker does not deliver them.
        UsageError: the directory has others.
        OSError: it cannot be written to.
    """
    ticket = DataCredential(
        secret=one["ticket_key"],
        scope=one["resource"],
        expires_s=one["ticket_expires_s"],
    )
    with FetchClient(addresses_in(one), one["resource"], ticket, connect=connect) as client:
        return _fetch_files(client, directory)
