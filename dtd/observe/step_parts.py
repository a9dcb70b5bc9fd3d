"""The parts of a step's time: their names and colours, the same wherever they are shown.

The page, the report, `dtdctl status --watch` and the Grafana dashboard take them from here; a
test compares the dashboard.  Pure.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class StepPart(NamedTuple):
    """One part, with its colours on a light and on a dark ground and in a terminal.

    Attributes:
        key: short, for the names of styles.
        field: of step rows and heartbeats; seconds.
        mark: its character in a terminal.
    """

    key: str
    field: str
    name: str
    light: str
    dark: str
    style: str
    mark: str


STEP_PARTS: Final = (
    StepPart("data", "data_s", "data", "#0f8fa8", "#45c3da", "cyan", "▒"),
    StepPart("compute", "compute_s", "compute", "#1f6feb", "#5b9dff", "blue", "█"),
    StepPart("exposed", "exposed_s", "exposed communication", "#d9730d", "#f29a4a", "yellow", "░"),
    StepPart("optimizer", "optimizer_s", "optimizer", "#7a5cd6", "#a892f5", "magenta", "▓"),
)
OTHER: Final = StepPart("other", "", "other", "#a9b4c2", "#566375", "bright_black", " ")
"""The rest of a step."""


def stylesheet() -> str:
    """The colours as custom properties `--part-KEY` of a page."""
    every = (*STEP_PARTS, OTHER)
    light = "".join(f"--part-{part.key}:{part.light};" for part in every)
    dark = "".join(f"--part-{part.key}:{part.dark};" for part in every)
    return f":root{{{light}}}\n@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
