"""Beats and silence, on a clock of the test's own and links that are only counters."""

from __future__ import annotations

import asyncio

import pytest

from dtd.exchange.ring.neighbours import NEXT, PREVIOUS
from dtd.net.pulse import PIECE_BYTES, LinkHeartbeats
from dtd.wire import messages as m

INTERVAL_S = 0.25
SILENCE_S = 1.5
TICK_S = SILENCE_S / 12
BEAT_BYTES = 48


class Counters:
    """A link as the pulse sees it."""

    def __init__(self):
        self.received_bytes = 0
        self.received_frames = 0
        self.held = False
        self.queued = 0
        self.sent = []

    def queued_bytes(self):
        return self.queued

    def send(self, message, payload=b""):
        self.sent.append(message)

    def hear_beat(self):
        self.received_bytes += BEAT_BYTES
        self.received_frames += 1


class Watched:
    """A pulse, its two links, and a clock that only the test moves."""

    def __init__(self, *, attached=(NEXT, PREVIOUS)):
        self.silent = []
        self.links = {name: Counters() for name in attached}
        self.now = 100.0
        self.pulse = LinkHeartbeats(
            generation=3,
            beat_interval_s=INTERVAL_S,
            silence_s=SILENCE_S,
            silent=lambda neighbour, now: self.silent.append((neighbour, now)),
        )
        self.pulse.watch(self.now)
        for name, link in self.links.items():
            self.pulse.attach(name, link)

    def pass_by(self, seconds, *, each=lambda: None):
        """Let time pass, a tick at a time, until somebody is silent."""
        for _ in range(round(seconds / TICK_S)):
            each()
            self.now += TICK_S
            self.pulse.look(self.now)
            if self.silent:
                return


def test_beats_go_out_on_both_links_at_the_interval():
    watched = Watched()
    watched.pass_by(1.0, each=lambda: [link.hear_beat() for link in watched.links.values()])
    for link in watched.links.values():
        assert link.sent == [m.LinkHeartbeat(generation=3)] * 4


def test_no_beat_waits_behind_queued_bytes():
    watched = Watched()
    watched.links[NEXT].queued = 1
    watched.pass_by(1.0)
    assert watched.links[NEXT].sent == []
    assert len(watched.links[PREVIOUS].sent) == 4


@pytest.mark.parametrize(("heard", "silent"), [(NEXT, PREVIOUS), (PREVIOUS, NEXT)])
def test_who_is_silent_is_reported_within_the_limit_and_two_looks(heard, silent):
    watched = Watched()
    watched.pass_by(3.0, each=watched.links[heard].hear_beat)
    [(neighbour, now)] = watched.silent
    assert neighbour == silent
    assert SILENCE_S < now - 100.0 <= SILENCE_S + 2 * TICK_S + 1e-9
    assert watched.pulse.silence_s(silent, now) > SILENCE_S
    assert not watched.pulse.trickles(silent, now)


def test_who_beats_may_compute_for_as_long_as_he_likes():
    watched = Watched()
    watched.pass_by(30.0, each=lambda: [link.hear_beat() for link in watched.links.values()])
    assert watched.silent == []


def test_a_long_chunk_on_a_slow_link_is_a_sign_of_life():
    watched = Watched()

    def receive():
        watched.links[NEXT].hear_beat()
        watched.links[PREVIOUS].received_bytes += PIECE_BYTES // 8

    watched.pass_by(10.0, each=receive)
    assert watched.silent == []


def test_bytes_that_complete_nothing_are_none():
    """A damaged length makes the receiver wait for a frame that beats would fill up slowly."""
    watched = Watched()

    def receive():
        watched.links[NEXT].hear_beat()
        watched.links[PREVIOUS].received_bytes += BEAT_BYTES

    watched.pass_by(10.0, each=receive)
    [(neighbour, now)] = watched.silent
    assert neighbour == PREVIOUS
    assert watched.pulse.trickles(PREVIOUS, now)


def test_while_reading_is_paused_nobody_is_silent():
    watched = Watched()
    watched.links[PREVIOUS].held = True
    watched.pass_by(10.0, each=watched.links[NEXT].hear_beat)
    assert watched.silent == []
    watched.links[PREVIOUS].held = False
    watched.pass_by(1.0, each=watched.links[NEXT].hear_beat)
    assert watched.silent == []
    watched.pass_by(1.0, each=watched.links[NEXT].hear_beat)
    assert [neighbour for neighbour, _ in watched.silent] == [PREVIOUS]


def test_who_is_not_connected_is_watched_too():
    watched = Watched(attached=[PREVIOUS])
    watched.pass_by(3.0, each=watched.links[PREVIOUS].hear_beat)
    assert [neighbour for neighbour, _ in watched.silent] == [NEXT]
    assert not watched.pulse.is_attached(NEXT)
    assert not watched.pulse.trickles(NEXT, watched.now)


def test_the_time_that_this_side_stood_still_is_given_back():
    watched = Watched()
    watched.pass_by(0.5, each=lambda: [link.hear_beat() for link in watched.links.values()])
    watched.now += 60.0
    watched.pulse.look(watched.now)
    assert watched.silent == []
    watched.pass_by(3.0, each=watched.links[NEXT].hear_beat)
    assert [neighbour for neighbour, _ in watched.silent] == [PREVIOUS]


def test_after_its_end_it_sends_and_reports_nothing():
    watched = Watched()
    watched.pulse.end()
    watched.pass_by(3.0)
    assert watched.silent == []
    assert all(link.sent == [] for link in watched.links.values())


async def test_on_the_loop_it_looks_by_itself_until_it_ends():
    silent = asyncio.Queue()
    pulse = LinkHeartbeats(
        generation=3,
        beat_interval_s=0.01,
        silence_s=0.05,
        silent=lambda neighbour, now: silent.put_nowait(neighbour),
    )
    pulse.begin()
    async with asyncio.timeout(10):
        assert await silent.get() == NEXT
    pulse.end()
    assert pulse._timer.cancelled()
