"""The Grafana dashboard asks for metrics and labels that exist, and shows what people look for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dtd.observe.metrics.catalogue import BY_NAME

PATH = Path(__file__).resolve().parents[4] / "docs" / "grafana" / "dtd.json"
DASHBOARD: dict[str, Any] = json.loads(PATH.read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
TARGETS = [
    pytest.param(target, id=f"{panel['title']}-{target['refId']}")
    for panel in PANELS
    for target in panel["targets"]
]


def metrics_of(query: str) -> list[tuple[str, set[str]]]:
    """(metric, labels it is selected by) of a query."""
    found = re.findall(r"\b(dtd_[a-z_]+)(?:\{([^}]*)\})?", query)
    return [(name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", text))) for name, text in found]


def labels_asked(target: dict[str, str]) -> set[str]:
    """Labels that a query groups by, or that its legend names."""
    groups = re.findall(r"\b(?:by|on|without|ignoring) \(([^)]*)\)", target["expr"])
    grouped = {name.strip() for group in groups for name in group.split(",")}
    return grouped | set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))


@pytest.mark.parametrize("target", TARGETS)
def test_metrics_and_labels_exist(target: dict[str, str]) -> None:
    metrics = metrics_of(target["expr"])
    assert metrics
    for name, labels in metrics:
        assert name in BY_NAME
        assert labels <= set(BY_NAME[name].labels)
        assert labels_asked(target) <= set(BY_NAME[name].labels)
        assert "coordinator" in BY_NAME[name].served_by, "one scrape of it must be enough"


@pytest.mark.parametrize("target", TARGETS)
def test_variables_exist(target: dict[str, str]) -> None:
    used = set(re.findall(r"\$(\w+)", target["expr"]))
    assert used <= set(VARIABLES)


@pytest.mark.parametrize("target", TARGETS)
def test_workers_counters_are_shown_as_rates(target: dict[str, str]) -> None:
    """A worker's counters begin again at zero with each job."""
    for name, _ in metrics_of(target["expr"]):
        if BY_NAME[name].kind == "counter" and "job" not in BY_NAME[name].labels:
            assert re.search(rf"(rate|increase)\({name}", target["expr"])


def test_what_people_look_for_is_there() -> None:
    shown = {
        name for panel in PANELS for t in panel["targets"] for name, _ in metrics_of(t["expr"])
    }
    assert shown >= {
        *("dtd_job_loss", "dtd_job_samples_per_second", "dtd_worker_compute_seconds"),
        *("dtd_worker_exposed_communication_seconds", "dtd_link_round_trip_seconds"),
        *("dtd_link_bytes_per_second", "dtd_worker_resident_memory_bytes"),
        *("dtd_worker_evictions_total", "dtd_checkpoint_timestamp_seconds"),
        *("dtd_worker_part_memory_bytes", "dtd_worker_predicted_memory_bytes"),
    }
