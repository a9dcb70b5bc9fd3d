"""Lines of the job's own code, until the coordinator is told."""

from __future__ import annotations

from dtd.wire import messages as m
from dtd.worker.job_lines import MAX_WAITING_LINES, JobLines


def test_lines_go_out_together_and_once():
    sent = []
    lines = JobLines(lambda message, payload: sent.append((message, payload)))
    lines.tell("digits-1", 2)
    lines.take("one")
    lines.take("zwei é \ud800")
    lines.tell("digits-1", 2)
    lines.tell("digits-1", 2)
    assert sent == [(m.JobOutput(job="digits-1", rank=2), "one\nzwei é ?".encode())]


def test_the_newest_are_kept():
    sent = []
    lines = JobLines(lambda message, payload: sent.append(payload))
    for number in range(MAX_WAITING_LINES + 5):
        lines.take(str(number))
    lines.tell("digits-1", 0)
    (text,) = sent
    assert text.split()[0] == b"5"
    assert len(text.split()) == MAX_WAITING_LINES
