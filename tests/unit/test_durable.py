"""Directories that are made while others make the same ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtd.host.durable import make_directory


def test_what_another_process_makes_at_the_same_moment_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, stat = tmp_path / "jobs" / "one", Path.stat
    looked_at: set[Path] = set()

    def made_after_the_first_look(path: Path, **options: bool) -> object:
        if path == wanted and path not in looked_at:
            looked_at.add(path)
            try:
                return stat(path, **options)
            finally:
                path.mkdir(parents=True)
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", made_after_the_first_look)
    make_directory(wanted)
    assert wanted.is_dir()
