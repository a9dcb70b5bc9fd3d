"""The audit log with a real coordinator: its entries, and requests refused when it cannot write."""

from __future__ import annotations

import dataclasses
import errno
import time
from typing import Any

import pytest
from structlog.testing import capture_logs

from dtd.coordinator.services import audit_file
from dtd.coordinator.services.audit import CHANGING
from dtd.coordinator.services.audit_file import AuditFile, Entry
from dtd.errors import RequestRefused
from dtd.security.permissions import VIEWER_MAY
from dtd.wire import fields
from dtd.wire import messages as m


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


def test_what_must_be_entered_is_not_done_when_it_cannot_be(daemon, spec, monkeypatch):
    job = daemon.ask(m.SubmitJob(spec=spec))["job"]
    full_disk(daemon, monkeypatch)
    for message in (m.SubmitJob(spec=spec), m.Delete(job=job)):
        with pytest.raises(RequestRefused, match="audit log, which cannot be written") as caught:
            daemon.ask(message)
        assert "free space" in caught.value.remedy
    assert [one["id"] for one in daemon.ask(m.ListJobs())["jobs"]] == [job]


def test_what_takes_away_is_done_on_a_full_disk_and_the_journal_says_so(daemon, spec, monkeypatch):
    job = daemon.ask(m.SubmitJob(spec=spec))["job"]
    full_disk(daemon, monkeypatch)
    with capture_logs() as logs:
        assert daemon.ask(m.CancelJob(job=job))["state"] == "cancelled"
    (line,) = [line for line in logs if line["event"] == "audit_not_written"]
    assert (line["what"], line["outcome"], line["about"]) == ("CANCEL_JOB", "done", {"job": job})
    assert "disk is full" in line["error"]


# --- the file ------------------------------------------------------------------------------------


def entry(what: str, **changed: Any) -> Entry:
    usual: dict[str, Any] = {"time_s": time.time(), "role": "local", "outcome": "done", "who": "w"}
    return Entry(**usual | changed, what=what)


def test_pages_are_read_from_cursor_to_cursor_and_files_end(tmp_path, monkeypatch):
    monkeypatch.setattr(audit_file, "FILE_BYTES", 1000)
    monkeypatch.setattr(audit_file, "MAX_FILES", 3)
    monkeypatch.setattr(audit_file, "PAGE_ENTRIES", 2)
    log = AuditFile(tmp_path)
    seqs = [
        log.add(
            entry("CANCEL_JOB", who=f"w{n % 2}", about={"n": n}),
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
    first = log.add(entry("A"), synced=True)
    (path,) = (tmp_path / "audit").iterdir()
    with path.open("ab") as file:
        file.write(b'{"time_s": 1.0, "wh')
    second = log.add(entry("B"), synced=True)
    found = log.page(0)["entries"]
    assert [(one["seq"], one["what"]) for one in found] == [(first, "A"), (second, "B")]
    assert log.page(first)["next"] == second


# --- what is declared ---------------------------------------------------------------------------

ASKED = sorted(
    (m.from_opener(m.Role.CTL) | m.from_opener(m.Role.JOIN)) - {m.Error, m.Goodbye},
    key=lambda kind: kind.__name__,
)


READS = VIEWER_MAY - set(CHANGING) | {
    *(m.ReadAudit, m.ListTokens, m.ListCredentials, m.ShowAuthority, m.GetAuthority),
}


def test_every_call_that_changes_something_is_declared() -> None:
    """A new request belongs in CHANGING, or here among those that only read."""
    assert {*CHANGING, *READS} == set(ASKED)
    assert not READS & set(CHANGING)


@pytest.mark.parametrize("kind", CHANGING, ids=lambda kind: kind.__name__)
def test_no_secret_is_entered(kind: type[Any]) -> None:
    declared = CHANGING[kind]
    secret = {field.name for field in dataclasses.fields(kind) if not field.repr}
    assert not secret & set(declared.about)
    assert not [n for n, k, *_ in fields.layout(kind) if n in declared.about and k[0] in "om"]
