"""The plots of docs/benchmarks.md, as small SVG files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

from scripts.benchrun.results import Record, spread
from scripts.benchrun.tables import bus_bytes_per_s, size_text

SIDES: Final = ("dtd", "gloo", "limit, xxh3", "limit")
STEP_SIDES: Final = ("dtd", "ddp", "apart")
_COLOURS: Final = {
    "dtd": "#1b6ca8",
    "gloo": "#d1495b",
    "ddp": "#d1495b",
    "limit": "#999999",
    "limit, xxh3": "#555555",
    "apart": "#bbbbbb",
}
_WIDTH_IN: Final = 3.4
_HEIGHT_IN: Final = 2.9
# The same figures make the same file.
_FIXED: Final[Any] = {"svg.hashsalt": "dtd", "svg.fonttype": "none", "font.size": 8}


def plot_allreduce(records: Sequence[Record], path: Path) -> None:
    """Bus bandwidth against size, one panel a world, float32."""
    shown = [record for record in records if record["dtype"] == "float32"]
    worlds = sorted({record["world"] for record in shown})
    figure, panels = _figure(len(worlds))
    for panel, world in zip(panels, worlds, strict=True):
        for side in SIDES:
            line = sorted(
                (r["bytes"], bus_bytes_per_s(r) / 1e9)
                for r in shown
                if (r["world"], r["side"]) == (world, side)
            )
            if line:
                xs, ys = zip(*line, strict=True)
                panel.plot(xs, ys, marker=".", label=side, color=_COLOURS[side])
        panel.set_xscale("log", base=2)
        sizes = sorted({record["bytes"] for record in shown})[::2]
        panel.set_xticks(sizes, [size_text(size) for size in sizes], rotation=45)
        panel.set_title(f"{world} workers")
        panel.set_ylabel("bus bandwidth, GB/s")
    _write(figure, panels, path)


def plot_train(records: Sequence[Record], path: Path) -> None:
    """Steps of dtd, DDP and no synchronisation at the largest world; one panel a link."""
    world = max(record["world"] for record in records)
    shown = [record for record in records if record["world"] == world]
    links = sorted({record["link"] for record in shown})
    figure, panels = _figure(len(links))
    for panel, link in zip(panels, links, strict=True):
        mine = sorted((r for r in shown if r["link"] == link), key=lambda r: str(r["workload"]))
        width = 0.8 / len(STEP_SIDES)
        for index, side in enumerate(STEP_SIDES):
            places = [number + index * width for number in range(len(mine))]
            heights = [spread(r["steps_s"][side]).median * 1e3 for r in mine]
            panel.bar(places, heights, width, label=side, color=_COLOURS[side])
        floors = [r["floor"].get("floor_s", float("nan")) * 1e3 for r in mine]
        centres = [number + width for number in range(len(mine))]
        panel.plot(centres, floors, "k_", markersize=24, label="floor")
        panel.set_xticks(centres, [r["workload"] for r in mine], rotation=30)
        panel.set_yscale("log")
        panel.set_title(f"{link}, {world} workers")
        panel.set_ylabel("step, ms")
    _write(figure, panels, path)


def plot_convergence(records: Sequence[Record], path: Path) -> None:
    """Loss against steps above, against time below; one column a task."""
    tasks = sorted({record["task"] for record in records})
    with mpl.rc_context(_FIXED):
        figure = Figure(figsize=(_WIDTH_IN * len(tasks), 2 * _HEIGHT_IN), layout="constrained")
        rows: Any = figure.subplots(2, len(tasks), squeeze=False)
    for column, task in enumerate(tasks):
        for record in (one for one in records if one["task"] == task):
            steps, seconds, losses = zip(*record["curve"], strict=True)
            for panel, xs in ((rows[0][column], steps), (rows[1][column], seconds)):
                panel.plot(xs, losses, label=record["workers"], linewidth=0.9)
        rows[0][column].set(title=task, xlabel="step", ylabel="training loss")
        rows[1][column].set(xlabel="seconds", ylabel="training loss")
    _write(figure, list(rows[0]), path)


def _figure(columns: int) -> tuple[Figure, list[Any]]:
    with mpl.rc_context(_FIXED):
        figure = Figure(figsize=(_WIDTH_IN * columns, _HEIGHT_IN), layout="constrained")
        panels: Any = figure.subplots(1, columns, squeeze=False)
    return figure, list(panels[0])


def _write(figure: Figure, panels: Sequence[Any], path: Path) -> None:
    panels[0].legend(frameon=False)
    with mpl.rc_context(_FIXED):
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
