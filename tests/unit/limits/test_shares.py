"""Everybody's share of connections, and what is kept for operators."""

from __future__ import annotations

import pytest

from dtd.limits import shares as bounds
from dtd.limits.shares import Shares, connections_for
from dtd.security.identity import Identity


def who(role: str, name: str = "ann") -> Identity:
    return Identity(role=role, name=name, serial="ab", where="certificate")


def come(shares: Shares[int], connection: int, role: str, name: str = "ann") -> str:
    return shares.opened(connection) or shares.known(connection, who(role, name))


@pytest.mark.parametrize(
    ("descriptors", "connections"), [(10, 16), (256, 192), (1024, 960), (1_000_000, 4096)]
)
def test_connections_leave_room_for_files(descriptors: int, connections: int) -> None:
    assert connections_for(descriptors) == connections


def test_there_is_an_end_to_all_connections() -> None:
    shares: Shares[int] = Shares(in_all=2)
    assert shares.opened(1) == shares.opened(2) == ""
    assert shares.opened(3) == "2 connections are open"
    shares.gone(1)
    shares.gone(1)
    assert shares.opened(3) == ""


def test_a_viewer_has_its_share_and_leaves_others_theirs() -> None:
    shares: Shares[int] = Shares(in_all=1000)
    most = bounds.MOST_OF_A_VIEWER
    assert not any(come(shares, number, "viewer") for number in range(most))
    assert come(shares, 500, "viewer") == f"{most} connections of viewer/ann are open"
    assert come(shares, 501, "viewer", "bob") == ""
    shares.gone(0)
    assert come(shares, 502, "viewer") == ""


def test_all_viewers_together_have_a_quarter() -> None:
    shares: Shares[int] = Shares(in_all=64)
    refused = [come(shares, number, "viewer", f"v{number}") for number in range(17)]
    assert refused[:16] == [""] * 16
    assert refused[16] == "16 connections of viewers are open"
    assert come(shares, 50, "worker") == ""


def test_workers_do_not_take_what_is_kept_for_operators() -> None:
    shares: Shares[int] = Shares(in_all=64)  # 16 for strangers, 8 for operators
    refused = [come(shares, number, "worker", f"w{number}") for number in range(41)]
    assert refused[:40] == [""] * 40
    assert refused[40] == "40 connections are open, and the rest is reserved for operators"
    shares.gone(40)
    assert not any(come(shares, number, "operator") for number in range(50, 58))
    assert not any(come(shares, number, "local") for number in range(60, 64))


def test_a_host_with_many_devices_has_many_connections_of_one_credential() -> None:
    shares: Shares[int] = Shares(in_all=1000)
    most = bounds.MOST_OF_A_WORKER
    assert not any(come(shares, number, "worker") for number in range(most))
    assert come(shares, 500, "worker") == f"{most} connections of worker/ann are open"


def test_a_data_port_counts_connections_only() -> None:
    shares: Shares[int] = Shares(in_all=1000, of_callers=False)
    assert not any(come(shares, number, "worker") for number in range(500))


def test_when_the_host_has_no_room_the_newest_stranger_goes_and_then_the_newest_viewer() -> None:
    shares: Shares[int] = Shares(in_all=64)
    come(shares, 1, "viewer")
    come(shares, 2, "viewer")
    come(shares, 3, "worker")
    come(shares, 4, "operator")
    shares.opened(5)
    shares.opened(6)
    gone = []
    while (newest := shares.newest_idler()) is not None:
        gone.append(newest)
        shares.gone(newest)
    assert gone == [6, 5, 2, 1]


def test_strangers_have_a_quarter_at_most() -> None:
    assert Shares(in_all=40).unproven == 10
    assert Shares(in_all=4096).unproven == bounds.MOST_UNPROVEN
