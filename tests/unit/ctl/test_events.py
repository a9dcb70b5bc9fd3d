from __future__ import annotations

import json

import pytest

from dtd.wire import messages as m


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
        }
        for seq in (1, 2)
    ]

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
    assert lines[0].split() == ["TIME", "KIND", "JOB", "WORKER", "GENERATION", "STEP", "WHAT"]
    assert [line.rsplit("  ", 1)[1] for line in lines[1:]] == ["event 1", "event 2"]
    out = dtdctl("events", "-o", "json")[1]
    assert [json.loads(line)["seq"] for line in out.splitlines()] == [1, 2]


@pytest.mark.parametrize("form", ["table", "json"])
def test_events_are_followed_over_a_restart(dtdctl, script, server, monkeypatch, form):
    monkeypatch.setattr("dtd.ctl.patience.RECONNECT_EVERY_S", 0.0)
    monkeypatch.setattr("dtd.ctl.patience.RECONNECT_FOR_S", 0.0)
    exit_code, out, err = dtdctl("events", "--follow", "-o", form)
    assert exit_code == 3
    assert len(out.splitlines()) == 2
    assert "waiting for it to come back" in err
    assert server.received[:3] == [m.ReadEvents(after=seq, follow=True) for seq in (0, 1, 2)]
