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
import xxhash

from dtd.checkpoint.assemble import MOST_TRIES, FoundPart, assemble, settled
from dtd.checkpoint.format import (
    JobFolder,
    Manifest,
    encode_manifest,
    newest_complete,
    part_files,
    read_manifest,
    verify,
)
from dtd.checkpoint.tensor_file import (
    BLOCK_BYTES,
    MODEL_FILE,
    OPTIMIZER_FILE,
    FileMerge,
    TensorFile,
)
from dtd.errors import CheckpointError, PartsDiffer
from dtd.train.state.restore import read_stored
from tests.checkpoint_parts import Written, random_state, write_part

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


def rewritten(path: Path, file: str, name: str, at: int) -> None:
    """Flip a bit of a tensor in a part, and make hash and manifest fit."""
    with TensorFile(path / file) as tensors:
        start = tensors._starts[name] + at
    content = bytearray((path / file).read_bytes())
    content[start] ^= 1
    (path / file).write_bytes(content)
    manifest = read_manifest(path)
    info = replace(manifest.files[file], hash=xxhash.xxh3_128(content).hexdigest())
    edit(path, files={**manifest.files, file: info})


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


def test_a_whole_one_may_stay_in_its_file_until_it_is_divided(tmp_path: Path) -> None:
    path, _ = assemble(parts_of(tmp_path, STATE, (0, 2)), tmp_path / "job")
    own, mapped = read_stored(path), read_stored(path, mapped=True)
    assert own.tensors.keys() == mapped.tensors.keys()
    for name, tensor in mapped.tensors.items():
        assert torch.equal(tensor, own.tensors[name])
        divided = name.startswith(("model.", "optimizer."))
        assert lies_in_a_file(tensor) == (divided and tensor.numel() > 0), name
        assert not lies_in_a_file(own.tensors[name])


def test_the_pieces_of_a_part_stay_in_its_file(tmp_path: Path) -> None:
    (part,) = parts_of(tmp_path, STATE, (1,))
    stored = read_stored(part.path)
    pieces = [values for pieces in stored.pieces.values() for _, _, values in pieces]
    assert pieces
    assert all(lies_in_a_file(values) for values in pieces if values.numel())
    assert not any(lies_in_a_file(tensor) for tensor in stored.tensors.values())


def lies_in_a_file(tensor: torch.Tensor) -> bool:
    """Whether a tensor's memory is that of a mapped file of tensors."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        bounds, *_, name = line.split()
        start, stop = (int(bound, 16) for bound in bounds.split("-"))
        if start <= tensor.data_ptr() < stop:
            return name.endswith(".safetensors")
    return False


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


def test_a_mirror_that_differs_from_its_owner_is_named(tmp_path: Path) -> None:
    state = Written(
        tensors={"model.0.weight": torch.arange(8.0), "optimizer.0.exp_avg": torch.ones(8)},
        buckets=[[0]],
    )
    parts = parts_of(tmp_path, state, (0, 1, 2))
    rewritten(parts[1].path, OPTIMIZER_FILE, "optimizer.0.exp_avg", 0)  # element 2, also w0's
    with pytest.raises(CheckpointError, match=r"w0 and w1 have different values for elements 2 to"):
        assemble(parts, tmp_path / "job")
    assert not [*(tmp_path / "job").iterdir()]
    assemble([parts[0], parts[2]], tmp_path / "job")


def test_a_common_tensor_that_differs_is_named(tmp_path: Path) -> None:
    parts = parts_of(tmp_path, STATE, (0, 2))
    rewritten(parts[1].path, MODEL_FILE, "1.seen", 0)
    with pytest.raises(CheckpointError, match=r"w0 and w2 have different values .* 1.seen in mod"):
        assemble(parts, tmp_path / "job")


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


def test_parts_of_different_steps_are_not_assembled(tmp_path: Path) -> None:
    parts = [*parts_of(tmp_path, STATE, (0,)), *parts_of(tmp_path, STATE, (2,), step=41)]
    with pytest.raises(CheckpointError, match="w0 and w2 are of different steps"):
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
    ],
)
def test_a_damaged_part_is_not_assembled_and_not_the_newest(
    tmp_path: Path, damage: Any, why: str
) -> None:
    parts = parts_of(tmp_path, STATE, (0, 2))
    damage(parts[1].path)
    with pytest.raises(CheckpointError, match=why):
        assemble(parts, tmp_path / "job")
    assert why == "a bit flipped" or newest_complete(JobFolder(tmp_path, "w2")) is None
    assert newest_complete(JobFolder(tmp_path, "w0")).path == parts[0].path


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


def test_a_checkpoint_that_was_assembled_before_is_replaced(tmp_path: Path) -> None:
    parts = parts_of(tmp_path, STATE, (0, 2))
    path, _ = assemble(parts, tmp_path / "job")
    flip(path / MODEL_FILE)
    assemble(parts, tmp_path / "job")
    verify(path)
    assert [*(tmp_path / "job").iterdir()] == [path]


def trying(*wrong: str, needed: int = 2, names: str = "abc") -> tuple[list[str], list[str]]:
    """Which parts were tried together, and which were left out; wrong ones differ from all."""
    tried: list[str] = []

    def merge(without: frozenset[str]) -> str:
        left = [name for name in names if name not in without]
        tried.append("".join(left))
        if len(left) < needed:
            raise CheckpointError("these do not make the whole")
        for one in left:
            for other in left:
                if one < other and (one in wrong or other in wrong):
                    raise PartsDiffer(f"{one} and {other}", holders=(one, other))
        return "".join(left)

    _, without = settled(merge, names.index)
    return tried, sorted(without)


def test_the_less_trusted_of_two_is_left_out_first() -> None:
    assert trying("b") == (["abc", "ac"], ["b"])
    assert trying("a") == (["abc", "ac", "bc"], ["a"])
    assert trying("c", names="cab") == (["cab", "cb", "ab"], ["c"])


def test_nothing_that_goes_together_is_told_as_the_first_difference() -> None:
    with pytest.raises(PartsDiffer, match="a and b") as raised:
        trying("a", "b", "c")
    assert raised.value.holders == ("a", "b")


def test_tries_are_bounded() -> None:
    tried: list[frozenset[str]] = []

    def merge(without: frozenset[str]) -> None:
        tried.append(without)
        first, second, *_ = (name for name in "abcdefgh" if name not in without)
        raise PartsDiffer("they differ", holders=(first, second))

    with pytest.raises(PartsDiffer):
        settled(merge, "abcdefgh".index)
    assert len(tried) == MOST_TRIES
