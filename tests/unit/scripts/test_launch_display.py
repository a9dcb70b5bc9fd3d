from __future__ import annotations

import io

import pytest

from scripts import launch_report
from scripts.launch_report import LineDisplay, open_display, progress_words


def status(**changes):
    job = {"id": "a-1", "state": "running", "generation": 1, "world_size": 4, "step": 3}
    figures = {"total_steps": 60, "epoch": 0, "loss": 0.5, "samples_per_s": 100.0, "reason": ""}
    return {"job": {**job, **figures, **changes}, "explain": "worker-3 warms up"}


def test_words():
    assert progress_words(status()) == "loss 0.5  100/s  4 workers  generation 1"
    assert "  2 workers and 2 servers  " in progress_words(status(servers=2))
    assert progress_words(status(state="warming")) == "warming: worker-3 warms up"
    assert progress_words(status(state="waiting", reason="alone")) == "waiting: alone"


def test_lines_come_now_and_then_and_when_something_changes(capsys, monkeypatch):
    clock = iter([0.0, 1.0, 2.0, 2.0 + launch_report.LINE_EVERY_S])
    monkeypatch.setattr(launch_report.time, "monotonic", lambda: next(clock))
    display = LineDisplay()
    display.update(status(step=1))
    display.update(status(step=2))
    display.update(status(step=3, generation=2, world_size=3))
    display.update(status(step=4, generation=2, world_size=3))
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split()[1] for line in err.splitlines()] == ["1/60", "3/60", "4/60"]


def test_what_was_said_is_not_said_again(capsys, monkeypatch):
    clock = iter(range(0, 1000, 100))
    monkeypatch.setattr(launch_report.time, "monotonic", lambda: next(clock))
    display = LineDisplay()
    for step in (0, 0, 0, 1):
        display.update(status(state="warming", step=step))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == ["0/60", "1/60"]


def test_no_job_yet(capsys):
    LineDisplay().update({"job": None})
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("terminal", [False, True])
def test_the_display_suits_stderr(monkeypatch, terminal):
    stream = io.StringIO()
    stream.isatty = lambda: terminal
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", stream)
    with open_display() as display:
        display.update({"job": None})
        display.update(status())
        display.say("worker-2 [died]")
    shown = stream.getvalue()
    assert isinstance(display, LineDisplay) is not terminal
    assert "worker-2 [died]" in shown
    assert "4 workers" in shown
    assert ("\x1b" in shown) is terminal
