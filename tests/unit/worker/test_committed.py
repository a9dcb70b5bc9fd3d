"""The record that a process leaves for the next one to report."""

from __future__ import annotations

from pathlib import Path

from dtd.worker.reporter import CommittedStep


def test_the_next_process_finds_the_last_commit(tmp_path: Path) -> None:
    path = tmp_path / "committed"
    first = CommittedStep(path, "a")
    assert first.before == (0, 0)
    first.begin(3)
    for step in (7, 8, 9):
        first.committed(step)
    assert CommittedStep(path, "a").before == (3, 9)


def test_a_generation_without_a_commit_has_none(tmp_path: Path) -> None:
    path = tmp_path / "committed"
    first = CommittedStep(path, "a")
    first.begin(3)
    first.committed(9)
    first.begin(4)
    assert CommittedStep(path, "a").before == (4, 0)


def test_the_record_of_another_job_or_half_a_file_is_none(tmp_path: Path) -> None:
    path = tmp_path / "committed"
    first = CommittedStep(path, "a")
    first.begin(3)
    first.committed(9)
    assert CommittedStep(path, "b").before == (0, 0)
    path.write_bytes(path.read_bytes()[:12])
    assert CommittedStep(path, "a").before == (0, 0)


def test_what_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    record = CommittedStep(tmp_path / "missing" / "committed", "a")
    record.begin(1)
    record.committed(2)
    assert record.before == (0, 0)
