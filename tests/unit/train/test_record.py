"""Warnings that are counted instead of repeated."""

from __future__ import annotations

from dtd.train.record import WarningThrottle


def test_a_flood_becomes_one_warning_and_a_count() -> None:
    heard: list[tuple[str, str]] = []
    now = [0.0]
    warn = WarningThrottle(
        lambda event, message: heard.append((event, message)), clock=lambda: now[0]
    )
    for step in range(100):
        warn("full", f"step {step}")
    warn("other", "once")
    assert heard == [("full", "step 0"), ("other", "once")]
    now[0] = 60.0
    warn("full", "step 100")
    warn("full", "step 101")
    assert heard[2:] == [("full", "step 100; 99 more like it since the last report")]
    now[0] = 120.0
    warn("full", "step 102")
    now[0] = 180.0
    warn("full", "step 103")
    assert heard[3:] == [
        ("full", "step 102; 1 more like it since the last report"),
        ("full", "step 103"),
    ]
