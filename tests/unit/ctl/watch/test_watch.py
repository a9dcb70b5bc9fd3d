"""The requests of `dtdctl status --watch`, and the lines that it prints without a terminal."""

from __future__ import annotations

import pytest

from dtd.ctl.settings import make_settings
from dtd.ctl.watch import Watcher, change_lines, standing, what_matters
from dtd.errors import CoordinatorUnreachable
from dtd.wire import messages as m

EVENT = {"time_s": 1.0, "kind": "recovered", "message": "on it goes", "seq": 7}


@pytest.fixture
def watcher(server, result, status):
    def script(message):
        if isinstance(message, m.GetStatus):
            return result(status)
        if isinstance(message, m.GetFigures):
            return result({"job": "digits-1", "workers": [], "links": []})
        if isinstance(message, m.GetMetrics):
            points = [[1, 1, 1, 2.0, 2.0, 2.0], [2, 2, 0, None, None, None]]
            return result({"series": [{"name": "loss", "points": points}]})
        new = [EVENT] if message.after < 7 else []
        return result({"events": new, "next": 7})

    server.script = script
    made = Watcher(make_settings({"coordinator": str(server.control)}))
    yield made
    made.close()


def test_events_are_fresh_once(watcher):
    watcher.look()
    assert watcher.loss == [[1, 2.0]]
    assert watcher.fresh == [EVENT]
    watcher.look()
    assert (watcher.fresh, list(watcher.events)) == ([], [EVENT])


def test_a_coordinator_that_goes_away_leaves_the_last_picture(watcher, server, status):
    watcher.look()
    server.script = lambda _message: None
    watcher.look()
    assert "training goes on without it" in watcher.note
    assert watcher.status == status
    [line] = list(change_lines(watcher, changed=True))
    assert watcher.note in line


def test_one_that_never_answers_is_an_error(watcher, server):
    server.script = lambda _message: None
    with pytest.raises(CoordinatorUnreachable):
        watcher.look()


def test_what_is_worth_a_line(status):
    before = what_matters(status, "")
    status["job"]["step"] += 1
    status["workers"][0]["samples_per_s"] = 1.0
    assert what_matters(status, "") == before
    assert what_matters(status, "away") != before
    status["workers"][0]["state"] = "lost"
    assert what_matters(status, "") != before


def test_lines_have_no_control_codes(watcher):
    watcher.look()
    lines = list(change_lines(watcher, changed=True))
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines)
    assert lines[0].endswith("recovered: on it goes")


def test_how_things_stand(status):
    assert standing(status) == (
        "digits-1 running  generation 2  step 120/600 (20%)  epoch 3  loss 0.1235  2,345/s"
        "  workers: 2 running  eval accuracy=0.95"
    )
    status["troubles"] = [{"message": "a token is old"}]
    assert standing({**status, "job": None}) == "no job; workers: 2 running"
    assert standing(status).endswith("a token is old")
