"""`dtdctl metrics JOB` in all its forms."""

from __future__ import annotations

import importlib
import io
import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from dtd.ctl import metrics as module
from dtd.errors import UsageError
from dtd.wire import messages as m

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
    """Two pages, one series each; what was asked."""
    asked = []

    def serve(message):
        asked.append(message)
        pages = {0: [LOSS], 1: [LINK]}
        answer = {"job": "j-1", "steps": 9, "stopped": "", "dropped": 0}
        series = pages.get(message.after, [])
        return result({**answer, "series": series, "next": message.after + len(series)})

    server.script = serve
    return asked


def test_a_line_for_each_figure(dtdctl, served):
    code, out, err = dtdctl("metrics", "j-1", "--names", "loss,round_trip_s", "--workers")
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()] == [
        ["FIGURE", "OF", "STEPS", "POINTS", "FIRST", "MIN", "MEAN", "MAX", "LAST"],
        ["loss", "job", "1-9", "2", "2", "0.5", "1.25", "2", "1"],
        ["round_trip_s", "a", "to", "b", "-", "0", "-", "-", "-", "-", "-"],
    ]
    first = served[0]
    assert isinstance(first, m.GetMetrics)
    assert (first.names, first.workers, first.points) == (("loss", "round_trip_s"), True, 1000)


def test_json_is_as_documented(dtdctl, served):
    code, out, _err = dtdctl("metrics", "j-1", "-o", "json")
    answer = json.loads(out)
    schema = json.loads((Path(__file__).parents[3] / "docs/output.schema.json").read_text("utf-8"))
    Draft202012Validator({**schema, "$ref": "#/$defs/metrics"}).validate(answer)
    assert answer["series"] == [LOSS, LINK]
    assert (code, answer["steps"]) == (0, 9)


def test_csv_has_a_line_for_each_point(dtdctl, served):
    _code, out, _err = dtdctl("metrics", "j-1", "-o", "csv")
    assert out.splitlines() == [
        "job,name,kind,source,to,begin,end,count,min,mean,max",
        "j-1,loss,steps,,,1,1,1,2.0,2.0,2.0",
        "j-1,loss,steps,,,2,9,3,0.5,1.0,1.5",
        "j-1,round_trip_s,link,a,b,1000,1007,0,,,",
    ]


def test_parquet_without_its_library_says_so(dtdctl, served, monkeypatch):
    monkeypatch.setitem(importlib.import_module("sys").modules, "pyarrow", None)
    code, out, err = dtdctl("metrics", "j-1", "-o", "parquet")
    assert (code, out, served) == (2, "", [])
    assert "pyarrow, which is not installed here" in err
    assert "pip install pyarrow" in err


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


def test_parquet_is_not_for_a_terminal(monkeypatch):
    class Terminal(io.BytesIO):
        def isatty(self):
            return True

    monkeypatch.setattr(module, "_pyarrow", lambda: (None, None))
    with pytest.raises(UsageError, match="terminal"):
        module.write_parquet(Terminal(), [])


@pytest.mark.parametrize("command", ["status", "jobs"])
def test_other_commands_have_no_such_forms(dtdctl, command):
    code, _out, err = dtdctl(command, "-o", "csv")
    assert code == 2
    assert "'csv' is not an output format" in err


def test_a_job_that_never_trained_says_so(dtdctl, server, result):
    nothing = {"job": "j-1", "steps": 0, "series": [], "next": 0}
    server.script = lambda _message: result({**nothing, "stopped": "disk full", "dropped": 3})
    code, out, err = dtdctl("metrics", "j-1")
    assert (code, out) == (0, "")
    assert "j-1 has not trained a step" in err
    assert "nothing is stored at present: disk full" in err
    assert "3 rows were dropped" in err


def test_an_unknown_job_is_refused(dtdctl, server, refusal):
    server.script = lambda _message: refusal
    code, _out, err = dtdctl("metrics", "x")
    assert code == 1
    assert "job 'x' does not exist" in err
