"""Event files: what TensorBoard reads in them, and that a bad disk costs points only."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dtd.observe.sinks.tensorboard as module
from dtd.observe.sinks.tensorboard import Curves
from dtd.observe.sinks.trackers import figures_of
from dtd.wire import messages as m
from tests.unit.observe.reports import progress as report


def records(path: Path) -> Iterator[bytes]:
    checksum = module._library().masked_crc32c
    content = path.read_bytes()
    while content:
        (size,) = struct.unpack_from("<Q", content)
        assert struct.unpack_from("<I", content, 8)[0] == checksum(content[:8])
        data = content[12 : 12 + size]
        assert struct.unpack_from("<I", content, 12 + size)[0] == checksum(data)
        yield data
        content = content[16 + size :]


def events(directory: Path) -> list[Any]:
    """Events of all files of a job, file by file."""
    proto = module._library().event_pb2
    found = []
    for path in sorted(directory.iterdir()):
        assert ".tfevents." in path.name
        first, *others = (proto.Event.FromString(data) for data in records(path))
        assert first.file_version == "brain.Event:2"
        found += others
    return found


def curve(directory: Path, tag: str) -> list[tuple[int, float]]:
    return [
        (event.step, value.simple_value)
        for event in events(directory)
        for value in event.summary.value
        if value.tag == tag
    ]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def curves(tmp_path: Path, clock: Clock) -> Iterator[Curves]:
    made = Curves(tmp_path, lambda function: function(), clock)
    yield made
    made.close()


def progress(step: int, loss: float = 0.5, job: str = "j-1") -> m.Progress:
    return report(job=job, step=step, loss=loss)


def say(curves: Curves, *messages: m.Progress | m.Evaluated, unix_s: float = 1000.0) -> None:
    for message in messages:
        curves.add(figures_of(message, unix_s))


def test_what_was_written_can_be_read(curves, tmp_path):
    metrics = {"accuracy": 0.75, "note": "no number", "a\x1b[2J\u202e\nb": 1.0}
    evaluated = m.Evaluated(job="j-1", step=2, metrics=metrics)
    say(curves, progress(1, 0.5), progress(2, 0.25), evaluated)
    assert curve(tmp_path / "j-1", "train/loss") == [(1, 0.5), (2, 0.25)]
    assert curve(tmp_path / "j-1", "train/learning_rate")[0] == (1, pytest.approx(0.1))
    assert curve(tmp_path / "j-1", "train/gradient_norm") == [(1, 3.0), (2, 3.0)]
    assert curve(tmp_path / "j-1", "train/samples_per_s") == [(1, 128.0), (2, 128.0)]
    assert curve(tmp_path / "j-1", "eval/accuracy") == [(2, 0.75)]
    assert curve(tmp_path / "j-1", "eval/note") == []
    assert curve(tmp_path / "j-1", "eval/a\\x1b[2J\\u202e b") == [(2, 1.0)]
    assert {event.wall_time for event in events(tmp_path / "j-1")} == {1000.0}


def test_a_coordinator_that_starts_again_goes_on(curves, tmp_path):
    say(curves, progress(1))
    curves.close()
    again = Curves(tmp_path, lambda function: function())
    say(again, progress(2))
    again.close()
    assert len(list((tmp_path / "j-1").iterdir())) == 2
    assert [step for step, _ in curve(tmp_path / "j-1", "train/loss")] == [1, 2]


def test_steps_that_were_lost_are_taken_back(curves, tmp_path):
    proto = module._library().event_pb2
    say(curves, progress(5), progress(6), progress(3))
    starts = [e.step for e in events(tmp_path / "j-1") if e.session_log.status]
    assert starts == [3]
    assert proto.SessionLog.START == 1
    assert [step for step, _ in curve(tmp_path / "j-1", "train/loss")] == [5, 6, 3]


def test_the_coordinator_writes_curves_without_torch(tmp_path):
    script = f"""
import sys
import dtd.coordinator.daemon
assert "torch" not in sys.modules
from pathlib import Path
from dtd.observe.sinks.tensorboard import Curves
from dtd.observe.sinks.entries import Figures
curves = Curves(Path({str(tmp_path)!r}), lambda function: function())
curves.add(Figures(job="j-1", step=1, unix_s=1.0, scalars={{"train/loss": 0.5}}))
curves.close()
assert "torch" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert curve(tmp_path / "j-1", "train/loss") == [(1, 0.5)]
