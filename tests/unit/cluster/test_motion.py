"""What moves between two looks at a training thread, in words."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.cluster.motion import Closely, Evidence, computes, motion


def look(at_s: float, *, cpu_s: float = 0.0, **seen: Any) -> Evidence:
    return Evidence(at_s=at_s, cpu_s=cpu_s, closely=Closely(**seen))


def glance(at_s: float, cpu_s: float) -> Evidence:
    return Evidence(at_s=at_s, cpu_s=cpu_s)


def test_nothing_moves_where_nothing_has_changed() -> None:
    seen = {"children_cpu_s": 3.0, "read_bytes": 10**9, "page_faults": 7}
    assert motion(look(1.0, cpu_s=9.0, **seen), look(2.0, cpu_s=9.0, **seen)) == ""


def test_a_glance_is_enough_where_the_process_computes() -> None:
    assert computes(glance(1.0, 5.0), glance(1.5, 5.4))
    assert motion(glance(1.0, 5.0), glance(1.5, 5.4)) == "it computes (80% of a processor)"


def test_a_loop_that_polls_does_not_compute() -> None:
    assert not computes(glance(1.0, 5.0), glance(2.0, 5.04))
    assert motion(glance(1.0, 5.0), glance(2.0, 5.04)) == ""


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ({"compiles": True}, "it compiles"),
        ({"waits_for": "/data/rows.bin"}, "it waits for /data/rows.bin"),
        ({"gpu_use": 0.97}, "its GPU works (97%)"),
        ({"gpu_use": 0.0}, ""),
        ({"runnable": True}, "it waits for a processor"),
        ({"children_cpu_s": 99.0, "read_bytes": 10**9, "page_faults": 9}, ""),
    ],
)
def test_one_look_shows_what_a_thread_is_in(seen: dict[str, Any], words: str) -> None:
    assert motion(None, look(1.0, **seen)) == words
    assert motion(glance(0.5, 0.0), look(1.0, **seen)) == words


@pytest.mark.parametrize(
    ("then", "now", "words"),
    [
        (
            {"children_cpu_s": 1.0},
            {"children_cpu_s": 3.0},
            "its child processes compute (200% of a processor)",
        ),
        ({"children_cpu_s": 3.0}, {"children_cpu_s": 1.0}, ""),
        ({"read_bytes": 0}, {"read_bytes": 2_000_000}, "it reads (2.00 MB/s)"),
        ({"read_bytes": 0}, {"read_bytes": 2_000}, ""),
        ({"page_faults": 1}, {"page_faults": 2}, "it reads memory from a disk"),
    ],
)
def test_two_looks_show_what_has_grown(
    then: dict[str, Any], now: dict[str, Any], words: str
) -> None:
    assert motion(look(1.0, **then), look(2.0, **now)) == words


def test_looks_at_one_moment_show_no_rate() -> None:
    assert motion(look(1.0), look(1.0)) == ""
