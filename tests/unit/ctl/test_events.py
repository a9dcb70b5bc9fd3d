from __future__ import annotations

import json
import re

import pytest

from dtd.wire import messages as m

RECOVERED = {
    "cause": "worker-1 is lost",
    "worker": "worker-1",
    "detected_after_s": 0.0314,
    "recovered_after_s": 1.25,
    "paused_s": 0.09,
    "steps_redone": 1,
    "steps_lost": 0,
    "generation": 2,
}


@pytest.fixture
def script(server, result):
    """Serves two events, page by page; a follower is cut off after them."""
    events = [
        {
            "seq": seq,
            "time_s": 1_700_000_000.0,
            "kind": "worker_lost",
            "job": "a-1",
            "worker": "w",
            "generation": 1,
            "step": 9,
            "message": f"event {seq}",
            "details": {},
        }
        for seq in (1, 2)
    ]
    events[1].update(kind="recovered", worker="", details=RECOVERED)

    def answer(message):
        rest = [event for event in events if event["seq"] > message.after][:1]
        if not rest and message.follow:
            return None
        return result({"events": rest, "next": rest[0]["seq"] if rest else message.after})

    server.script = answer


def test_events_are_listed(dtdctl, script):
    exit_code, out, _err = dtdctl("events")
    lines = out.splitlines()
    assert exit_code == 0
    headings = "TIME KIND JOB WORKER GENERATION STEP DETECTED RECOVERED REDONE LOST WHAT"
    assert lines[0].split() == headings.split()
    plain, recovered = [re.split("  +", line)[1:] for line in lines[1:]]
    assert plain == ["worker_lost", "a-1", "w", "1", "9", "-", "-", "-", "-", "event 1"]
    costs = ["31 ms", "1.25 s", "1", "0"]
    assert recovered == ["recovered", "a-1", "worker-1", "1", "9", *costs, "event 2"]
    out = dtdctl("events", "-o", "json")[1]
    events = [json.loads(line) for line in out.splitlines()]
    assert [event["seq"] for event in events] == [1, 2]
    assert [event["details"] for event in events] == [{}, RECOVERED]


@pytest.mark.parametrize("form", ["table", "json"])
def test_events_are_followed_over_a_restart(dtdctl, script, server, monkeypatch, form):
    monkeypatch.setattr("dtd.ctl.answers.RECONNECT_EVERY_S", 0.0)
    monkeypatch.setattr("dtd.ctl.answers.RECONNECT_FOR_S", 0.0)
    exit_code, out, err = dtdctl("events", "--follow", "-o", form)
    assert exit_code == 3
    first, second = out.splitlines()
    if form == "table":
        assert first.endswith("worker_lost  a-1  w  1  9  event 1")
        assert second.endswith(
            "event 2  detected after 31 ms  recovered after 1.25 s  steps redone 1  steps lost 0"
        )
    assert "waiting for it to come back" in err
    assert server.received[:3] == [m.ReadEvents(after=seq, follow=True) for seq in (0, 1, 2)]
