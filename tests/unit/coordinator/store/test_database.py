"""The coordinator's file: opened, locked, and durable."""

from __future__ import annotations

import shutil
import sqlite3

import pytest

from dtd.coordinator.store.database import FILE_NAME, NEWEST_NAME, PAGE_BYTES, SCHEMA_VERSION
from dtd.coordinator.store.store import Store
from dtd.errors import ConfigError, StoreDamaged


def test_a_second_coordinator_is_refused_until_the_first_has_gone(state_dir, store):
    with pytest.raises(ConfigError, match=f"another coordinator uses {state_dir}") as caught:
        Store(state_dir)
    assert "--state-dir" in caught.value.remedy
    store.close()
    Store(state_dir).close()


def test_another_schema_is_refused_with_a_remedy(state_dir):
    Store(state_dir).close()
    path = state_dir / "coordinator.sqlite3"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version=999")
    database.close()
    for _ in range(2):  # a refusal leaves the directory unlocked
        with pytest.raises(
            ConfigError, match=f"has schema 999, this dtd writes {SCHEMA_VERSION}"
        ) as caught:
            Store(state_dir)
        assert "the dtd version that wrote it" in caught.value.remedy


def test_a_damaged_file_is_refused_in_words(state_dir):
    state_dir.mkdir()
    (state_dir / "coordinator.sqlite3").write_bytes(b"this is no database" * 100)
    with pytest.raises(ConfigError, match=r"coordinator\.sqlite3 .*file is not a database"):
        Store(state_dir)


LOG = f"{FILE_NAME}-wal"
JOBS = 20


@pytest.fixture
def crashed(state_dir, store, tmp_path):
    """Return the files of a store whose process died when half of the jobs were in the log only."""
    for number in range(1, JOBS + 1):
        store.save_job(number, {"id": f"j-{number}", "state": "queued", "spec": "x" * PAGE_BYTES})
        if number == JOBS // 2:
            store.fold()
    return shutil.copytree(state_dir, tmp_path / "crashed")


def test_after_a_crash_nothing_is_missing(crashed):
    reopened = Store(crashed)
    assert reopened.next_job_number() == JOBS + 1
    reopened.close()


@pytest.mark.parametrize("left_bytes", [0, 5 * PAGE_BYTES])
def test_what_a_lost_or_cut_log_held_is_missed_and_what_was_folded_is_kept(crashed, left_bytes):
    with (crashed / LOG).open("r+b") as log:
        log.truncate(left_bytes)
    with pytest.raises(StoreDamaged, match=r"its last \d+ transactions are missing") as caught:
        Store(crashed)
    assert f"remove {crashed / NEWEST_NAME}" in caught.value.remedy
    (crashed / NEWEST_NAME).unlink()
    reopened = Store(crashed)
    assert JOBS // 2 < reopened.next_job_number() <= JOBS
    reopened.close()


def test_damaged_pages_are_named_in_a_line_and_no_transaction_is_blamed(crashed):
    Store(crashed).close()  # all pages are in the file
    path = crashed / FILE_NAME
    pages = bytearray(path.read_bytes())
    for begin in range(8 * PAGE_BYTES, len(pages), 3 * PAGE_BYTES):
        pages[begin : begin + 512] = bytes(range(256)) * 2
    path.write_bytes(pages)
    with pytest.raises(StoreDamaged, match="is damaged: ") as caught:
        Store(crashed)
    assert "\n" not in caught.value.message
    assert "Restore a backup" in caught.value.remedy
    assert NEWEST_NAME not in caught.value.remedy
