"""The coordinator's file: opened, locked, and durable."""

from __future__ import annotations

import sqlite3

import pytest

from dtd.coordinator.store.database import SCHEMA_VERSION
from dtd.coordinator.store.store import Store
from dtd.errors import ConfigError


def test_a_new_directory_is_its_owners_alone(state_dir, store):
    assert state_dir.stat().st_mode & 0o777 == 0o700
    assert (store.jobs(), store.events(0), store.next_job_number()) == ([], [], 1)
    assert store.last_generation() == 0


def pragma(store, name):
    return store._database.read(f"PRAGMA {name}")[0][0]


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
