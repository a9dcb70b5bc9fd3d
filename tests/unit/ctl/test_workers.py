from __future__ import annotations

import json

import pytest

from dtd.wire import messages as m


@pytest.mark.parametrize(("typed", "sent"), [((), "KILL"), (("--signal", "term"), "TERM")])
def test_kill_worker(dtdctl, server, result, typed, sent):
    server.script = lambda message: result(
        {"name": message.name, "pid": 42, "signal": message.signal}
    )
    exit_code, out, err = dtdctl("kill-worker", "worker-1", *typed)
    assert (exit_code, out, err) == (0, "", f"SIG{sent} was sent to worker-1 (pid 42)\n")
    assert server.received == [m.KillWorker(name="worker-1", signal=sent)]
    assert json.loads(dtdctl("kill-worker", "worker-1", "-o", "json")[1])["pid"] == 42


def test_a_signal_that_is_not_offered(dtdctl, server):
    assert dtdctl("kill-worker", "worker-1", "--signal", "HUP")[0] == 2
    assert server.received == []


def test_drain(dtdctl, server, result):
    server.script = lambda message: result({"name": message.name})
    message = "worker-1 leaves at the next step boundary\n"
    assert dtdctl("drain", "worker-1") == (0, "", message)
    assert json.loads(dtdctl("drain", "worker-1", "-o", "json")[1]) == {"name": "worker-1"}
