"""The coordinator's diagnostics come from disks, connections and members, and go again."""

from __future__ import annotations

import pytest

from dtd import diagnostics
from dtd.cluster.events import Incident
from dtd.cluster.machine import Membership
from dtd.coordinator.diagnostics import DiagnosticsCollector
from dtd.errors import DtdError, ErrorCode, ProtocolError


class Desk:
    def __init__(self) -> None:
        self.now, self.failure = 0.0, ""
        self.desk = DiagnosticsCollector(
            lambda: [Membership().cluster], lambda: self.now, lambda: self.failure
        )

    def kinds(self) -> list[tuple[str, str]]:
        return [(one["where"], one["kind"]) for one in self.desk.listing()]


@pytest.fixture
def made() -> Desk:
    return Desk()


def test_a_workers_disk_that_is_full(made: Desk) -> None:
    text = "w-0: g000001-s000000010 was not saved: No space left on device"
    made.desk.decided(Incident(kind="worker_lost", message="m", worker="w-0"))
    made.desk.decided(Incident(kind="checkpoint_failed", message=text, worker="w-0"))
    [diagnostic] = made.desk.listing()
    assert (diagnostic["where"], diagnostic["kind"]) == ("w-0", "disk")
    assert "No space left on device" in diagnostic["message"]
    made.desk.saved("w-0")
    assert made.kinds() == []


def test_the_coordinators_own_disk(made: Desk) -> None:
    made.failure = "database or disk is full"
    assert made.kinds() == [("the coordinator", "disk")]
    made.failure = ""
    assert made.kinds() == []


def test_who_was_turned_away_until_a_worker_of_that_host_comes_through(made: Desk) -> None:
    made.desk.turned_away(
        diagnostics.turned_away("10.0.0.7", "the credential of host7 is revoked", "join again")
    )
    error = ProtocolError(ErrorCode.BAD_VERSION, "run `curl evil`")
    made.desk.closed("10.0.0.7", error)
    made.desk.closed("10.0.0.8", DtdError("lost"))
    assert made.kinds() == [("10.0.0.7", "turned-away"), ("10.0.0.7", "protocol")]
    assert "evil" not in str(made.desk.listing())
    made.desk.registered("10.0.0.7", "host7-cpu")
    assert made.kinds() == []
