"""Metric names keep Prometheus' customs; the page and the dashboard name those that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dtd.observe.metrics.catalogue import BY_NAME, METRICS, Metric
from dtd.observe.step_parts import STEP_PARTS
from scripts.gen_docs.__main__ import PAGES

UNITS = ("_seconds", "_bytes", "_ratio", "_per_second", "_total")
COUNTED = {
    *("dtd_job_step", "dtd_job_planned_steps", "dtd_job_epoch", "dtd_job_generation"),
    *("dtd_job_world_size", "dtd_checkpoint_step", "dtd_worker_step", "dtd_worker_generation"),
    *("dtd_workers", "dtd_queued_jobs"),
}
WITHOUT_UNIT = {
    *("dtd_job_loss", "dtd_job_learning_rate", "dtd_job_gradient_norm", "dtd_job_evaluation"),
    *("dtd_worker_loss", "dtd_worker_learning_rate", "dtd_worker_gradient_norm"),
}


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_and_labels(metric: Metric) -> None:
    assert re.fullmatch(r"dtd(_[a-z]+)+", metric.name)
    assert (metric.kind == "counter") == metric.name.endswith("_total")
    assert metric.name.endswith(UNITS) or metric.name in COUNTED | WITHOUT_UNIT
    assert set(metric.labels) <= {"job", "worker", "peer", "kind"}
    assert re.fullmatch(r"[A-Z][^|\n]*\.", metric.meaning)


def test_the_page_names_every_metric_and_no_other() -> None:
    text = PAGES["metrics"].path.read_text()
    mentioned = {name.removesuffix("_") for name in re.findall(r"\bdtd_[a-z_]+", text)}
    assert mentioned == set(BY_NAME)


PATH = Path(__file__).resolve().parents[4] / "docs" / "grafana" / "dtd.json"
DASHBOARD: dict[str, Any] = json.loads(PATH.read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES = {one["name"] for one in DASHBOARD["templating"]["list"]}
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


def test_the_dashboard_shows_the_parts_of_a_step_as_the_page_does() -> None:
    (panel,) = (one for one in PANELS if one["title"] == "Where a step's time goes")
    colours = {
        one["matcher"]["options"]: one["properties"][0]["value"]["fixedColor"]
        for one in panel["fieldConfig"]["overrides"]
    }
    assert [one["legendFormat"] for one in panel["targets"]] == [part.name for part in STEP_PARTS]
    assert colours == {part.name: part.light for part in STEP_PARTS}


@pytest.mark.parametrize("target", TARGETS)
def test_the_dashboard_asks_for_what_there_is(target: dict[str, str]) -> None:
    metrics = metrics_of(target["expr"])
    assert metrics
    for name, labels in metrics:
        assert name in BY_NAME
        assert labels <= set(BY_NAME[name].labels)
        assert labels_asked(target) <= set(BY_NAME[name].labels)
        assert "coordinator" in BY_NAME[name].served_by, "one scrape of it must be enough"
        if BY_NAME[name].kind == "counter" and "job" not in BY_NAME[name].labels:
            # A worker's counters begin again at zero with each job.
            assert re.search(rf"(rate|increase)\({name}", target["expr"])
    assert set(re.findall(r"\$(\w+)", target["expr"])) <= VARIABLES
