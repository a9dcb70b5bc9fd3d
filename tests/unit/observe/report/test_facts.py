"""Facts follow from the coordinator's answers."""

from __future__ import annotations

import pytest

from dtd.observe.report.document import document_of
from dtd.observe.report.facts import Facts, facts_of
from tests.unit.observe.report.conftest import EVENTS, details, event, metrics, series


def test_rates_are_told_apart_by_the_number_of_workers(facts: Facts) -> None:
    two, three = facts.worlds
    assert (two.workers, two.steps, three.workers, three.steps) == (2, 50, 3, 50)
    assert two.rows_per_s == pytest.approx(300)
    assert three.rows_per_s == pytest.approx(360)
    assert (two.efficiency, three.efficiency) == (1.0, pytest.approx(0.8))
    assert three.exposed_s == pytest.approx(0.06)


def test_a_stretch_of_steps_of_two_generations_belongs_to_neither() -> None:
    def merged(one):
        points = [
            [10 * at + 1, 10 * at + 10, 10, *_summary(one["points"][10 * at : 10 * at + 10])]
            for at in range(10)
        ]
        return one | {"points": points}

    def _summary(points):
        values = [point[4] for point in points]
        return min(values), sum(values) / len(values), max(values)

    shifted = metrics(generation=lambda step: 1.0 if step < 56 else 2.0)
    answer = shifted | {"series": [merged(one) for one in shifted["series"][:12]]}
    two, three = facts_of(details(), [answer], EVENTS).worlds
    assert (two.steps, three.steps) == (50, 40)


def test_incidents_are_the_jobs_own_without_the_usual(facts: Facts) -> None:
    assert [one["kind"] for one in facts.incidents] == ["worker_lost", "recovered"]


def test_a_worker_that_was_idle_at_times_counts_while_it_trained() -> None:
    answer = metrics()
    answer["series"] += [
        series("worker_step_s", lambda step: 0.0 if step < 91 else 0.5, "worker", source="w-9"),
        series("worker_data_s", lambda step: 0.0 if step < 91 else 0.1, "worker", source="w-9"),
    ]
    late = facts_of(details(), [answer], EVENTS).workers[-1]
    assert (late.step_s, late.parts["data_s"]) == (0.5, pytest.approx(0.1))
    assert late.memory_bytes is None


def test_a_job_without_figures_has_no_facts(untrained: Facts) -> None:
    assert not untrained.has_trained
    assert (untrained.worlds, untrained.mean("step_s")) == ([], None)
    older = event("generation_running", generation=1)  # an earlier release told no number
    assert [one.workers for one in facts_of(details(), [metrics()], [older]).worlds] == [3]


def test_a_metric_that_never_was_a_number_is_named_and_drawn_nowhere() -> None:
    answer = metrics()
    nothing = [[at, at, 0, None, None, None] for at in (20, 60)]
    answer["series"].append(
        {"name": "eval/score", "kind": "evaluations", "source": "", "to": "", "points": nothing}
    )
    found = facts_of(details(), [answer], [])
    assert found.without_numbers == ["score"]
    assert list(found.evaluations) == ["accuracy"]
    document = document_of(found, None, made="now")
    assert "score was not a finite number in any evaluation." in str(document)
