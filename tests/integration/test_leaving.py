"""Workers leave with notice: by SIGTERM, all of them, and when a command asks for it."""

from __future__ import annotations

import os
import signal

import pytest

pytestmark = pytest.mark.integration

PATIENCE_S = 100.0


def test_all_workers_are_stopped_at_once_and_lose_no_step(start_daemons):
    daemons = start_daemons(2)
    gates = daemons.hold(7)
    job = daemons.submit("checkpoint.every_steps=1000", gates=gates)
    daemons.await_event("generation_running", job=job)
    workers = [daemons.child(name) for name in ("worker-0", "worker-1")]
    for worker in workers:
        os.kill(worker.pid, signal.SIGTERM)
    daemons.await_event("generation_ending", job=job)
    gates.open_all()
    assert [worker.wait(PATIENCE_S) for worker in workers] == [0, 0]
    left_at = daemons.step(job)
    daemons.start_again()
    answer = daemons.wait(job)
    assert (answer["state"], answer["result"]["steps"]) == ("done", 32)
    assert answer["result"]["steps_lost"] == 0
    assert daemons.events("worker_lost", job) == []
    assert 0 < left_at < 32


def test_a_worker_stands_by_while_its_command_asks_for_it(start_daemons, tmp_path, monkeypatch):
    command, asks = tmp_path / "command", tmp_path / "asks"
    command.write_text(f"#!/bin/sh\ncat {asks}\n")
    command.chmod(0o755)
    daemons = start_daemons(1)
    monkeypatch.setenv("DTD_DRAIN_WHEN", str(command))
    daemons.cluster.start_worker("worker-9", "--device", "cpu")
    gates = daemons.hold(7)
    job = daemons.submit("elastic.min_workers=2", gates=gates)
    daemons.await_event("generation_running", job=job)
    asks.write_text("somebody works here\n")
    leaves = daemons.await_event("generation_ending", job=job)
    assert "worker-9 leaves: somebody works here" in leaves["message"]
    gates.open_all()
    worker = daemons.child("worker-9")
    while "stands_by" not in "\n".join(worker.log_tail()):
        assert worker.wait(0.05) is None
    worker.signal_group(signal.SIGTERM)
    assert worker.wait(PATIENCE_S) == 0
    asks.unlink()
    daemons.start_again()
    assert daemons.wait(job)["result"]["steps_lost"] == 0
