"""Stores that are damaged: found at the start, set aside, and what can be read is kept."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from dtd.cluster.events import Incident
from dtd.coordinator.maintenance import run_command
from dtd.coordinator.store.database import FILE_NAME
from dtd.coordinator.store.repair import repair
from dtd.coordinator.store.store import Store
from dtd.errors import ConfigError, StoreDamaged

JOBS = 60
PAGE_BYTES = 4096


def body(number: int) -> dict[str, object]:
    spec = {"job": {"name": "digits", "task": "digits"}, "task": {"note": "x" * 2000}}
    return {"id": f"digits-{number}", "spec": spec, "state": "queued"}


def written(state_dir: Path, *, folded: int = 0) -> Path:
    """The files as a coordinator leaves them that dies; so many jobs stand in the main file."""
    alive = state_dir.with_name("alive")
    store = Store(alive)
    for number in range(1, JOBS + 1):
        store.save_job(number, body(number))
        if number == folded:
            store.fold()
    shutil.copytree(alive, state_dir)
    store.close()
    return state_dir


def jobs(state_dir: Path) -> list[str]:
    store = Store(state_dir)
    found = [job["id"] for job in store.jobs()]
    store.close()
    return found


def test_a_store_that_was_left_by_a_crash_is_whole(state_dir):
    written(state_dir)
    assert repair(state_dir) is None
    assert len(jobs(state_dir)) == JOBS


def cut(state_dir):
    log = state_dir / f"{FILE_NAME}-wal"
    os.truncate(log, log.stat().st_size // 2)


def lose(state_dir):
    (state_dir / f"{FILE_NAME}-wal").unlink()


@pytest.mark.parametrize(("harm", "folded"), [(cut, 0), (lose, 40), (lose, 0)])
def test_transactions_that_are_missing_are_named(state_dir, harm, folded):
    """A log that ends early looks as if nothing had followed."""
    written(state_dir, folded=folded)
    harm(state_dir)
    for _ in range(2):
        with pytest.raises(StoreDamaged, match=r"last \d+ transactions are missing") as caught:
            Store(state_dir)
        assert "dtd-coordinator repair" in caught.value.remedy
    done = repair(state_dir)
    assert done is not None
    kept = jobs(state_dir)
    assert len(kept) == done.kept["jobs"] < JOBS
    assert set(kept) == {f"digits-{number}" for number in range(1, len(kept) + 1)}
    assert folded <= len(kept)
    assert (done.aside / FILE_NAME).is_file()
    assert repair(state_dir) is None


def test_pages_that_cannot_be_read_cost_their_rows_only(state_dir):
    store = Store(state_dir)
    for number in range(1, JOBS + 1):
        store.save_job(number, body(number))
    store.add_incident(Incident(kind="job_queued", message="kept"))
    name, epoch = store.identity()
    store.close()
    path = state_dir / FILE_NAME
    middle = path.stat().st_size // 2 // PAGE_BYTES * PAGE_BYTES
    with path.open("r+b") as file:
        file.seek(middle)
        file.write(b"\xa5" * PAGE_BYTES)
    with pytest.raises(StoreDamaged, match="is damaged"):
        Store(state_dir)
    done = repair(state_dir)
    assert done is not None
    assert done.holes >= 1
    kept = jobs(state_dir)
    assert JOBS // 2 < len(kept) < JOBS
    store = Store(state_dir)
    assert store.identity() == (name, epoch + 1)
    assert [event["message"] for event in store.events(0)] == ["kept"]
    assert store.next_job_number() == JOBS + 1
    store.close()


def test_a_job_that_is_no_job_any_more_is_left_out(state_dir):
    written(state_dir)
    Store(state_dir).close()
    with sqlite3.connect(state_dir / FILE_NAME) as database:
        database.execute("UPDATE jobs SET body = substr(body, 9) WHERE number = 7")
    database.close()
    with pytest.raises(StoreDamaged, match="1 job cannot be read"):
        Store(state_dir)
    repair(state_dir)
    assert "digits-7" not in jobs(state_dir)
    assert len(jobs(state_dir)) == JOBS - 1


def test_of_a_file_that_is_none_nothing_is_kept(state_dir, capsys):
    state_dir.mkdir()
    (state_dir / FILE_NAME).write_bytes(b"this is no database" * 1000)
    assert run_command(["repair", "--state-dir", str(state_dir)]) == 0
    said = capsys.readouterr().err
    assert "kept nothing" in said
    assert jobs(state_dir) == []
    assert run_command(["repair", "--state-dir", str(state_dir)]) == 0
    assert "nothing is wrong" in capsys.readouterr().err


def test_what_is_in_use_or_not_there_is_not_repaired(state_dir):
    with pytest.raises(ConfigError, match=f"has no {FILE_NAME}"):
        repair(state_dir)
    store = Store(state_dir)
    with pytest.raises(ConfigError, match="another coordinator uses"):
        repair(state_dir)
    store.close()
