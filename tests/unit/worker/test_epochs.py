"""The newest epoch that was seen outlives the process, and tells the old coordinator."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtd.worker.control import MAX_STORES, Epochs


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "epochs.json"


def test_what_was_seen_is_known_to_the_next_process(path: Path) -> None:
    epochs = Epochs(path)
    assert epochs.remember("store", 2)
    epochs.save()
    assert path.stat().st_mode & 0o777 == 0o600
    again = Epochs(path)
    assert "epoch 1" in again.outdated("store", 1)
    assert [again.outdated("store", epoch) for epoch in (2, 3)] == ["", ""]


def test_only_a_higher_epoch_is_news(path: Path) -> None:
    epochs = Epochs(path)
    assert [epochs.remember("store", epoch) for epoch in (1, 1, 3, 2)] == [True, False, True, False]
    assert not epochs.remember("", 7)


def test_another_store_is_another_cluster(path: Path) -> None:
    epochs = Epochs(path)
    epochs.remember("store", 5)
    assert epochs.outdated("other", 1) == ""


def test_the_newest_stores_are_known(path: Path) -> None:
    epochs = Epochs(path)
    for number in range(MAX_STORES + 1):
        epochs.remember(str(number), 2)
    assert epochs.outdated("0", 1) == ""
    assert epochs.outdated("1", 1)


@pytest.mark.parametrize("text", ["", "[1]", "nonsense", '{"store": "x"}', "\xff"])
def test_a_damaged_file_knows_nothing(path: Path, text: str) -> None:
    path.write_text(text)
    assert Epochs(path).outdated("store", 0) == ""


def test_a_file_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    epochs = Epochs(tmp_path / "missing" / "epochs.json")
    assert epochs.remember("store", 1)
    epochs.save()
