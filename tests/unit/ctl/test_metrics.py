"""`dtdctl metrics JOB` and `dtdctl report JOB` in all their forms."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from dtd.ctl.commands import metrics as module
from dtd.errors import UsageError
from dtd.wire import messages as m
from tests.unit.observe.report.conftest import EVENTS, details, metrics

LOSS = {
    "name": "loss",
    "kind": "steps",
    "source": "",
    "to": "",
    "points": [[1, 1, 1, 2.0, 2.0, 2.0], [2, 9, 3, 0.5, 1.0, 1.5]],
}
LINK = {
    "name": "round_trip_s",
    "kind": "link",
    "source": "a",
    "to": "b",
    "points": [[1000, 1007, 0, None, None, None]],
}


@pytest.fixture
def served(server, result):
    """Two pages, one series each."""

    def serve(message):
        series = {0: [LOSS], 1: [LINK]}.get(message.after, [])
        about = {"job": "j-1", "steps": 9, "stopped": "", "dropped": 0}
        return result({**about, "series": series, "next": message.after + len(series)})

    server.script = serve


def test_a_line_for_each_figure(dtdctl, served, server):
    code, out, err = dtdctl("metrics", "j-1", "--names", "loss,round_trip_s", "--workers")
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()] == [
        ["FIGURE", "OF", "STEPS", "POINTS", "FIRST", "MIN", "MEAN", "MAX", "LAST"],
        ["loss", "job", "1-9", "2", "2", "0.5", "1.25", "2", "1"],
        ["round_trip_s", "a", "to", "b", "-", "0", "-", "-", "-", "-", "-"],
    ]
    first = server.received[0]
    assert (first.names, first.workers, first.points) == (("loss", "round_trip_s"), True, 1000)


def test_parquet_needs_its_library(dtdctl, served, server, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    code, out, err = dtdctl("metrics", "j-1", "-o", "parquet")
    assert (code, out, server.received) == (2, "", [])
    assert "pip install pyarrow" in err
    terminal = io.BytesIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(module, "_pyarrow", lambda: (None, None))
    with pytest.raises(UsageError, match="terminal"):
        module.write_parquet(terminal, [])


class _Arrow:
    """The part of pyarrow that is used, with lists for columns."""

    def __init__(self):
        self.tables = []

    def string(self):
        return "string"

    int64 = float64 = string

    def schema(self, fields):
        return tuple(name for name, _kind in fields)

    def table(self, columns, schema):
        return dict(zip(schema, columns, strict=True))

    def ParquetWriter(self, _stream, _schema):  # noqa: N802 - pyarrow's name
        return self

    def write_table(self, table):
        self.tables.append(table)

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        return None


def test_parquet_is_written_in_pieces(monkeypatch):
    arrow = _Arrow()
    monkeypatch.setattr(module, "_pyarrow", lambda: (arrow, arrow))
    monkeypatch.setattr(module, "_ROWS_AT_ONCE", 2)
    lines = [["j", "loss", "steps", "", "", step, step, 1, 0.5, 0.5, 0.5] for step in range(3)]
    module.write_parquet(io.BytesIO(), lines)
    assert [table["begin"] for table in arrow.tables] == [[0, 1], [2]]


def test_a_job_without_figures_says_why(dtdctl, server, result):
    nothing = {"job": "j-1", "steps": 0, "series": [], "next": 0}
    server.script = lambda _message: result({**nothing, "stopped": "disk full", "dropped": 3})
    code, out, err = dtdctl("metrics", "j-1")
    assert (code, out) == (0, "")
    assert "j-1 has not trained a step" in err
    assert "nothing is stored at present: disk full" in err
    assert "3 rows were dropped" in err


# --- the report --------------------------------------------------------------------------------


@pytest.fixture
def jobs(server, result, monkeypatch, tmp_path):
    """A coordinator that knows digits-1, which has trained, and idle-3, which has not."""
    monkeypatch.chdir(tmp_path)
    every = metrics()["series"]
    known = {"digits-1": details(), "idle-3": details("idle-3", state="failed", step=0, result={})}

    def serve(message):
        if isinstance(message, m.ReadEvents):
            return result({"events": [] if message.after else EVENTS, "next": 1})
        if message.job not in known:
            return m.message_bytes(m.Error(code=17, message=f"job {message.job!r} does not exist"))
        if isinstance(message, m.ShowJob):
            return result(known[message.job])
        page = (every if message.job == "digits-1" else [])[message.after : message.after + 20]
        about = {"job": message.job, "steps": 100, "stopped": "", "dropped": 0}
        return result({**about, "series": page, "next": message.after + len(page)})

    server.script = serve


def test_a_report_beside_the_caller(dtdctl, jobs):
    words = ("report", "digits-1", "--against", "idle-3")
    assert dtdctl(*words) == (0, "digits-1.html\n", "")
    page = Path("digits-1.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "360/s" in page
    assert "Nothing to compare with: idle-3" in page
    code, _out, err = dtdctl("report", "idle-3")
    assert (code, err) == (0, "idle-3 never trained a step; it failed.\n")


def test_a_report_for_programs(dtdctl, jobs, check_output):
    words = ("report", "digits-1", "--against", "idle-3", "-o", "json")
    code, out, err = dtdctl(*words)
    assert (code, err) == (0, "")
    check_output(["report"], out)
    made = json.loads(out)
    assert [one["rows_per_s"] for one in made["worlds"]] == pytest.approx([300, 360])
    assert made["against"]["job"]["id"] == "idle-3"
    assert dtdctl(*words, "--output", "r.json")[1] == "r.json\n"
    assert json.loads(Path("r.json").read_text()) == made


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        ("digts-1", 1, "job 'digts-1' does not exist"),
        ("digits-1 --against digts-1", 1, "job 'digts-1' does not exist"),
        ("digits-1 --output no/where.html", 2, "no/where.html cannot be written: No such file"),
    ],
)
def test_a_report_that_cannot_be_made(dtdctl, jobs, words, code, why):
    exit_code, _out, err = dtdctl("report", *words.split())
    assert exit_code == code
    assert why in err
    assert not list(Path().iterdir())
