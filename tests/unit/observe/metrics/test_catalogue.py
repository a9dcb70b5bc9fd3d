"""Metric names keep Prometheus' customs, and the page that explains them is up to date."""

from __future__ import annotations

import re

import pytest

from dtd.observe.metrics.catalogue import BY_NAME, METRICS, Metric
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


def test_a_name_is_given_once() -> None:
    assert len(BY_NAME) == len(METRICS)


def test_the_page_names_every_metric_and_no_other() -> None:
    text = PAGES["metrics"].path.read_text()
    mentioned = {name.removesuffix("_") for name in re.findall(r"\bdtd_[a-z_]+", text)}
    assert mentioned == set(BY_NAME)
