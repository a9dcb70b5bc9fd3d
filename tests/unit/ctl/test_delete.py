"""`dtdctl delete` against a scripted coordinator."""

from __future__ import annotations

import io

import pytest

from dtd.wire import messages as m

KNOWN = {
    "id": "digits-1",
    "checkpoints": [
        {"step": 20, "size_bytes": 2048, "worker": "worker-0"},
        {"step": 10, "size_bytes": 1024, "worker": "worker-1"},
    ],
}
GONE = {"worker": "worker-0", "step": 20, "directory": "/a", "outcome": "deleted", "reason": ""}
AWAY = {**GONE, "worker": "worker-1", "outcome": "later", "reason": "it is not connected"}
SLOW = {**AWAY, "worker": "worker-2", "reason": ""}
BAD = {**GONE, "worker": "worker-3", "outcome": "failed", "reason": "/a is a link"}


@pytest.fixture
def script(server, result):
    def answer(message):
        if isinstance(message, m.ShowJob):
            return result(KNOWN)
        rows = [GONE, AWAY, SLOW, BAD]
        return result({"job": message.job, "step": message.step, "checkpoints": rows})

    server.script = answer


def test_a_job(dtdctl, server, script):
    exit_code, out, err = dtdctl("delete", "digits-1", "--yes")
    assert (exit_code, out) == (0, "")
    assert server.received == [m.ShowJob(job="digits-1"), m.Delete(job="digits-1")]
    assert err.splitlines() == [
        "job digits-1 is deleted: 1 checkpoint from disks",
        "  worker-1 deletes step 20 later (it is not connected)",
        "  worker-2 deletes step 20 later",
        "  worker-3: /a is a link",
    ]


def test_without_a_terminal_it_wants_yes(dtdctl, server, script, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    exit_code, _out, err = dtdctl("delete", "digits-1")
    assert exit_code == 2
    assert "and everything else of job digits-1: 3.0 KiB on worker-0, worker-1" in err
    assert "--yes" in err
    assert server.received == [m.ShowJob(job="digits-1")]


@pytest.mark.parametrize(("typed", "goes"), [("y\n", True), ("\n", False), ("no\n", False)])
def test_on_a_terminal_a_person_is_asked(dtdctl, server, script, monkeypatch, typed, goes):
    terminal = io.StringIO(typed)
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stdin", terminal)
    exit_code, _out, err = dtdctl("delete", "digits-1@10")
    assert "this deletes 1 checkpoint of step 10 of digits-1: 1.0 KiB on worker-1" in err
    assert exit_code == (0 if goes else 1)
    assert (m.Delete(job="digits-1", step=10) in server.received) is goes
    assert ("nothing was deleted" in err) is not goes
