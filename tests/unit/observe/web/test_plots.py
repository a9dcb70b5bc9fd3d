"""The page's script draws series, run by the interpreter that is here."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import dtd.observe.web

STATIC = Path(dtd.observe.web.__file__).parent / "static"
BROWSER = """
globalThis.matchMedia = () => ({ addEventListener() {} });
globalThis.document = { documentElement: {}, querySelectorAll: () => [] };
globalThis.getComputedStyle = () => ({ getPropertyValue: () => "#112233" });
const { curve, withGaps } = await import("./plots.js");
const { Curves, extended } = await import("./curves.js");
const at = (step) => [step, step, 1, step, step, step];
"""
pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="needs node")


@pytest.fixture
def evaluate(tmp_path: Path) -> Any:
    """Runs an expression beside the page's own modules."""
    shutil.copytree(STATIC, tmp_path, dirs_exist_ok=True)
    (tmp_path / "package.json").write_text('{"type": "module"}')

    def run(expression: str) -> Any:
        program = f"{BROWSER}\nconsole.log(JSON.stringify({expression}));"
        (tmp_path / "run.js").write_text(program)
        done = subprocess.run(
            ["node", "run.js"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
        )
        return json.loads(done.stdout)

    return run


def test_a_line_has_a_gap_where_nothing_was_reported(evaluate: Any) -> None:
    drawn = evaluate('curve({ points: [1, 2, 3, 4, 30, 31].map(at) }, "memory", "#112233")[0].y')
    assert drawn == [1, 2, 3, 4, None, 30, 31]


LOOKS = """await (async () => {
    const asked = [], steps = STEPS;
    const curves = new Curves(async (query) => {
        asked.push(query.from ?? null);
        const newest = steps.shift();
        const all = Array.from({ length: newest }, (_, place) => at(place + 1));
        const points = all.filter((point) => point[0] >= (query.from ?? 0));
        return { steps: newest, series: [{ name: "loss", source: "", to: "", points }] };
    });
    while (steps.length) await curves.look();
    return [asked, curves.named("loss").points.map((point) => point[0])];
})()"""


def test_steps_that_were_lost_are_not_shown(evaluate: Any) -> None:
    asked, drawn = evaluate(LOOKS.replace("STEPS", "[9, 6, 6]"))
    assert asked == [None, 9, None]
    assert drawn == [1, 2, 3, 4, 5, 6]
