"""Permissions: the connections that each role may open, and the requests on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from dtd.security.permissions import VIEWER_MAY, refusal
from dtd.wire import messages as m
from dtd.wire.session import hello


@dataclass(frozen=True)
class Who:
    role: str
    name: str = "host7"
    uid: int | None = None
    workers: tuple[str, ...] | None = ("host7", "host7-cuda1")


def register(name: str) -> m.Register:
    return m.Register(
        name=name, incarnation=1, pid=1, host="h", device="cpu", data_host="", data_port=1,
        version="1",
    )  # fmt: skip


OPENS = {
    "local": {"worker", "ctl"},
    "worker": {"worker", "join"},
    "operator": {"ctl", "join"},
    "viewer": {"ctl", "join"},
    "stranger": {"join"},
    "outsider": set(),
    "coordinator": set(),
}


@pytest.mark.parametrize("role", OPENS)
@pytest.mark.parametrize("wanted", list(m.Role))
def test_each_role_opens_its_own_connections(role: str, wanted: m.Role) -> None:
    assert (refusal(Who(role), hello(wanted, "x")) == "") == (wanted in OPENS[role])


@pytest.mark.parametrize("role", OPENS)
def test_on_the_coordinators_host_nobody_joins(role: str) -> None:
    for wanted in m.Role:
        may = wanted in OPENS[role] - {"join"}
        assert (refusal(Who(role, "uid 1", 1), hello(wanted, "x")) == "") == may


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        *(("host7", True), ("host7-cuda1", True), ("host7-cuda2", False), ("host7-", False)),
        *(("host70", False), ("host", False), ("HOST7", False), ("", False)),
    ],
)
def test_a_worker_is_called_as_its_credential_says(name: str, allowed: bool) -> None:
    assert (refusal(Who("worker"), register(name)) == "") == allowed
    assert refusal(Who("local", "uid 0", 0, None), register(name)) == ""
    assert refusal(Who("worker", "uid 1002", 1002, None), register(name)) == ""


@pytest.mark.parametrize("kind", sorted(m.from_opener(m.Role.CTL), key=lambda kind: kind.__name__))
def test_a_viewer_asks_only_what_changes_nothing(kind: type[Any]) -> None:
    plain = (m.ListCheckpoints, m.ListModels)  # these are judged by what they ask for
    message = kind() if kind in plain else kind.__new__(kind)
    said = refusal(Who("viewer", "eve"), message)
    if kind in VIEWER_MAY:
        assert said == ""
    else:
        name = m.message_name(kind)
        assert said == f"eve is a viewer and may not ask {name}; an operator may"
    assert refusal(Who("operator"), message) == ""


def test_a_viewer_sees_checkpoints_but_may_not_fetch_them() -> None:
    message = m.ListCheckpoints(job="digits-1", tickets=True)
    said = refusal(Who("viewer", "eve"), message)
    assert said == (
        "eve is a viewer and may not ask LIST_CHECKPOINTS for tickets to fetch them;"
        " an operator may"
    )
    assert refusal(Who("operator"), message) == ""


def test_a_viewer_may_ask_what_dtdctl_asks_and_nothing_else() -> None:
    assert m.from_opener(m.Role.CTL) - {m.Error, m.Goodbye} > VIEWER_MAY
