"""Checkpoints of a sharded state: written in parts, loaded in parts, assembled for other jobs."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dtd.checkpoint.assemble import FoundPart, assemble
from dtd.checkpoint.format import list_checkpoints, read_manifest
from dtd.doctor.memory import Room
from dtd.engine.control_word import Flags
from dtd.engine.shards import united
from dtd.engine.step_protocol import FRESH
from dtd.errors import CheckpointError
from dtd.train.record import InitFrom
from dtd.train.state import saver
from dtd.train.state.restore import read_stored
from tests.shards import held_shards

pytestmark = pytest.mark.numerics

ADAM = {"name": "adam", "lr": 0.01}
ALL = frozenset(range(8))


def sharded(arena, **tables):
    job = {"steps": 10, **tables.pop("job", {})}
    strategy = {"name": "sharded", "mirrors": 1}
    every = {"every_steps": 3, "keep": 9}
    return arena.spec(job=job, optimizer=ADAM, strategy=strategy, checkpoint=every, **tables)


def started(arena, task, spec, count, *, first=0, **options):
    numbers = range(first, first + count)
    ranks = [arena.start(task, spec, name=f"w{number}", **options) for number in numbers]
    for rank in ranks:
        rank.run.adopt_local(*FRESH)
    return ranks


def trained(arena, ranks, generation=1):
    arena.generation(ranks, generation=generation, writers=ALL)
    for rank in ranks:
        if rank.error is not None:
            raise rank.error
    return ranks


def disk(arena, index: int) -> Path:
    return arena.directory / f"w{index}" / "checkpoints"


def saved_steps(arena, index: int) -> list[int]:
    return [read_manifest(path).step for path in list_checkpoints(disk(arena, index), "job")]


def parts(arena, step: int, ranks) -> list[FoundPart]:
    found = []
    for index in ranks:
        paths = list_checkpoints(disk(arena, index), "job")
        (path,) = (one for one in paths if read_manifest(one).step == step)
        found.append(FoundPart(holder=f"w{index}", path=path))
    return found


def assert_same_weights(ranks, expected) -> None:
    for rank in ranks:
        for mine, theirs in zip(rank.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


def test_every_rank_writes_its_part_with_the_digest_of_all(arena, regression) -> None:
    ranks = trained(arena, started(arena, regression(), sharded(arena), 4))
    for index, rank in enumerate(ranks):
        assert saved_steps(arena, index) == [10, 9, 6, 3]
        manifest = read_manifest(list_checkpoints(disk(arena, index), "job")[0])
        assert manifest.digest == rank.outcome.digest
        assert manifest.shards == held_shards(index, 4, 1)
        assert [one.part for one in rank.recorder.checkpoints] == [manifest.shards] * 4
        agreed = {key.step: digest for key, digest in rank.recorder.agreements}
        assert {one.step: one.digest for one in rank.recorder.checkpoints} == agreed


def test_parts_assemble_to_what_memory_holds(arena, regression) -> None:
    ranks = trained(arena, started(arena, regression(), sharded(arena), 4))
    path, manifest = assemble(parts(arena, 10, (1, 3)), arena.directory / "assembled")
    stored = read_stored(path)
    assert stored.manifest == manifest
    for rank in ranks:
        for one in rank.replica.shards.tensors():
            whole = stored.tensors[one.name]
            assert whole.shape == one.shape
            for piece in one.pieces:
                assert torch.equal(whole.reshape(-1)[piece.start : piece.stop], piece.values)
    replicated = arena.start(regression(), arena.spec(optimizer=ADAM), job_id="whole")
    trained(arena, [replicated])
    names = read_manifest(list_checkpoints(arena.directory / "w/checkpoints", "whole")[0]).tensors
    assert manifest.tensors == names


@pytest.mark.parametrize("stage", [1, 3])
def test_without_room_for_a_copy_what_is_live_is_written_meanwhile(
    arena, regression, monkeypatch, stage
) -> None:
    spec = sharded(arena)
    spec = replace(spec, strategy=replace(spec.strategy, stage=stage))
    roomy = trained(arena, started(arena, regression(), spec, 4))
    assert not any(rank.recorder.warnings for rank in roomy)
    nowhere = Room(bytes=100, limit="memory limit of the control group /dtd")
    monkeypatch.setattr(saver, "available_memory", lambda _device: nowhere)
    tight = trained(arena, started(arena, regression(), spec, 4, first=4))
    for index, (mine, theirs) in enumerate(zip(tight, roomy, strict=True)):
        ((event, text),) = mine.recorder.warnings
        assert event == "checkpoint_waited_for"
        assert "does not fit into 100 B (memory limit of the control group /dtd)" in text
        assert saved_steps(arena, index + 4) == saved_steps(arena, index) == [10, 9, 6, 3]
        for step in (3, 10):
            (new,), (old,) = (parts(arena, step, [rank]) for rank in (index + 4, index))
            assert read_manifest(new.path).files == read_manifest(old.path).files
        assert mine.outcome.digest == theirs.outcome.digest


@pytest.mark.parametrize("left", [(0, 1, 2, 3), (0, 1, 3), (1, 3)])
def test_a_job_continues_from_parts_on_disk(arena, regression, left) -> None:
    task, spec = regression(), sharded(arena)
    expected = trained(arena, [arena.start(task, sharded(arena), job_id="whole")])[0]
    ranks = started(arena, task, spec, 4, ask=lambda step: Flags(stop=step == 5))
    trained(arena, ranks)
    for rank in ranks:
        rank.run.close()
    again = [arena.start(task, spec, name=f"w{index}") for index in left]
    for index, rank in zip(left, again, strict=True):
        held = rank.run.held()
        assert (held.where, held.step, held.part) == ("checkpoint", 6, held_shards(index, 4, 1))
        rank.run.adopt_local(held.generation, held.step)
        assert rank.replica.held_part == held.part
    trained(arena, again, generation=2)
    assert_same_weights(again, expected)
    assert len({rank.outcome.digest for rank in again}) == 1


def test_a_job_falls_back_to_the_newest_state_of_which_all_parts_are_left(
    arena, regression
) -> None:
    task, spec = regression(), sharded(arena)
    expected = trained(arena, [arena.start(task, spec, job_id="whole")])[0]
    ranks = started(arena, task, spec, 4, ask=lambda step: Flags(stop=step == 6))
    for rank in trained(arena, ranks):
        rank.run.close()
    for index in (1, 2):
        shutil.rmtree(parts(arena, 7, [index])[0].path)
    again = [arena.start(task, spec, name=f"w{index}") for index in range(4)]
    offered = [(rank.run.held(), *rank.run.saved()) for rank in again]
    assert [[one.step for one in states] for states in offered] == [
        [7, 6, 3],
        [6, 3],
        [6, 3],
        [7, 6, 3],
    ]
    newest = [states[0].part for states in (offered[0], offered[3])]
    assert not united(newest).is_whole
    for rank in again:
        rank.run.adopt_local(1, 6)
        assert rank.run.held().step == 6
    trained(arena, again, generation=2)
    assert_same_weights(again, expected)


def test_a_damaged_part_is_not_offered_again(arena, regression) -> None:
    task, spec = regression(), sharded(arena)
    ranks = started(arena, task, spec, 2, ask=lambda step: Flags(stop=step == 6))
    for rank in trained(arena, ranks):
        rank.run.close()
    file = parts(arena, 3, [0])[0].path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    rank = arena.start(task, spec, name="w0")
    assert [one.step for one in rank.run.saved()] == [6, 3]
    with pytest.raises(CheckpointError, match="has 927 bytes, not 928: torn"):
        rank.run.adopt_local(1, 3)
    assert [one.step for one in rank.run.saved()] == [6]
    assert [event for event, _ in rank.recorder.warnings] == ["checkpoint_passed_over"]


def test_a_checkpoint_lost_with_its_generation_is_written_by_the_next(arena, regression) -> None:
    task, spec = regression(), sharded(arena)
    ranks = started(arena, task, spec, 3, ask=lambda step: Flags(yield_=step == 2))
    trained(arena, ranks)
    for index in range(3):
        shutil.rmtree(disk(arena, index), ignore_errors=True)
    for rank in ranks[:2]:
        rank.run.adopt_local(1, 3)
    trained(arena, ranks[:2], generation=2)
    manifests = [read_manifest(one.path) for one in parts(arena, 3, (0, 1))]
    assert {one.digest for one in manifests} == {manifests[0].digest}
    assert [one.world_size for one in manifests] == [2, 2]
    assert united(one.shards for one in manifests).is_whole


def test_parts_are_saved_when_no_generation_is_left(arena, regression) -> None:
    task, spec = regression(), sharded(arena)
    ranks = started(arena, task, spec, 3, ask=lambda step: Flags(yield_=step == 3))
    trained(arena, ranks)
    for rank in ranks:
        rank.run.save(1, 4)
    digests = {read_manifest(one.path).digest for one in parts(arena, 4, range(3))}
    assert len(digests) == 1
    _, manifest = assemble(parts(arena, 4, (0, 1)), arena.directory / "assembled")
    assert manifest.step == 4


@pytest.mark.parametrize("mode", ["resume", "weights"])
@pytest.mark.parametrize("name", ["replicated", "sharded"])
def test_another_job_starts_from_what_was_assembled(arena, regression, mode, name) -> None:
    task = regression()
    ranks = started(arena, task, sharded(arena), 4, ask=lambda step: Flags(stop=step == 5))
    trained(arena, ranks)
    weights = ranks[0].parameters()
    parent = InitFrom(job_id="job", step=None, mode=mode)
    spec = sharded(arena) if name == "sharded" else arena.spec(job={"steps": 10}, optimizer=ADAM)
    first = arena.start(task, spec, name="w0", job_id="child", init_from=parent)
    assert first.run.held().where == "none"
    own, directory = first.run.incomplete_origin()
    stranger = arena.start(task, spec, name="w9", job_id="child", init_from=parent)
    nothing, its_directory = stranger.run.incomplete_origin()
    assert (nothing, its_directory.name) == (None, directory.name)
    (other,) = parts(arena, 6, [2])
    assemble([FoundPart(holder="w0", path=own), other], directory)
    assert first.run.incomplete_origin() is None
    held = first.run.held()
    assert (held.job_id, held.step) == ("job", 6 if mode == "resume" else 0)
    assert held.part.is_whole
    first.run.adopt_local(held.generation, held.step)
    for mine, theirs in zip(first.parameters(), weights, strict=True):
        assert torch.equal(mine, theirs)
    other = arena.start(task, spec, name="w8", job_id="child", init_from=parent)
    assert other.run.incomplete_origin() == (None, disk(arena, 8) / "child" / "origin" / "job")
    arena.copy_state(first, other)
    trained(arena, [first, other], generation=5)
    assert not (disk(arena, 0) / "child" / "origin").exists()
    assert parts(arena, 6, [0])[0].path == own
    if mode == "resume":
        expected = arena.start(task, arena.spec(job={"steps": 10}, optimizer=ADAM), job_id="whole")
        assert_same_weights([first, other], trained(arena, [expected])[0])
