"""Whoever waits until all is sent."""

from __future__ import annotations

from dtd.net.drain import Drain


async def test_all_who_wait_are_woken_once():
    drain = Drain()
    one, other = drain.awaited(), drain.awaited()
    other.cancel()
    drain.done()
    drain.done()
    assert one.done()
    assert not drain.awaited().done()
