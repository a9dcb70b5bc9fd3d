"""`dtdctl status --watch`: what it asks, the screen, and the lines without a terminal."""

from __future__ import annotations

import io
import itertools
import re

import pytest
from rich.console import Console

from dtd.ctl.settings import make_settings
from dtd.ctl.watch import Scene, Watcher, change_lines, view
from dtd.errors import CoordinatorUnreachable
from dtd.wire import messages as m

HEIGHT = 40
EVENT = {"time_s": 1.0, "kind": "recovered", "message": "on it goes", "seq": 7}


@pytest.fixture
def watcher(server, result, status):
    points = [[1, 1, 1, 2.0, 2.0, 2.0], [2, 2, 0, None, None, None]]
    answers = {
        m.GetStatus: status,
        m.GetFigures: {"job": "digits-1", "workers": [], "links": []},
        m.GetMetrics: {"series": [{"name": "loss", "points": points}]},
    }

    def script(message):
        if isinstance(message, m.ReadEvents):
            return result({"events": [EVENT] if message.after < 7 else [], "next": 7})
        return result(answers[type(message)])

    server.script = script
    made = Watcher(make_settings({"coordinator": str(server.control)}))
    yield made
    made.close()


def test_a_coordinator_that_goes_away_leaves_the_last_picture(watcher, server, status):
    script, server.script = server.script, lambda _message: None
    with pytest.raises(CoordinatorUnreachable):
        watcher.look()
    server.script = script
    watcher.look()
    server.script = lambda _message: None
    scene = watcher.look()
    assert "training goes on without it" in scene.note
    assert scene.status == status
    [line] = list(change_lines(scene, watcher.fresh, changed=True))
    assert scene.note in line


# --- the screen --------------------------------------------------------------------------------


@pytest.fixture
def scene(status) -> Scene:
    job = status["job"]
    job["straggler"] = {"name": "worker-1", "cost_s": 0.012}
    for worker, step_s in zip(status["workers"], (0.04, 0.05), strict=True):
        worker.update(step_s=step_s, memory_bytes=512 << 20)
    loss = [[step, 2.4 - step * 0.01] for step in range(200)]
    figures = {
        "workers": [
            {
                "name": f"worker-{rank}",
                "step_s": 0.04 + 0.01 * rank,
                "data_s": 0.005,
                "compute_s": 0.02 + 0.01 * rank,
                "exposed_s": 0.01,
                "optimizer_s": 0.005,
            }
            for rank in range(2)
        ],
        "links": [
            {"from": "worker-0", "to": "worker-1", "rtt_s": 0.0004, "bytes_per_s": 117e6},
            {"from": "worker-1", "to": "worker-0", "rtt_s": 0.0, "bytes_per_s": 0.0},
        ],
    }
    events = [
        {"time_s": 3661.0, "kind": "worker_lost", "message": "worker-2 is gone: " + "x" * 90},
        {"time_s": 3662.0, "kind": "recovered", "message": "generation 2 goes on from step 7"},
    ]
    return Scene(status, figures, loss, events)


def drawn(scene, *, width=80, height=HEIGHT, **console):
    out = io.StringIO()
    screen = Console(file=out, width=width, height=height, record=True, **console)
    screen.print(view(scene, width=width, height=height), soft_wrap=True)
    return out.getvalue()


def test_the_whole_screen_at_80_columns(scene, request):
    golden = request.path.parent / "watch_screen.txt"
    text = "\n".join(line.rstrip() for line in drawn(scene).splitlines()) + "\n"
    assert text == golden.read_text(encoding="utf-8")
    assert max(map(len, drawn(scene, width=160).splitlines())) == 160
    assert len(drawn(scene, height=12).splitlines()) == 12


@pytest.mark.parametrize("workers", [2, 4, 16])
def test_events_are_in_sight_on_a_small_screen(scene, status, workers):
    status["workers"] = [{**status["workers"][0], "name": f"worker-{i}"} for i in range(workers)]
    link = scene.figures["links"][0]
    scene.figures["links"] = [{**link, "to": f"worker-{i}"} for i in range(workers)]
    events = [
        {"time_s": 3600.0 + i, "kind": "worker_lost", "message": f"number {i}"} for i in range(9)
    ]
    lines = drawn(scene._replace(events=events), height=24).splitlines()
    assert len(lines) <= 24
    assert [line.rstrip()[-8:] for line in lines[-3:]] == ["number 6", "number 7", "number 8"]
    shown = sum(line.startswith("worker-") and "->" not in line for line in lines)
    assert shown == workers or any(f"and {workers - shown} more" in line for line in lines)


def test_a_loss_that_falls_by_orders_of_magnitude_has_a_logarithmic_axis(scene):
    scene.loss[:] = [[step, 10 ** (2 - step / 50)] for step in range(200)]
    text = drawn(scene)
    assert "LOSS (logarithmic)" in text
    lengths = [len(line[9:].rstrip()) for line in text.splitlines()[6:12]]
    assert all(b - a >= 8 for a, b in itertools.pairwise(lengths)), lengths


def test_without_colour_there_are_no_control_codes_and_the_same_characters(scene):
    bare = drawn(scene, force_terminal=True, no_color=True, color_system=None)
    painted = drawn(scene, force_terminal=True, color_system="standard")
    assert "\x1b" not in bare
    assert "\x1b[" in painted
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == bare


def test_troubles_and_a_coordinator_that_is_away(scene, status):
    status["troubles"] = [
        {"since_s": 1.0, "where": "10.0.0.2", "message": "its token is old", "remedy": "make one"}
    ]
    text = drawn(scene._replace(note="nothing listens at 127.0.0.1:7117"))
    assert "10.0.0.2: its token is old\n  try: make one\n" in re.sub(" +\n", "\n", text)
    assert text.splitlines()[1].startswith("nothing listens")


def test_nothing_that_others_wrote_makes_a_line_of_its_own(scene):
    hostile = "x\nforged\x1b[2J\u2028\u202e"
    scene.status["troubles"] = [{"where": hostile, "message": hostile, "remedy": hostile}]
    scene.status["explain"] = scene.status["job"]["id"] = hostile
    for worker in scene.status["workers"]:
        worker["state"] = hostile
    events = [{"time_s": 1.0, "kind": hostile, "message": hostile}]
    text = str(view(scene._replace(events=events, note=hostile), width=200, height=HEIGHT))
    assert "forged" in text
    assert not [line for line in text.split("\n") if line.startswith("forged")]
    assert not set(text) & set("\x1b\u2028\u202e")
