"""Every call is declared as changing something or not, and what is entered of it has no secret."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dtd.coordinator.audit_log import CHANGING, MOST_CHARACTERS, MOST_ENTRIES, about, audited
from dtd.coordinator.audit_log import outcome as outcome_of
from dtd.security.permissions import VIEWER_MAY
from dtd.wire import fields
from dtd.wire import messages as m

ASKED = sorted(
    (m.from_opener(m.Role.CTL) | m.from_opener(m.Role.JOIN)) - {m.Error, m.Goodbye},
    key=lambda kind: kind.__name__,
)


READS = VIEWER_MAY - set(CHANGING) | {
    *(m.ReadAudit, m.ListTokens, m.ListCredentials, m.ShowAuthority, m.GetAuthority),
}


def test_every_call_that_changes_something_is_declared() -> None:
    """A new request belongs in CHANGING, or here among those that only read."""
    assert {*CHANGING, *READS} == set(ASKED)
    assert not READS & set(CHANGING)


@pytest.mark.parametrize("kind", CHANGING, ids=lambda kind: kind.__name__)
def test_no_secret_is_entered(kind: type[Any]) -> None:
    declared = CHANGING[kind]
    secret = {field.name for field in dataclasses.fields(kind) if not field.repr}
    assert not secret & set(declared.about)
    assert not [n for n, k, *_ in fields.layout(kind) if n in declared.about and k[0] in "om"]


def submit(**spec: Any) -> m.SubmitJob:
    return m.SubmitJob(spec=spec, package="ab" * 32)


def told(message: m.Message) -> dict[str, Any]:
    declared = audited(message, 1)
    assert declared is not None
    return about(message, declared)


def test_a_job_is_entered_by_name_and_task() -> None:
    message = submit(job={"name": "digits", "task": "digits"}, task={"password": "hunter2"})
    assert told(message) == {"name": "digits", "task": "digits", "package": "ab" * 32}
    assert told(submit()) == told(submit(job="none")) == {"package": "ab" * 32}


def test_of_other_calls_their_arguments_are_entered() -> None:
    assert told(m.KillWorker(name="w-0", signal="KILL")) == {"name": "w-0", "signal": "KILL"}
    assert told(m.Delete(job="digits-1")) == {"job": "digits-1"}


def test_what_is_long_or_hostile_is_one_short_line() -> None:
    said = told(submit(job={"name": "x\n\x1b[2J" * 99, "task": ["a\u202e"] * 999}))
    assert said["name"].isprintable()
    assert len(said["name"]) == MOST_CHARACTERS
    assert said["task"] == [*["a\\u202e"] * MOST_ENTRIES, f"and {999 - MOST_ENTRIES} more"]


@pytest.mark.parametrize(
    ("message", "payload_bytes", "enters"),
    [
        (m.PutPackage(digest="d", size=9, offset=0), 0, False),
        (m.PutPackage(digest="d", size=9, offset=0), 4, True),
        (m.PutPackage(digest="d", size=9, offset=4), 5, False),
        (m.ListCheckpoints(job="j"), 0, False),
        (m.ListCheckpoints(job="j", tickets=True), 0, True),
        (m.Examine(what="host", spec={}), 0, False),
        (m.Examine(what="step", spec={}), 0, True),
        (m.Examine(what="bandwidth", spec={}, force=True), 0, True),
    ],
)
def test_some_calls_change_something_only_when(
    message: m.Message, payload_bytes: int, enters: bool
) -> None:
    assert (audited(message, payload_bytes) is not None) == enters


def test_of_an_answer_what_is_declared_is_entered() -> None:
    token = {"id": "ab", "role": "worker", "expires_s": 9.5, "token": "dtd1/secret"}
    declared = CHANGING[m.CreateToken]
    assert outcome_of(token, declared) == {"id": "ab", "role": "worker", "expires_s": 9.5}
    revoked = {"revoked": [{"name": "w", "serial": "1f"}], "evicted": [], "more": 1}
    assert outcome_of(revoked, CHANGING[m.RevokeCredential]) == {
        "revoked": [{"name": "w", "serial": "1f"}]
    }
