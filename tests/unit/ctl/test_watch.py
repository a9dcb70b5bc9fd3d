"""`dtdctl status --watch`: what it asks, the screen, and the lines without a terminal."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from dtd.ctl.commands.watch import Scene, view

HEIGHT = 40


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


def test_without_colour_there_are_no_control_codes_and_the_same_characters(scene):
    bare = drawn(scene, force_terminal=True, no_color=True, color_system=None)
    painted = drawn(scene, force_terminal=True, color_system="standard")
    assert "\x1b" not in bare
    assert "\x1b[" in painted
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == bare


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
