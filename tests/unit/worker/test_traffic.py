"""Bytes of one ring after another: counted from the start of the process, none twice."""

from __future__ import annotations

from dtd.net.link import NO_TRAFFIC, Traffic
from dtd.worker.self_report import TrafficMeter


class Ring:
    def __init__(self, *, sent=0, received=0, rtt_s=0.0):
        self.now = Traffic(sent_bytes=sent, received_bytes=received, rtt_s=rtt_s)

    def traffic(self):
        return self.now


def fields(meter, ring):
    return tuple(meter.heartbeat_fields(ring).values())


def test_without_a_ring_there_is_nothing():
    assert fields(TrafficMeter(), None) == NO_TRAFFIC


def test_rings_are_added_up():
    meter, first = TrafficMeter(), Ring(sent=10, received=7, rtt_s=0.5)
    assert fields(meter, first) == (10, 7, 0.5)
    first.now = Traffic(sent_bytes=20, received_bytes=14, rtt_s=0.25)
    assert fields(meter, first) == (20, 14, 0.25)
    first.now = Traffic(sent_bytes=21, received_bytes=15, rtt_s=0.0)  # ended, and heard of late
    second = Ring()
    assert fields(meter, second) == (21, 15, 0.0)
    second.now = Traffic(sent_bytes=5, received_bytes=6, rtt_s=0.125)
    assert fields(meter, second) == (26, 21, 0.125)
    assert fields(meter, second) == (26, 21, 0.125)
