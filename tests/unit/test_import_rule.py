"""Imports point one way, pure folders stay pure, and torch stays where it belongs.

    ctl | coordinator | worker -> exchange -> net -> cluster -> engine -> wire -> job | errors
            worker -> own_loop -> train -> exchange.api -> engine
                 ctl | coordinator | train -> checkpoint -> net, engine
           ctl -> observe.report; coordinator -> observe.web -> observe.report -> observe.series

`tasks` is for train and worker.  Training sees the contract of the transports and nothing else of
them; net and train never meet but in worker.  Importing dtd (anything but dtd.train and the modules
of dtd.tasks) never imports torch.
"""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "dtd").rglob("*.py"))

BASE = {
    *("address", "config", "diagnostics", "errors", "event_names", "host", "job", "logs"),
    *("planes", "rules", "text"),
}
PURE_BELOW = {
    *("engine", "errors", "exchange.schedule", "job", "rules", "text", "wire"),
}
MAY_IMPORT: dict[str, set[str]] = {
    **dict.fromkeys(BASE, BASE),
    "errors": set(),
    "rules": {"text"},
    "text": {"errors"},
    "wire": {"errors", "event_names", "job", "text"},
    "engine": {"errors", "job", "rules", "text", "wire"},
    "exchange.schedule": {"engine", "errors", "text", "wire"},
    "exchange.api": {"observe.profile", *PURE_BELOW},
    "observe.profile": {"errors", "job", "observe.step_parts", "text", "wire"},
    "observe.series": {"wire"},
    "observe.pyramid": set(),
    "observe.step_parts": set(),
    "observe.comparison": {"errors", "job", "observe.series", "rules", "text"},
    "observe": BASE | {"observe.pyramid", "observe.series", "wire"},
    "observe.metrics": BASE | {"cluster", "doctor", "net.limits", "net.rates", "wire"},
    "observe.sinks": BASE | {"cluster", "wire"},
    "observe.report": BASE | {"observe.series", "observe.step_parts", "packages", "wire"},
    "observe.web": BASE
    | {
        "net",
        "net.limits",
        "net.rates",
        "observe.report",
        "observe.step_parts",
        "security",
        "wire",
    },
    "doctor": PURE_BELOW,
    "cluster": {"diagnostics", "doctor", *PURE_BELOW},
    "registry": PURE_BELOW,
    "sweeps": {"cluster", *PURE_BELOW},
    "security": BASE | {"wire"},
    "net.limits": {"net.rates"},
    "net.rates": set(),
    "packages": {"errors", "host", "text"},
    "datasets": {"errors", "text"},
    "net": BASE | {"cluster", "exchange.schedule", "net.limits", "net.rates", "security", "wire"},
    "exchange": BASE | PURE_BELOW | {"exchange.api", "net", "observe.profile", "security"},
    "checkpoint": BASE | {"cluster", "engine", "net", "wire"},
    "tasks": BASE | {"engine"},
    "strategy": BASE | PURE_BELOW | {"exchange.api"},
    "train": BASE
    | PURE_BELOW
    | {"cluster", "doctor", "exchange.api", "observe.profile", "checkpoint", "strategy", "tasks"},
    "own_loop": BASE | PURE_BELOW | {"exchange", "train"},
    "coordinator": BASE
    | PURE_BELOW
    | {
        "checkpoint",
        "cluster",
        "net",
        "net.limits",
        "net.rates",
        "observe",
        "packages",
        "registry",
        "security",
    }
    | {"observe.comparison", "observe.metrics", "observe.profile"}
    | {"observe.sinks", "observe.web", "sweeps"},
    "worker": BASE
    | PURE_BELOW
    | {"cluster", "exchange", "exchange.api", "checkpoint", "net", "observe.metrics"}
    | {"observe.profile"}
    | {"datasets", "own_loop", "packages", "registry", "security", "tasks", "train"},
    "ctl": BASE
    | {
        "cluster",
        "doctor",
        "engine",
        "checkpoint",
        "net",
        "observe.profile",
        "observe.report",
        "observe.step_parts",
        "packages",
    }
    | {"registry", "security", "wire"},
}
PURE = {
    *("cluster", "doctor", "engine", "exchange.api", "exchange.schedule"),
    *("observe.comparison", "observe.profile", "observe.pyramid"),
    *("observe.series", "observe.step_parts", "registry", "sweeps", "text", "wire"),
}
IMPURE = {
    *("asyncio", "socket", "threading", "time", "random", "os", "torch", "numpy"),
    *("selectors", "subprocess", "multiprocessing", "concurrent", "secrets", "uuid", "uvloop"),
}
HAS_TORCH = {"own_loop", "strategy", "tasks", "train"}
NEEDS_TORCH = {
    "dtd.exchange.group_backends",
    "dtd.exchange.process_group",
    "dtd.worker.job.by_hand",
}
"""Modules of other folders that are imported when a job or a script wants them."""

LIBRARIES_OF_TORCH = {"torch", "torchvision", "safetensors"}


CONTRACTS = {
    *(("exchange", "api"), ("exchange", "schedule"), ("net", "limits"), ("net", "rates")),
    *(("observe", name) for name in ("comparison", "metrics", "profile")),
    *(("observe", name) for name in ("pyramid", "report", "series", "sinks", "step_parts", "web")),
}
"""Modules and folders that are a unit of their own, which others may import without the rest."""


def unit_of(path: Path) -> str:
    """The folder or top-level module of dtd that a file belongs to; empty for dtd itself."""
    parts = path.relative_to(ROOT / "dtd").with_suffix("").parts
    return "" if parts == ("__init__",) else unit_named(parts)


def unit_named(parts: tuple[str, ...]) -> str:
    """The unit of a module, given its dotted name below dtd."""
    return ".".join(parts[:2]) if parts[:2] in CONTRACTS else parts[0]


@functools.cache  # three rules read most sources
def imported(source: str) -> set[str]:
    """Dotted names of everything that a source imports, at any depth."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the direction"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def units_imported(source: str) -> set[str]:
    """Units of dtd that a source imports."""
    return {
        unit_named(tuple(name.split(".")[1:]))
        for name in imported(source)
        if name.startswith("dtd.") and name != "dtd.__version__"
    }


def libraries_imported(source: str) -> set[str]:
    """Top-level packages that a source imports."""
    return {name.split(".")[0] for name in imported(source)}


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


# --- the rule --------------------------------------------------------------------------------


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_imports_point_one_way(path: Path) -> None:
    unit = unit_of(path)
    allowed = MAY_IMPORT[unit] | {unit} if unit else {"datasets", "own_loop", "worker"}
    wrong = units_imported(path.read_text()) - allowed
    assert not wrong, f"{named(path)} must not import dtd.{', dtd.'.join(sorted(wrong))}"


@pytest.mark.parametrize("path", [p for p in MODULES if unit_of(p) in PURE], ids=named)
def test_pure_folders_import_nothing_impure(path: Path) -> None:
    wrong = libraries_imported(path.read_text()) & IMPURE
    assert not wrong, f"{named(path)} must not import {', '.join(sorted(wrong))}"


def may_have_torch(path: Path) -> bool:
    return unit_of(path) in HAS_TORCH or dotted(path) in NEEDS_TORCH


@pytest.mark.parametrize("path", [p for p in MODULES if not may_have_torch(p)], ids=named)
def test_torch_stays_in_train_and_tasks(path: Path) -> None:
    wrong = libraries_imported(path.read_text()) & LIBRARIES_OF_TORCH
    assert not wrong, f"{named(path)} must not import {', '.join(sorted(wrong))}"


def test_net_and_train_never_meet() -> None:
    assert "train" not in MAY_IMPORT["net"]
    assert "net" not in MAY_IMPORT["train"]


def test_rule_knows_every_folder() -> None:
    assert {unit_of(path) for path in MODULES} - {""} <= set(MAY_IMPORT)


def test_rule_has_no_cycles() -> None:
    """Whoever imports nothing of what is left is taken away, until nothing is left."""
    left = {unit: allowed - BASE for unit, allowed in MAY_IMPORT.items() if unit not in BASE}
    while left:
        free = {unit for unit, allowed in left.items() if not allowed & set(left)}
        assert free, f"a cycle among {sorted(left)}"
        left = {unit: allowed for unit, allowed in left.items() if unit not in free}


# --- torch at run time -----------------------------------------------------------------------

IMPORT_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    if "torch" in sys.modules:
        sys.exit(f"importing {name} imports torch")
"""


def test_importing_dtd_never_imports_torch() -> None:
    names = [
        dotted(path)
        for path in MODULES
        if unit_of(path) not in ("own_loop", "strategy", "train")
        and dotted(path) not in NEEDS_TORCH
        and path.name != "__main__.py"
        and (unit_of(path) != "tasks" or path.name == "__init__.py")
    ]
    assert {"dtd", "dtd.wire.frames", "dtd.tasks"} <= set(names)
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, *names], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# --- what `dtdctl status` loads --------------------------------------------------------------

IMPORT_STATUS = """
import sys
import dtd.ctl.main, dtd.ctl.commands.status
from dtd.wire import messages as m
m.Hello, m.GetStatus
print(*sys.modules)
"""


def test_status_loads_only_what_it_needs() -> None:
    """It is what people and scripts call most, and most of its time is loading."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_STATUS], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    slow = {"asyncio", "cryptography", "numpy", "sqlite3", "ssl", "structlog", "uvloop"}
    assert not loaded & slow
    messages = {name for name in loaded if name.startswith("dtd.wire.messages.")}
    others = ("control", "data", "requests")
    assert not messages & {f"dtd.wire.messages.{name}" for name in others}


# --- the test itself -------------------------------------------------------------------------


def test_imports_are_found_wherever_they_hide() -> None:
    source = """
import os.path, dtd.net.link
from dtd.exchange.api import Collective
from dtd import __version__, job
from dtd.wire import messages as m
if TYPE_CHECKING:
    from dtd.train.run import JobSessionRunner
def late():
    import torch.nn as nn
"""
    assert units_imported(source) == {"net", "exchange.api", "job", "wire", "train"}
    assert libraries_imported(source) == {"os", "dtd", "torch"}
    with pytest.raises(AssertionError, match="relative"):
        imported("from . import frames")
