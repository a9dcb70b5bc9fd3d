"""What the page's script makes of series, by the interpreter that is here."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import dtd.web

STATIC = Path(dtd.web.__file__).parent / "static"
BROWSER = """
globalThis.matchMedia = () => ({ addEventListener() {} });
globalThis.document = { documentElement: {}, querySelectorAll: () => [] };
globalThis.getComputedStyle = () => ({ getPropertyValue: () => "#112233" });
const { curve, extended, withGaps } = await import("./plots.js");
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


def test_points_of_many_steps_lie_beside_each_other(evaluate: Any) -> None:
    points = "[[1, 8], [9, 16], [17, 20]].map(([a, b]) => [a, b, 8, 1, 1, 1])"
    assert len(evaluate(f"withGaps({points})")) == 3


def test_what_has_come_since_is_added_once(evaluate: Any) -> None:
    known = '[{ name: "loss", source: "", to: "", points: [at(1), at(2)] }]'
    more = '[{ name: "loss", source: "", to: "", points: [at(2), at(3)] }]'
    found = evaluate(f"[...extended({known}, {more}).values()].map((one) => one.points)")
    assert [point[0] for point in found[0]] == [1, 2, 3]
