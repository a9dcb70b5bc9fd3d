"""Lines of the job's own code, until the coordinator is told."""

from __future__ import annotations

import asyncio

import pytest

from dtd.wire import messages as m
from dtd.wire.frames import DEFAULT_MAX_PAYLOAD_BYTES
from dtd.worker import output as job_lines
from dtd.worker.output import MAX_UNLOGGED_LINES, MAX_WAITING_LINES, SLICE_S, JobLines

PATIENCE_S = 60.0


class SlowLog:
    """A log that takes its time, on a clock of its own."""

    def __init__(self):
        self.cost_s = 0.0
        self.now_s = 0.0
        self.lines = []

    def info(self, event, *, line):
        assert event == "job_output"
        self.now_s += self.cost_s
        self.lines.append(line)

    def clock(self):
        return self.now_s


@pytest.fixture
def log(monkeypatch):
    made = SlowLog()
    monkeypatch.setattr(job_lines, "log", made)
    return made


@pytest.fixture
def sent():
    return []


@pytest.fixture
def lines(log, sent):
    return JobLines(lambda message, payload: sent.append((message, payload)), log.clock)


def numbers(first, count):
    return [str(number) for number in range(first, first + count)]


async def logged(log, count):
    """Give the loop its turns until so many lines are logged; how many there were after each."""
    turns = [len(log.lines)]
    async with asyncio.timeout(PATIENCE_S):
        while len(log.lines) < count:
            await asyncio.sleep(0)
            turns.append(len(log.lines))
    return turns


def test_lines_go_out_together_and_once(lines, log, sent):
    lines.tell("digits-1", 2, [])
    lines.tell("digits-1", 2, ["one", "zwei é \ud800"])
    lines.tell("digits-1", 2, [])
    assert sent == [(m.JobOutput(job="digits-1", rank=2), "one\nzwei é ?".encode())]
    assert log.lines == ["one", "zwei é \ud800"]


@pytest.mark.parametrize("letter", ["x", "é", "\u2713"])
def test_more_than_a_frame_holds_is_sent_in_several_of_whole_lines(lines, log, sent, letter):
    texts = [f"{number:04}" + letter * 4092 for number in range(1000)]
    lines.tell("digits-1", 0, texts)
    payloads = [payload for _, payload in sent]
    assert max(map(len, payloads)) <= DEFAULT_MAX_PAYLOAD_BYTES
    assert [line for one in payloads for line in one.decode().split("\n")] == texts
    assert log.lines == texts


async def test_all_is_sent_at_once_and_logged_in_slices(lines, log, sent):
    log.cost_s = SLICE_S / 8
    texts = numbers(0, MAX_WAITING_LINES)
    lines.tell("digits-1", 0, texts)
    assert sent == [(m.JobOutput(job="digits-1", rank=0), "\n".join(texts).encode())]
    turns = await logged(log, len(texts))
    in_a_turn = [after - before for before, after in zip([0, *turns], turns, strict=False)]
    assert max(in_a_turn) == 8
    assert log.lines == texts


async def test_a_line_that_takes_longer_than_a_slice_is_logged_alone(lines, log):
    log.cost_s = 10 * SLICE_S
    lines.tell("digits-1", 0, ["one", "two", "three"])
    assert log.lines == ["one"]
    await logged(log, 3)
    assert log.lines == ["one", "two", "three"]


async def test_what_is_printed_meanwhile_comes_after(lines, log):
    log.cost_s = SLICE_S
    for first in (0, 50):
        lines.tell("digits-1", 0, numbers(first, 50))
        await logged(log, first + 3)
    await logged(log, 100)
    lines.tell("digits-1", 0, numbers(100, 2))  # and again, when all was logged
    await logged(log, 102)
    assert log.lines == numbers(0, 102)


async def test_of_what_is_to_be_logged_the_newest_are_kept(lines, log):
    log.cost_s = SLICE_S
    batches = MAX_UNLOGGED_LINES // MAX_WAITING_LINES + 2
    for batch in range(batches):
        lines.tell("digits-1", 0, numbers(batch * MAX_WAITING_LINES, MAX_WAITING_LINES))
    await logged(log, 1 + MAX_UNLOGGED_LINES)
    newest = numbers(2 * MAX_WAITING_LINES, MAX_UNLOGGED_LINES)
    assert log.lines == ["0", *newest]


def test_nothing_is_lost_when_the_process_ends(lines, log):
    log.cost_s = SLICE_S
    texts = numbers(0, 100)

    async def prints_and_ends():
        lines.tell("digits-1", 0, texts)

    asyncio.run(prints_and_ends())
    assert log.lines == texts
