"""The three lines that load fetched weights in plain torch.  Pure text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def loading_lines(spec: Mapping[str, Any], weights: Path) -> list[str]:
    """Python that builds the task's model and gives it the weights."""
    return [
        "from safetensors.torch import load_file; from dtd.train.task import load_task",
        f"model = load_task({spec['job']['task']!r}, {spec['task']!r}).build_model()",
        f"model.load_state_dict(load_file({str(weights)!r}))",
    ]
