"""Jobs of one id in one directory: nobody loads, overwrites or deletes what is another's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dtd.checkpoint.format import list_checkpoints, read_manifest
from dtd.job.terms import folder_of, identity_of
from dtd.train.record import Flags, InitFrom


def identities(arena: Any) -> tuple[str, str]:
    """The identities of two jobs that two stores call job-1."""
    settings = {"job": {"task": "t", "seed": 3}}
    return identity_of("aa", 1, "job-1", settings), identity_of("bb", 1, "job-1", settings)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def test_two_clusters_share_a_checkpoint_directory(arena, regression) -> None:
    ours, theirs = identities(arena)
    spec = arena.spec(checkpoint={"every_steps": 2, "keep": 1})
    half = arena.start(
        regression(),
        spec,
        job_id="job-1",
        identity=theirs,
        ask=lambda step: Flags(stop=step == 4),
    )
    arena.generation([half])
    half.run.close()
    directory = arena.directory / "w/checkpoints"
    before = contents(directory)

    (whole,) = arena.generation([arena.start(regression(), spec, job_id="job-1", identity=ours)])
    assert [record.step for record in whole.recorder.steps] == list(range(1, 10))
    whole.run.close()
    assert contents(directory / folder_of("job-1", theirs)) == before
    (own,) = list_checkpoints(directory, folder_of("job-1", ours))
    assert read_manifest(own).identity == ours

    again = arena.start(regression(), spec, job_id="job-1", identity=theirs)
    held = again.run.held()
    assert (held.where, held.step) == ("checkpoint", 5)


def test_what_the_first_release_wrote_is_read_when_it_is_asked_for(arena, regression) -> None:
    spec = arena.spec(checkpoint={"every_steps": 2, "keep": 9})
    old = arena.start(regression(), spec, job_id="job-1", ask=lambda step: Flags(stop=step == 4))
    arena.generation([old])
    old.run.close()
    ours, _ = identities(arena)

    implicitly = arena.start(regression(), spec, job_id="job-1", identity=ours)
    assert implicitly.run.held().where == "none"
    init = InitFrom(job_id="job-1", step=None, mode="resume")
    asked = arena.start(regression(), spec, job_id="job-2", identity=ours, init_from=init)
    assert (asked.run.held().where, asked.run.held().step) == ("checkpoint", 5)


def test_a_checkpoint_that_was_moved_to_another_job_is_passed_over(arena, regression) -> None:
    ours, theirs = identities(arena)
    spec = arena.spec()
    (done,) = arena.generation([arena.start(regression(), spec, job_id="job-1", identity=theirs)])
    done.run.close()
    directory = arena.directory / "w/checkpoints"
    (directory / folder_of("job-1", theirs)).rename(directory / folder_of("job-1", ours))
    victim = arena.start(regression(), spec, job_id="job-1", identity=ours)
    assert victim.run.held().where == "none"
    event, why = victim.recorder.warnings[0]
    assert event == "checkpoint_passed_over"
    assert f"it belongs to another job: {theirs}" in why
