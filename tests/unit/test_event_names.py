"""Names in logs and incidents: each one used in the code is explained, and no other."""

from __future__ import annotations

import functools
import re

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
