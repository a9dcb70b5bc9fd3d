"""What a job prints becomes lines, whoever prints it and however."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from dtd.worker.output import MAX_LINE_CHARACTERS, LineStream, capture_output


@pytest.fixture
def lines():
    return []


@pytest.fixture
def stream(lines):
    return LineStream(lines.append)


def test_a_line_goes_on_when_it_is_complete(stream, lines):
    assert stream.write("one") == 3
    assert lines == []
    assert stream.write(" and\ntwo\n\nthr") == 13
    assert lines == ["one and", "two", ""]
    stream.write("ee\n")
    assert lines[3:] == ["three"]


def test_print_writes_one_line(stream, lines):
    print("loss", 0.25, file=stream)
    print("a", "b", sep="\n", end="", file=stream)
    print(file=stream, flush=True)
    assert lines == ["loss 0.25", "a", "b"]


def test_an_over_long_line_is_cut(stream, lines):
    stream.write("x" * (MAX_LINE_CHARACTERS + 1) + "\n")
    stream.write("y" * MAX_LINE_CHARACTERS + "\n")
    assert lines == ["x" * MAX_LINE_CHARACTERS, "y" * MAX_LINE_CHARACTERS]


def test_a_line_without_an_end_does_not_grow_for_ever(stream, lines):
    for _ in range(3 * MAX_LINE_CHARACTERS):
        stream.write("z")
    assert len(lines) == 2
    assert len(stream._rest) <= MAX_LINE_CHARACTERS


def test_lines_of_many_threads_stay_whole(stream, lines):
    def work(number):
        for _ in range(200):
            stream.write(f"thread {number}\n")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert sorted(lines) == sorted(f"thread {number}" for number in range(4) for _ in range(200))


def test_it_is_a_text_stream(stream):
    assert stream.writable()
    assert not stream.isatty()


def test_both_streams_of_the_process_are_captured(monkeypatch, lines):
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    capture_output(lines.append)
    print("out")
    print("error", file=sys.stderr)
    sys.stdout.write("half")
    sys.stderr.write("other half\n")
    assert lines == ["out", "error", "other half"]
