"""The memory of workers as a table."""

from __future__ import annotations

from dtd.ctl.memory import HEADINGS, memory_lines
from dtd.doctor.memory import PARTS

MIB = 1 << 20


def worker(name, **parts):
    found = {
        part: {"measured_bytes": measured * MIB, "predicted_bytes": predicted}
        for part, (measured, predicted) in parts.items()
    }
    return {"name": name, "memory": found or None}


def test_measured_stands_above_predicted():
    status = {"workers": [worker("a", optimizer=(3, 2 * MIB), process=(9, None)), worker("b")]}
    _, head, measured, predicted = memory_lines(status, colour=False)
    assert head.split() == [*HEADINGS]
    assert len(HEADINGS) == len(PARTS) + 1
    assert measured.split() == ["a", "-", "-", "3.0", "MiB", "-", "-", "-", "9.0", "MiB"]
    assert predicted.split() == ["predicted", "-", "-", "2.0", "MiB", "-", "-", "-", "-"]


def test_before_it_was_measured_and_from_an_older_coordinator():
    for status in ({"workers": [worker("a")]}, {"workers": [{"name": "a"}]}, {"workers": []}):
        (_, said) = memory_lines(status, colour=False)
        assert said.startswith("no worker has measured its memory")
