"""Names in logs and incidents: each one used in the code is explained, and no other."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from dtd.coordinator.core import QUIET_INCIDENTS
from dtd.event_names import EVENTS, INCIDENTS, NOTICES
from scripts.gen_docs import events


@functools.cache
def all_uses() -> list[events.Use]:
    return list(events.uses())


REGISTRY = {"event": EVENTS, "incident": INCIDENTS}
MADE_BY_A_PROCESSOR = {"library_log"}


def test_a_name_in_the_code_is_in_the_registry() -> None:
    assert all_uses()
    unknown = [(use.where, use.name) for use in all_uses() if use.name not in REGISTRY[use.kind]]
    assert not unknown, "say what they mean in dtd/event_names.py"


@pytest.mark.parametrize("kind", REGISTRY)
def test_a_name_in_the_registry_is_in_the_code(kind: str) -> None:
    used = {use.name for use in all_uses() if use.kind == kind}
    assert set(REGISTRY[kind]) - used - MADE_BY_A_PROCESSOR == set()


def test_names_are_constants_with_one_sentence_each() -> None:
    assert not set(EVENTS) & set(INCIDENTS) - {"worker_refused"}
    for name, meaning in (EVENTS | INCIDENTS).items():
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", name)
        assert re.fullmatch(r"[A-Z][^.|\n]*[^.|\n ]\.", meaning), name


def test_a_worker_can_report_what_its_code_reports_and_nothing_else() -> None:
    """Those of dtd.train and dtd.worker, which a NOTICE carries; the member has one more."""
    elsewhere = ("dtd/cluster/", "dtd/coordinator/", "dtd/observe/")
    said = [use for use in all_uses() if use.kind == "incident"]
    told = {use.name for use in said if not use.where.startswith(elsewhere)}
    assert told | {"replicas_diverged"} == NOTICES
    assert set(INCIDENTS) >= NOTICES


def test_quiet_incidents_exist() -> None:
    assert set(INCIDENTS) >= QUIET_INCIDENTS


def test_levels_and_fields_are_read_from_the_code(tmp_path: Path) -> None:
    (tmp_path / "dtd").mkdir()
    (tmp_path / "dtd" / "module.py").write_text(
        "log.warning('first', a=1, **more)\n"
        "self._log.bind(b=2).exception('second')\n"
        "structlog.get_logger(x=1).info('third')\n"
        "cluster.incident('worker_lost', 'text', worker='w', silent_s=1)\n"
        "cluster.incident(f'job_{state.value}', 'text')\n"
        "self._reporter.warning('checkpoint_passed_over', 'text')\n"
        "parser.error('no event')\n"
        "log.info(name)\n"
    )
    found = [(use.name, use.kind, use.level, use.fields) for use in events.uses(tmp_path / "dtd")]
    assert found[:3] == [
        ("first", "event", "warning", ("a",)),
        ("second", "event", "error", ()),
        ("third", "event", "info", ()),
    ]
    assert ("worker_lost", "incident", "warning", ("silent_s",)) in found
    assert ("checkpoint_passed_over", "incident", "warning", ()) in found
    assert ("job_done", "incident", "info", ()) in found
    assert not {"no event", "name"} & {name for name, *_ in found}
