"""The page's modules, run by node."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import dtd.observe.web

STATIC = Path(dtd.observe.web.__file__).parent / "static"


@pytest.fixture
def evaluate(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Evaluates an expression after the test module's `MODULES`, beside the page's own modules."""
    shutil.copytree(STATIC, tmp_path, dirs_exist_ok=True)
    (tmp_path / "package.json").write_text('{"type": "module"}')

    def run(expression: str) -> Any:
        (tmp_path / "run.js").write_text(
            f"{request.module.MODULES}\nconsole.log(JSON.stringify({expression}));"
        )
        done = subprocess.run(
            ["node", "run.js"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
        )
        return json.loads(done.stdout)

    return run
