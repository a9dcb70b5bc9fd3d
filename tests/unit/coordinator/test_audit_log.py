"""Who did what, with a real coordinator: what is entered, what is refused when it cannot be."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import sqlite3
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from dtd.coordinator import audit_file
from dtd.coordinator.audit_file import AuditFile
from dtd.coordinator.audit_log import REFUSALS_AT_ONCE, command_entry, enter_command
from dtd.coordinator.main import run_command
from dtd.errors import ConfigError, RequestRefused
from dtd.wire import messages as m

NOBODY = 65534


def entries(daemon: Any, **wanted: Any) -> list[dict[str, Any]]:
    return list(daemon.ask(m.ReadAudit(**wanted))["entries"])


def told(daemon: Any, **wanted: Any) -> list[tuple[Any, ...]]:
    return [(e["what"], e["outcome"], e["about"], e["result"]) for e in entries(daemon, **wanted)]


def full_disk(daemon: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "the disk is full")

    monkeypatch.setattr(daemon.coordinator.audit._file, "add", fail)


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
    for _ in range(int(REFUSALS_AT_ONCE) + 5):
        with pytest.raises(RequestRefused):
            daemon.ask(m.RevokeToken(id="none"))
    assert len(entries(daemon)) == REFUSALS_AT_ONCE


def test_the_journal_has_each_entry(daemon, spec):
    with capture_logs() as logs:
        daemon.ask(m.SubmitJob(spec=spec))
    assert [line["seq"] for line in logs if line["event"] == "audit"] == [
        one["seq"] for one in entries(daemon)
    ]


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
    found = AuditFile(restored).page(0)["entries"]
    assert [(one["what"], one["who"]) for one in found] == [
        ("BACKUP", command_entry("", {}).who),
        ("RESTORE", command_entry("", {}).who),
    ]


def test_a_backup_that_cannot_be_entered_is_made_and_says_so(store, state_dir, tmp_path, capsys):
    (state_dir / "audit").touch()
    assert run_command(["backup", str(tmp_path / "b.tar"), "--state-dir", str(state_dir)]) == 0
    assert "could not be entered in the audit log: " in capsys.readouterr().err
    with pytest.raises(ConfigError, match="is not the state directory"):
        run_command(["backup", str(tmp_path / "c.tar"), "--state-dir", str(tmp_path)])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root backs up what is another user's")
def test_root_writes_as_the_user_whose_directory_it_is():
    place = Path(tempfile.mkdtemp(prefix="dtd-audit-", dir="/var/tmp"))
    try:
        state, others = place / "state", place / "others"
        state.mkdir()
        others.mkdir()
        os.chown(place, NOBODY, NOBODY)
        os.chown(state, NOBODY, NOBODY)
        assert enter_command(state, command_entry("BACKUP", {})) == ""
        assert {path.stat().st_uid for path in state.rglob("*")} == {NOBODY}
        assert (os.geteuid(), os.getegid()) == (0, 0)
        shutil.rmtree(state / "audit")
        (state / "audit").symlink_to(others)  # a directory in which only root may write
        assert enter_command(state, command_entry("BACKUP", {}))
    finally:
        shutil.rmtree(place)


# --- the file ------------------------------------------------------------------------------------


def test_pages_are_read_from_cursor_to_cursor_and_files_end(tmp_path, monkeypatch):
    monkeypatch.setattr(audit_file, "FILE_BYTES", 1000)
    monkeypatch.setattr(audit_file, "MAX_FILES", 3)
    monkeypatch.setattr(audit_file, "PAGE_ENTRIES", 2)
    log = AuditFile(tmp_path)
    seqs = [
        log.add(
            dataclasses.replace(command_entry("CANCEL_JOB", {"n": n}), who=f"w{n % 2}"),
            synced=False,
        )
        for n in range(40)
    ]
    assert seqs == sorted(set(seqs))
    assert len([*(tmp_path / "audit").iterdir()]) == 3
    read, after = [], 0
    while found := log.page(after)["entries"]:
        read += found
        after = found[-1]["seq"]
    assert [one["seq"] for one in read] == seqs[-len(read) :]
    assert 4 < len(read) < 20
    assert log.page(0, who="w1", what="cancel")["entries"][0]["about"]["n"] % 2 == 1
    assert log.page(0, since_s=read[-1]["time_s"] + 60)["entries"] == []


def test_a_line_that_a_loss_of_power_has_cut_costs_no_other(tmp_path):
    log = AuditFile(tmp_path)
    first = log.add(command_entry("A", {}), synced=True)
    (path,) = (tmp_path / "audit").iterdir()
    with path.open("ab") as file:
        file.write(b'{"time_s": 1.0, "wh')
    second = log.add(command_entry("B", {}), synced=True)
    found = log.page(0)["entries"]
    assert [(one["seq"], one["what"]) for one in found] == [(first, "A"), (second, "B")]
    assert log.page(first)["next"] == second
