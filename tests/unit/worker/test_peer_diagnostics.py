"""Peers that are not reached are told of until they are."""

from __future__ import annotations

from structlog.testing import capture_logs

from dtd.wire import messages as m
from dtd.worker.probe import PeerDiagnostics


def test_a_peer_is_named_once_in_the_log_and_until_it_is_reached() -> None:
    peers, probe = PeerDiagnostics(), m.Probe(name="w-1", host="10.0.0.2", port=7000)
    failed = m.Probed(name="w-1", reachable=False, reason="Connection refused")
    with capture_logs() as logs:
        peers.probed(probe, failed)
        peers.probed(probe, failed)
    assert [(one["event"], one["address"]) for one in logs] == [
        ("peer_unreachable", "10.0.0.2:7000")
    ]
    assert peers.first is not None
    assert peers.first.message == (
        "the data port 10.0.0.2:7000 of w-1 cannot be reached from here: Connection refused"
    )
    narrow = m.Probed(name="w-1", reachable=False, reason="it answers, but", greeted=True)
    peers.probed(probe, narrow)
    assert peers.first is not None
    assert (peers.first.kind, "mtu" in peers.first.remedy) == ("narrow-way", True)
    peers.probed(probe, m.Probed(name="w-1", reachable=True, greeted=True))
    assert peers.first is None
    peers.probed(probe, failed)
    peers.forget()
    assert peers.first is None


def test_their_number_is_bounded() -> None:
    peers = PeerDiagnostics()
    for number in range(m.MAX_WORLD + 3):
        name = f"w-{number}"
        failed = m.Probed(name=name, reachable=False, reason="r")
        peers.probed(m.Probe(name=name, host="h", port=1), failed)
    assert peers.first is not None
    assert "of w-3 " in peers.first.message
