"""Checkpoints that are written in the background and become visible whole."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import dtd.checkpoint.writer as writer_module
from dtd.checkpoint.drafts import Drafts
from dtd.checkpoint.format import PART_FORMAT, checkpoint_name, list_checkpoints, verify
from dtd.checkpoint.retention import Rules
from dtd.checkpoint.tensor_file import MODEL_FILE, Part
from dtd.checkpoint.writer import CheckpointWriter, Failure, Published
from tests.shards import held_shards


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "job"


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_published_checkpoint_verifies_and_is_plain_safetensors(
    directory, save_checkpoints
) -> None:
    (published,) = save_checkpoints(directory, 5, metrics={5: {"loss": 0.25}})
    assert isinstance(published, Published)
    assert names(directory) == ["g000001-s000000005"]
    found = verify(published.path)
    assert found == published.manifest
    assert found.metrics == {"loss": 0.25}
    assert published.write_s > 0
    assert published.size_bytes == sum(f.stat().st_size for f in published.path.iterdir())
    loaded = safetensors.numpy.load_file(published.path / MODEL_FILE)
    np.testing.assert_array_equal(loaded["w"], np.arange(6).reshape(2, 3))


def test_a_part_takes_the_place_of_another_part_of_the_same_state(directory, make_draft) -> None:
    """The members of a generation may have other ranks than those that agreed on the state."""
    writer = CheckpointWriter(directory, Rules(keep=3))
    draft = make_draft(1)
    for rank in range(2):
        part = Part(shards=held_shards(rank, 2, 0), mirrors=0, tensors={})
        manifest = replace(draft.manifest, format=PART_FORMAT, part=part)
        writer.write(replace(draft, manifest=manifest))
        writer.publish({})
        writer.flush()
        (published,) = writer.finished()
        assert isinstance(published, Published)
        assert verify(published.path).shards == published.manifest.shards == part.shards
    writer.close()


def test_nothing_is_visible_before_it_is_agreed_on(directory, make_draft) -> None:
    writer = CheckpointWriter(directory, Rules(keep=3))
    writer.write(make_draft(1))
    writer.flush()
    assert list_checkpoints(directory.parent, "job") == []
    assert len(names(directory)) == 1
    writer.discard()
    writer.publish({})
    writer.flush()
    assert names(directory) == []
    writer.write(make_draft(2))
    writer.close()
    assert names(directory) == []


def test_leftovers_of_earlier_generations_are_removed(directory, make_draft) -> None:
    for name in (".tmp-g000001-s000000003-77", ".tmp-g000002-s000000003-78", "notes"):
        (directory / name).mkdir(parents=True)
    writer = CheckpointWriter(directory, Rules(keep=3))
    writer.write(make_draft(9, generation=2))
    writer.publish({})
    writer.close()
    assert names(directory) == [
        ".tmp-g000002-s000000003-78",
        "g000002-s000000009",
        "notes",
    ]


def test_a_disk_error_is_a_failure_not_an_exception(tmp_path, save_checkpoints) -> None:
    (tmp_path / "job").write_text("a file where the directory should be")
    (failure,) = save_checkpoints(tmp_path / "job", 1)
    assert isinstance(failure, Failure)
    assert failure.name == checkpoint_name(1, 1)
    assert "Error" in failure.reason


@pytest.mark.parametrize("told", [False, True])
def test_one_whose_metrics_cannot_be_added_is_saved_all_the_same(
    directory, make_draft, monkeypatch, told
) -> None:
    """The disk is full when its evaluation is over."""
    writer = CheckpointWriter(directory, Rules(keep=3))
    writer.write(make_draft(5))
    writer.publish({})
    writer.flush()
    before = writer.finished() if told else []

    def is_full(*_call):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writer_module, "_write_synced", is_full)
    writer.add_metrics(checkpoint_name(1, 5), {"loss": 1.0})
    writer.close()
    published, failure = before + writer.finished()
    assert isinstance(published, Published)
    assert isinstance(failure, Failure)
    assert (failure.saved, "No space" in failure.reason) == (True, True)
    assert verify(published.path) == published.manifest


def test_two_writers_of_one_state_both_count_it_as_saved(directory, make_draft) -> None:
    writers = [CheckpointWriter(directory, Rules(keep=3)) for _ in range(3)]
    for writer in writers:
        writer.write(make_draft(5))
    for writer in writers:
        writer.publish({})
    for writer in writers:
        writer.close()
        (result,) = writer.finished()
        assert isinstance(result, Published)
        assert result.kept == (checkpoint_name(1, 5),)
        assert verify(result.path) == result.manifest
    assert names(directory) == [checkpoint_name(1, 5)]


def test_a_damaged_checkpoint_of_the_same_name_is_replaced(directory, save_checkpoints) -> None:
    (first,) = save_checkpoints(directory, 5)
    (first.path / MODEL_FILE).write_bytes(b"torn")
    (second,) = save_checkpoints(directory, 5)
    assert verify(second.path) == first.manifest
    assert names(directory) == [checkpoint_name(1, 5)]


NAME = checkpoint_name(2, 7)


def test_a_living_writers_draft_stays_and_a_dead_ones_goes(tmp_path) -> None:
    living, dead, cleaner = Drafts(tmp_path), Drafts(tmp_path), Drafts(tmp_path)
    kept, gone = living.make(NAME), dead.make(NAME)
    os.close(dead._locks.pop(NAME))  # as the system does when a process ends
    cleaner.remove_leftovers(2)
    assert names(tmp_path) == sorted([kept.name, gone.name])  # this generation's are not old
    cleaner.remove_leftovers(3)
    assert names(tmp_path) == [kept.name]
    living.remove(NAME)
    assert names(tmp_path) == []
