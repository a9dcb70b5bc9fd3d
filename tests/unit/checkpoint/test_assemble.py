"""Assembling parts: what is damaged, missing or contradicts another part is found and named."""

from __future__ import annotations

import errno
import os
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dtd.checkpoint.assemble import FoundPart, assemble
from dtd.checkpoint.format import (
    Manifest,
    encode_manifest,
    newest_complete,
    part_files,
    read_manifest,
)
from dtd.checkpoint.tensor_file import (
    BLOCK_BYTES,
    MODEL_FILE,
    OPTIMIZER_FILE,
    FileMerge,
    HeldTensor,
    Part,
)
from dtd.errors import CheckpointError
from dtd.train.restore import read_stored
from tests.checkpoint_parts import Written, random_state, write_part
from tests.shards import held_shards

STATE = random_state(7)


def parts_of(here: Path, state: Written, ranks: tuple[int, ...], **fields: Any) -> list[FoundPart]:
    """Parts of these ranks of four, each mirrored once."""
    return [
        FoundPart(
            holder=f"w{rank}",
            path=write_part(here / f"w{rank}", state, rank, world_size=4, mirrors=1, **fields),
        )
        for rank in ranks
    ]


def edit(path: Path, **fields: Any) -> Manifest:
    manifest = replace(read_manifest(path), **fields)
    (path / "manifest.json").write_bytes(encode_manifest(manifest))
    return manifest


def test_an_assembled_checkpoint_is_an_ordinary_one(tmp_path: Path) -> None:
    path, manifest = assemble(parts_of(tmp_path, STATE, (0, 2)), tmp_path / "job")
    stored = read_stored(path)
    tensors = stored.tensors
    assert stored.manifest == manifest
    assert manifest.part is None
    assert "optimizer_shards" not in manifest.state
    assert tensors.keys() == STATE.tensors.keys()
    for name, tensor in STATE.tensors.items():
        assert torch.equal(tensors[name], tensor)
        assert tensors[name].dtype == tensor.dtype


def test_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    values = torch.zeros(3 << 20)
    state = Written(
        tensors={"model.0.weight": values, "optimizer.0.exp_avg": values}, buckets=[[0]]
    )
    parts = parts_of(tmp_path, state, (0, 1, 2, 3))
    tracemalloc.start()
    try:
        assemble(parts, tmp_path / "job")
        assert tracemalloc.get_traced_memory()[1] < 6 * BLOCK_BYTES < values.nbytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"job": "other"}, "w0 and w2 are of different jobs"),
        ({"identity": "other"}, "w0 and w2 are of different jobs"),
        ({"digest": "cd" * 16}, "w0 and w2 have different digests"),
        ({"world_size": 5}, "w0 and w2 were written by different worlds"),
        ({"state": {}}, "w0 and w2 have different metadata"),
    ],
)
def test_parts_of_different_checkpoints_are_not_assembled(
    tmp_path: Path, fields: dict[str, Any], why: str
) -> None:
    parts = parts_of(tmp_path, STATE, (0, 2))
    edit(parts[1].path, **fields)
    with pytest.raises(CheckpointError, match=why):
        assemble(parts, tmp_path / "job")


def test_parts_of_different_models_are_not_merged(tmp_path: Path) -> None:
    ours, theirs = (
        parts_of(tmp_path / "a", STATE, (0,)),
        parts_of(tmp_path / "b", random_state(8), (2,)),
    )
    files = [part_files(one.path, read_manifest(one.path), one.holder) for one in ours + theirs]
    with pytest.raises(CheckpointError, match=r"w0 and w2 list different tensors for model.saf"):
        FileMerge(MODEL_FILE, files)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda p: truncate(p / MODEL_FILE), "torn"),
        (lambda p: flip(p / OPTIMIZER_FILE), "a bit flipped"),
        (lambda p: (p / OPTIMIZER_FILE).unlink(), "cannot be read"),
        (lambda p: (p / "manifest.json").unlink(), "cannot be read"),
        (lambda p: edit(p, part=None), "format 3 without a part"),
        (lambda p: edit(p, format=2), "format 2 with a part"),
        (lambda p: edit(p, tensors=read_manifest(p).tensors[::-1]), "file by file"),
        (lambda p: edit(p, tensors=read_manifest(p).tensors[1:]), "has shards of model.0.weight"),
        (lambda p: edit(p, tensors=(*read_manifest(p).tensors, "task.x")), "lacks task.x"),
        (lambda p: edit(p, part=whole_claim(p)), "does not hold what its manifest lists"),
    ],
)
def test_a_damaged_part_is_not_assembled_and_not_the_newest(
    tmp_path: Path, damage: Any, why: str
) -> None:
    parts = parts_of(tmp_path, STATE, (0, 2))
    damage(parts[1].path)
    with pytest.raises(CheckpointError, match=why):
        assemble(parts, tmp_path / "job")
    assert why == "a bit flipped" or newest_complete(tmp_path, "w2") is None
    assert newest_complete(tmp_path, "w0").path == parts[0].path


def whole_claim(path: Path) -> Part:
    """The part of a manifest that claims to be all of the state."""
    part = read_manifest(path).part
    assert part is not None
    tensors = {
        name: HeldTensor(dtype=one.dtype, shape=one.shape, ranges=((0, one.elements),))
        for name, one in part.tensors.items()
        if one.elements
    }
    return Part(shards=held_shards(0, 1, 0), mirrors=0, tensors=part.tensors | tensors)


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: Any) -> None:
    parts = parts_of(tmp_path, STATE, (0, 2))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        CheckpointError, match=r"cannot be assembled in .*: No space left"
    ) as raised:
        assemble(parts, tmp_path / "job")
    assert "free space" in raised.value.remedy
    assert not [*(tmp_path / "job").iterdir()]
