"""The plots of docs/benchmarks.md, as small SVG files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

from scripts.benchrun.results import Record, spread
from scripts.benchrun.sharded_table import sides_of
from scripts.benchrun.strategies import SIDES as STRATEGY_SIDES
from scripts.benchrun.strategy_table import exposed_s
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


def plot_strategies(records: Sequence[Record], path: Path) -> None:
    """Exposed communication of every side; one panel a case."""
    figure, panels = _figure(len(records))
    for panel, record in zip(panels, records, strict=True):
        sides = [side for side in STRATEGY_SIDES if side in record["steps_s"]]
        heights = [max(1e-4, exposed_s(record, side).median) * 1e3 for side in sides]
        colours = [_COLOURS["ddp" if side.startswith("DDP") else "dtd"] for side in sides]
        panel.barh(sides, heights, color=colours, label="exposed communication")
        panel.set_xscale("log")
        panel.invert_yaxis()
        panel.set_title(f"{record['workload']}\n{record['link']}, {record['world']} workers")
        panel.set_xlabel("exposed, ms a step")
    _write(figure, panels, path)


def plot_sharded(records: Sequence[Record], path: Path) -> None:
    """Steps of every side; one panel a case."""
    figure, panels = _figure(len(records))
    for panel, record in zip(panels, records, strict=True):
        sides = sides_of(record)
        heights = [spread(record["steps_s"][side]).median * 1e3 for side in sides]
        colours = [_COLOURS["dtd" if side.startswith("dtd") else "ddp"] for side in sides]
        panel.barh(sides, heights, color=colours, label="step")
        panel.invert_yaxis()
        panel.set_title(f"{record['workload']}\n{record['link']}, {record['world']} workers")
        panel.set_xlabel("step, ms")
    _write(figure, panels, path)


def plot_memory(records: Sequence[Record], path: Path) -> None:
    """Bytes a parameter, measured and by the formula."""
    figure, (panel,) = _figure(1)
    order = sorted(records, key=lambda one: (one["world"], one["stage"], -one["mirrors"]))
    names = [f"stage {one['stage']}, {one['mirrors']} mirrors, N={one['world']}" for one in order]
    measured = [spread(one["state_bytes"]).median / one["parameters"] for one in order]
    formula = [one["formula_bytes"] / one["parameters"] for one in order]
    panel.barh(names, measured, color=_COLOURS["dtd"], label="measured")
    panel.plot(formula, names, "k|", markersize=12, label="formula")
    panel.invert_yaxis()
    panel.set_xlabel("bytes a parameter")
    _write(figure, [panel], path)


def plot_quality(records: Sequence[Record], path: Path) -> None:
    """Training loss against steps, the first seed of each strategy; one panel a task."""
    tasks = sorted({record["task"] for record in records})
    figure, panels = _figure(len(tasks))
    for panel, task in zip(panels, tasks, strict=True):
        first = min(record["seed"] for record in records if record["task"] == task)
        for record in records:
            if (record["task"], record["seed"]) == (task, first):
                steps, _, losses = zip(*record["curve"], strict=True)
                panel.plot(steps, losses, label=record["strategy"], linewidth=0.8)
        panel.set(title=task, xlabel="step", ylabel="training loss")
    _write(figure, panels, path)


def _figure(columns: int) -> tuple[Figure, list[Any]]:
    with mpl.rc_context(_FIXED):
        figure = Figure(figsize=(_WIDTH_IN * columns, _HEIGHT_IN), layout="constrained")
        panels: Any = figure.subplots(1, columns, squeeze=False)
    return figure, list(panels[0])


def _write(figure: Figure, panels: Sequence[Any], path: Path) -> None:
    panels[0].legend(frameon=False)
    with mpl.rc_context(_FIXED):
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
