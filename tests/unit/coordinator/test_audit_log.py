"""Who did what, with a real coordinator: what is entered, what is refused when it cannot be."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from dtd.coordinator.audit_log import command_entry, enter_command
from dtd.coordinator.maintenance import run_command
from dtd.coordinator.store.store import Store
from dtd.errors import ConfigError, RequestRefused
from dtd.limits.refusal_budget import BURST
from dtd.security.audit import Chain
from dtd.wire import messages as m

NOBODY = 65534


def entries(daemon: Any, **wanted: Any) -> list[dict[str, Any]]:
    return list(daemon.ask(m.ReadAudit(**wanted))["entries"])


def told(daemon: Any, **wanted: Any) -> list[tuple[Any, ...]]:
    return [(e["what"], e["outcome"], e["about"], e["result"]) for e in entries(daemon, **wanted)]


def full_disk(daemon: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(daemon.coordinator.store.audit, "add", fail)


def test_a_job_from_its_submission_to_its_end(daemon, spec):
    package = {"name": "digits", "task": "digits"}
    job = daemon.ask(m.SubmitJob(spec=spec))["job"]
    daemon.ask(m.GetStatus())
    daemon.ask(m.CancelJob(job=job))
    daemon.ask(m.Delete(job=job))
    assert told(daemon) == [
        ("SUBMIT_JOB", "begun", package, {}),
        ("SUBMIT_JOB", "done", package, {"job": job}),
        ("CANCEL_JOB", "done", {"job": job}, {"state": "cancelled"}),
        ("DELETE", "begun", {"job": job}, {}),
        ("DELETE", "done", {"job": job}, {}),
    ]
    (first, *_) = entries(daemon)
    assert (first["role"], first["serial"], first["skipped"]) == ("local", "", 0)
    assert first["who"].startswith("uid ")


def test_what_was_refused_says_why(daemon):
    with pytest.raises(RequestRefused):
        daemon.ask(m.CancelJob(job="digits-9"))
    (refused,) = entries(daemon)
    assert (refused["outcome"], refused["about"]) == ("refused", {"job": "digits-9"})
    assert "digits-9" in refused["reason"]


def test_refusals_do_not_fill_it_and_are_counted(daemon):
    for _ in range(int(BURST) + 5):
        with pytest.raises(RequestRefused):
            daemon.ask(m.RevokeToken(id="none"))
    assert len(entries(daemon)) == BURST


def test_the_journal_has_each_entry_with_its_hash(daemon, spec):
    with capture_logs() as logs:
        daemon.ask(m.SubmitJob(spec=spec))
    told = [(line["seq"], line["hash"]) for line in logs if line["event"] == "audit"]
    assert told == [(e["seq"], e["hash"]) for e in entries(daemon)]
    chain = Chain()
    for one in entries(daemon):
        chain.add(one)
    assert chain.verdict(2).fault == ""


def test_what_must_be_entered_is_not_done_when_it_cannot_be(daemon, spec, monkeypatch):
    job = daemon.ask(m.SubmitJob(spec=spec))["job"]
    full_disk(daemon, monkeypatch)
    for message in (m.SubmitJob(spec=spec), m.Delete(job=job)):
        with pytest.raises(RequestRefused, match="audit log, which cannot be written") as caught:
            daemon.ask(message)
        assert "free space" in caught.value.remedy
    assert [one["id"] for one in daemon.ask(m.ListJobs())["jobs"]] == [job]


def test_what_gives_with_its_answer_is_not_answered_when_it_cannot_be_entered(daemon, monkeypatch):
    full_disk(daemon, monkeypatch)
    with pytest.raises(RequestRefused, match="audit log, which cannot be written"):
        daemon.ask(m.ListCheckpoints(tickets=True))
    assert daemon.ask(m.ListCheckpoints()) == {"checkpoints": []}


def test_what_takes_away_is_done_on_a_full_disk_and_the_journal_says_so(daemon, spec, monkeypatch):
    job = daemon.ask(m.SubmitJob(spec=spec))["job"]
    full_disk(daemon, monkeypatch)
    with capture_logs() as logs:
        assert daemon.ask(m.CancelJob(job=job))["state"] == "cancelled"
    (line,) = [line for line in logs if line["event"] == "audit_not_written"]
    assert (line["what"], line["outcome"], line["about"]) == ("CANCEL_JOB", "done", {"job": job})
    assert "disk is full" in line["error"]


def test_whoever_hangs_up_before_the_answer_is_entered_as_well(daemon, monkeypatch):
    begun, gone = threading.Event(), threading.Event()

    async def hang(_request: Any) -> dict[str, Any]:
        import asyncio

        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()
        return {}

    monkeypatch.setattr(daemon.coordinator.access, "answer", hang)
    with daemon.connect() as client:
        client.ask(m.RevokeCredential(name="w-0"))
        assert begun.wait(30)
    assert gone.wait(30)
    while not (found := entries(daemon)):
        pass
    assert (found[0]["outcome"], found[0]["about"]) == ("cut", {"name": "w-0"})


def test_what_failed_is_entered_as_failed(daemon, monkeypatch):
    async def fail(_request: Any) -> dict[str, Any]:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(daemon.coordinator.access, "answer", fail)
    with pytest.raises(RequestRefused, match="store failed"):
        daemon.ask(m.RevokeToken(id="ab"))
    (failed,) = entries(daemon)
    assert (failed["outcome"], failed["reason"]) == ("failed", "disk I/O error")


def test_a_backup_and_a_restore_are_entered(daemon, state_dir, tmp_path, capsys):
    backup, restored = tmp_path / "b.tar", tmp_path / "restored"
    assert run_command(["backup", str(backup), "--state-dir", str(state_dir)]) == 0
    assert told(daemon) == [("BACKUP", "done", {"file": str(backup)}, {})]
    assert "audit" not in capsys.readouterr().err
    assert run_command(["restore", str(backup), "--state-dir", str(restored)]) == 0
    database = sqlite3.connect(restored / "coordinator.sqlite3")
    assert database.execute("SELECT what, who FROM audit").fetchall() == [
        ("BACKUP", command_entry("", {}).who),
        ("RESTORE", command_entry("", {}).who),
    ]
    database.close()


def test_a_backup_that_cannot_be_entered_is_made_and_says_so(store, state_dir, tmp_path, capsys):
    database = sqlite3.connect(state_dir / "coordinator.sqlite3")
    database.execute("DROP TABLE audit")
    database.close()
    assert run_command(["backup", str(tmp_path / "b.tar"), "--state-dir", str(state_dir)]) == 0
    assert "could not be entered in the audit log: no such table" in capsys.readouterr().err
    assert "No such file" in enter_command(tmp_path / "none", command_entry("BACKUP", {}))
    with pytest.raises(ConfigError, match="is not the state directory"):
        run_command(["backup", str(tmp_path / "c.tar"), "--state-dir", str(tmp_path)])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root backs up what is another user's")
def test_root_leaves_the_files_to_the_user_whose_they_are():
    place = Path(tempfile.mkdtemp(prefix="dtd-audit-", dir="/var/tmp"))
    try:
        Store(place / "state").close()
        for path in (place, place / "state", *(place / "state").iterdir()):
            os.chown(path, NOBODY, NOBODY)
        reader = sqlite3.connect(place / "state" / "coordinator.sqlite3")
        assert enter_command(place / "state", command_entry("BACKUP", {})) == ""
        assert reader.execute("SELECT what, who FROM audit").fetchall() == [("BACKUP", "uid 0")]
        assert (os.geteuid(), os.getegid()) == (0, 0)
        assert {path.stat().st_uid for path in (place / "state").iterdir()} == {NOBODY}
        reader.close()
        others = place / "others"
        (place / "state" / "coordinator.sqlite3").rename(others)
        os.chown(others, 0, 0)
        (place / "state" / "coordinator.sqlite3").symlink_to(others)
        os.lchown(place / "state" / "coordinator.sqlite3", NOBODY, NOBODY)
        assert enter_command(place / "state", command_entry("BACKUP", {}))
    finally:
        shutil.rmtree(place)
