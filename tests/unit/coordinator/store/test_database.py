"""The coordinator's file: who may open it, and what becomes of an older one."""

from __future__ import annotations

import sqlite3

import pytest

from dtd.cluster.events import Incident
from dtd.coordinator.store import database
from dtd.coordinator.store.database import SCHEMA_VERSION, STEPS
from dtd.coordinator.store.store import Store
from dtd.errors import ConfigError


def test_a_new_directory_is_its_owners_alone(state_dir, store):
    assert state_dir.stat().st_mode & 0o777 == 0o700
    assert (store.jobs(), store.events(0), store.next_job_number()) == ([], [], 1)
    assert store.last_generation() == 0


def pragma(store, name):
    return store._database.read(f"PRAGMA {name}")[0][0]


def test_it_is_written_durably(store):
    assert pragma(store, "journal_mode") == "wal"
    assert pragma(store, "synchronous") == 2
    assert pragma(store, "user_version") == SCHEMA_VERSION


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


def test_a_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used") as caught:
        Store(tmp_path / "file" / "state")
    assert "--state-dir" in caught.value.remedy


# --- files of older versions -----------------------------------------------------------------

BODY = '{"id": "digits-1", "spec": {"job": {"name": "digits", "task": "digits"}}, "state": "done"}'


@pytest.fixture
def old_file(state_dir):
    """A file as the first version wrote it, with a row of everything."""
    state_dir.mkdir()
    path = state_dir / database.FILE_NAME
    connection = sqlite3.connect(path)
    connection.executescript(f"{STEPS[0]} PRAGMA user_version=1")
    connection.execute("INSERT INTO jobs VALUES (1, 'digits-1', ?, 5.0, 6.0, 7.0)", (BODY,))
    connection.execute(
        "INSERT INTO events (time_s, kind, job, worker, generation, step, message)"
        " VALUES (6.5, 'worker_lost', 'digits-1', 'worker-1', 2, 9, 'gone')"
    )
    connection.execute(
        "INSERT INTO logs (time_s, job, rank, worker, text) VALUES (6.0, 'digits-1', 0, 'w', 'a')"
    )
    connection.execute(
        "INSERT INTO checkpoints VALUES ('digits-1', 2, 9, 'w', 10, '/c/x', 'ab', '{}')"
    )
    connection.commit()
    connection.close()
    return path


def test_an_older_file_keeps_its_rows(old_file, state_dir):
    for _ in range(2):  # once brought up to date, it stays
        store = Store(state_dir)
        assert pragma(store, "user_version") == SCHEMA_VERSION
        (event,) = store.events(0)
        assert (event["kind"], event["worker"], event["step"]) == ("worker_lost", "worker-1", 9)
        assert event["details"] == {}
        assert [one["id"] for one in store.jobs()] == ["digits-1"]
        assert store.last_ended().ended_s == 7.0
        assert [line["text"] for line in store.lines("digits-1", 0)] == ["a"]
        assert [one["step"] for one in store.checkpoints("")] == [9]
        store.close()


def test_an_older_file_takes_new_rows(old_file, state_dir):
    store = Store(state_dir)
    store.add_incident(Incident(kind="recovered", message="m", details={"steps_lost": 0}))
    assert [event["details"] for event in store.events(0)] == [{}, {"steps_lost": 0}]
    store.close()


def test_a_step_that_fails_leaves_the_file_as_it_was(old_file, state_dir, monkeypatch):
    broken = (*STEPS[:1], "ALTER TABLE events ADD COLUMN half TEXT; ALTER TABLE none ADD x;")
    with monkeypatch.context() as patch:
        patch.setattr(database, "STEPS", broken)
        with pytest.raises(ConfigError, match="cannot be read"):
            Store(state_dir)
    store = Store(state_dir)
    assert len(store.events(0)) == 1
    assert "half" not in store.events(0)[0]
    store.close()


def test_the_log_stays_bounded_where_every_transaction_is_synced(state_dir, store):
    """A job that saves a checkpoint every step writes nothing else for hours."""
    body = {"id": "j-1", "state": "running", "spec": "x" * 400_000}
    for _ in range(150):
        store.save_job(1, body)
    log = state_dir / "coordinator.sqlite3-wal"
    most_bytes = (database.MOST_LOG_PAGES + 200) * (database.PAGE_BYTES + 24)
    assert log.stat().st_size <= most_bytes
