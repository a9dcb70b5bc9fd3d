"""Checkpoints on disk: verified, or passed over with a reason."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from dtd.checkpoint.format import (
    MANIFEST_FILE,
    JobFolder,
    checkpoint_name,
    encode_manifest,
    newest_complete,
    verify,
)
from dtd.checkpoint.retention import Rules
from dtd.checkpoint.tensor_file import MODEL_FILE, OPTIMIZER_FILE
from dtd.checkpoint.writer import CheckpointWriter
from dtd.errors import CheckpointError


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "job"


def flip(file: Path, at: int = -1) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 0x10
    file.write_bytes(content)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-3])


def edit_step(path: Path) -> None:
    content = json.loads((path / MANIFEST_FILE).read_text())
    content["step"] = 99
    (path / MANIFEST_FILE).write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda p: truncate(p / OPTIMIZER_FILE), "bytes, not .*: torn"),
        (lambda p: (p / MODEL_FILE).unlink(), "model.safetensors cannot be read"),
        (lambda p: (p / MANIFEST_FILE).unlink(), "manifest.json cannot be read"),
        (lambda p: truncate(p / MANIFEST_FILE), "is torn or is no manifest"),
        (lambda p: flip(p / MANIFEST_FILE, 40), "manifest.json"),
        (edit_step, "does not match its hash"),
        (lambda p: (p / MANIFEST_FILE).write_text("[]"), "is torn or is no manifest"),
        (lambda p: (p / MANIFEST_FILE).write_text("[" * 100_000), "is torn or is no manifest"),
        (lambda p: (p / MANIFEST_FILE).write_text('{"format": NaN}'), "NaN is no JSON number"),
        (
            lambda p: (p / MANIFEST_FILE).write_text('{"format": 4, "manifest_hash": ""}'),
            "has format 4, and this dtd reads up to 3",
        ),
        (lambda p: p.rename(p.with_name(checkpoint_name(1, 30))), "it was renamed"),
    ],
)
def test_the_newest_that_is_complete_is_found_and_others_are_explained(
    directory, damage, why, save_checkpoints
) -> None:
    save_checkpoints(directory, 10, 20)
    damage(directory / checkpoint_name(1, 20))
    told = []
    found = newest_complete(
        JobFolder(directory.parent, "job"), pass_over=lambda *one: told.append(one)
    )
    assert found.path == directory / checkpoint_name(1, 10)
    ((path, reason),) = told
    assert path.parent == directory
    assert re.search(why, reason)


def test_a_flipped_bit_is_found_where_every_byte_is_read(directory, save_checkpoints) -> None:
    (published,) = save_checkpoints(directory, 1)
    flip(published.path / MODEL_FILE)
    with pytest.raises(CheckpointError, match="does not match its hash: a bit flipped"):
        verify(published.path)


def test_generation_comes_before_step(directory, save_checkpoints, make_draft) -> None:
    save_checkpoints(directory, 50)
    writer = CheckpointWriter(directory, Rules(keep=9))
    writer.write(make_draft(40, generation=2))
    writer.publish({})
    writer.close()
    assert newest_complete(JobFolder(directory.parent, "job")).manifest.step == 40
    assert newest_complete(JobFolder(directory.parent, "job"), step=50).manifest.step == 50
    assert newest_complete(JobFolder(directory.parent, "job"), step=51) is None
    assert newest_complete(JobFolder(directory.parent, "other")) is None


def test_a_manifest_cannot_name_other_files(directory, save_checkpoints) -> None:
    (published,) = save_checkpoints(directory, 1)
    outside = replace(
        published.manifest, files={"../../secret": published.manifest.files[MODEL_FILE]}
    )
    (published.path / MANIFEST_FILE).write_bytes(encode_manifest(outside))
    with pytest.raises(CheckpointError, match=re.escape("lists ../../secret")):
        verify(published.path)
