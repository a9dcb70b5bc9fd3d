"""Diagnostics for the status: bounded, dated, and gone when they are over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dtd import diagnostics
from dtd.cluster.detector import Detector
from dtd.cluster.diagnostics import FORGOTTEN_S, MAX_DIAGNOSTICS, Diagnostics, standing
from dtd.cluster.records import CoordinatorIdentity
from dtd.cluster.registration import newcomer
from dtd.cluster.state import ClusterState
from dtd.cluster.transitions import WorkerState
from dtd.wire import messages as m


def away(host: str = "10.0.0.7", why: str = "why") -> diagnostics.Diagnostic:
    return diagnostics.turned_away(host, why, "do this")


def where(known: Diagnostics, now: float = 0.0) -> list[str]:
    return [one["where"] for one in known.listing(now)]


def test_one_is_listed_with_its_age_and_is_news_once() -> None:
    known = Diagnostics()
    assert known.note(away(), 10.0)
    assert not known.note(away(), 11.0)
    assert known.note(away(why="another why"), 12.0)
    [listed] = known.listing(15.0)
    assert listed == {
        "since_s": 5.0,
        "where": "10.0.0.7",
        "kind": "turned-away",
        "message": "10.0.0.7 was rejected: another why",
        "remedy": "do this",
    }


def test_there_are_never_more_than_so_many_and_the_latest_stay() -> None:
    known = Diagnostics()
    for number in range(MAX_DIAGNOSTICS + 5):
        known.note(away(f"host{number}"), float(number))
    known.note(away("host7"), 100.0)
    listed = where(known, 100.0)
    assert len(listed) == MAX_DIAGNOSTICS
    assert (listed[0], listed[-1]) == ("host5", "host7")


def test_it_is_over_when_the_host_succeeds_or_long_after() -> None:
    known = Diagnostics()
    for host in ("a", "b", "c"):
        known.note(away(host), 0.0)
    known.over("a", "w-0")
    assert where(known) == ["b", "c"]
    known.over("b", kind="disk")
    assert where(known) == ["b", "c"]
    known.over("b", kind="turned-away")
    assert where(known, FORGOTTEN_S) == ["c"]
    assert where(known, FORGOTTEN_S + 1) == []


def test_what_stands_lasts_until_it_is_not_found_any_more() -> None:
    known = Diagnostics()
    lasting, passing = diagnostics.disk("w-0", "full"), away()
    known.note(passing, 0.0)
    assert known.stand([lasting], 0.0) == [lasting]
    assert known.stand([lasting], 1.0) == []
    known.over("w-0")
    assert where(known, FORGOTTEN_S) == ["10.0.0.7", "w-0"]
    assert known.stand([], 2.0) == []
    assert where(known, 2.0) == ["10.0.0.7"]


@pytest.fixture
def cluster() -> ClusterState:
    made = ClusterState(
        heartbeat_interval_s=0.25,
        heartbeat_timeout_s=1.5,
        detector=Detector(timeout_s=1.5, tick_s=0.25),
        identity=CoordinatorIdentity(version="0.1.0", host="chief", store_id="s"),
    )
    for name, host in (("w-0", "10.0.0.1"), ("w-1", "fd00::1")):
        message = m.Register(
            name=name,
            incarnation=1,
            pid=1,
            host=f"host-of-{name}",
            device="cpu",
            data_host=host,
            data_port=7000,
            version="0.1.0",
        )
        made.workers[name] = newcomer(message)
    return made


def test_a_healthy_cluster_has_none(cluster: ClusterState) -> None:
    assert standing(cluster) == []


def test_refused_workers_are_named_with_their_hosts(cluster: ClusterState) -> None:
    one, other = cluster.workers.values()
    one.state, one.foreign = WorkerState.INCOMPATIBLE, True
    one.registration = replace(one.registration, version="9.9.0")
    other.state, other.reason = WorkerState.INCOMPATIBLE, "its dataset has 10 rows, not 12"
    version, unfit = standing(cluster)
    assert (version.kind, version.where) == ("version", "w-0")
    assert (
        version.message
        == "w-0 on host-of-w-0 runs dtd 9.9.0, the coordinator on chief runs dtd 0.1.0"
    )
    assert unfit.message == (
        "w-1 on host-of-w-1 cannot train with the others: its dataset has 10 rows, not 12"
    )


def test_a_dead_link_is_named_with_both_data_ports(cluster: ClusterState) -> None:
    cluster.links.accuse("w-0", "w-1", "unreachable")
    cluster.links.judge(["w-0", "w-1"], 0.0)
    [found] = standing(cluster)
    assert found.message == (
        "no connection between w-0 (data port 10.0.0.1:7000) and w-1 (data port [fd00::1]:7000)"
    )
    for name in ("w-0", "w-1"):
        kept = cluster.workers.pop(name)
        assert standing(cluster) == []
        cluster.workers[name] = kept


def test_a_worker_that_is_kept_although_it_stands_still_is_named_with_the_way_out(
    cluster: ClusterState,
) -> None:
    cluster.workers["w-1"].liveness.kept = "no other worker that makes progress holds step 7"
    [found] = standing(cluster)
    assert found.message == (
        "w-1 on host-of-w-1 has stalled but is not restarted, because"
        " no other worker that makes progress holds"
        " step 7: its training thread does not respond"
    )
    assert "`dtdctl kill-worker w-1` discards what is in its memory" in found.remedy
    assert "elastic.stall_timeout_s" in found.remedy
