"""Drafts of checkpoints: of the living left alone, of the dead removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dtd.checkpoint.format import checkpoint_name
from dtd.checkpoint.writer import Drafts

NAME = checkpoint_name(2, 7)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_two_writers_never_meet(tmp_path) -> None:
    one, other = Drafts(tmp_path), Drafts(tmp_path)
    assert one.make(NAME) != other.make(NAME)
    assert len(names(tmp_path)) == 2


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


def test_what_lies_in_the_way_is_taken_away_first(tmp_path) -> None:
    target = tmp_path / NAME
    target.mkdir()
    (target / "damaged").touch()
    drafts = Drafts(tmp_path)
    (drafts.make(NAME) / "sound").touch()
    with pytest.raises(OSError, match="not empty"):
        drafts.rename(NAME, target)
    drafts.clear(NAME, target)
    drafts.clear(NAME, target)  # somebody else has taken it away meanwhile
    drafts.rename(NAME, target)
    drafts.remove(NAME)
    assert names(tmp_path) == [NAME]
    assert names(target) == ["sound"]


def test_a_file_in_the_way_is_not(tmp_path) -> None:
    (tmp_path / NAME).touch()
    drafts = Drafts(tmp_path)
    drafts.make(NAME)
    with pytest.raises(NotADirectoryError):
        drafts.rename(NAME, tmp_path / NAME)
    assert (tmp_path / NAME).is_file()
