"""The three lines that load fetched weights into the task's model.  Pure text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def loading_lines(spec: Mapping[str, Any], *weights: Path) -> list[str]:
    """Python that builds the task's model and gives it the weights; a later file counts."""
    return [
        "from dtd.train.task import load_task; from dtd.train.weights import load_weights",
        f"model = load_task({spec['job']['task']!r}, {spec['task']!r}).build_model()",
        f"load_weights(model, {', '.join(repr(str(file)) for file in weights)})",
    ]
