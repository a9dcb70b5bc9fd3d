"""`dtdctl report`: what it asks, and where the file goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dtd.ctl.settings import take_settings
from dtd.wire import messages as m
from tests.unit.observe.report.conftest import EVENTS, details, metrics


@pytest.fixture
def asked(server, result, monkeypatch, tmp_path) -> list[Any]:
    """A coordinator that knows digits-1, which has trained, and idle-3, which has not."""
    monkeypatch.chdir(tmp_path)
    seen: list[Any] = []
    every = metrics()["series"]

    def serve(message):
        seen.append(message)
        if isinstance(message, m.ReadEvents):
            return result({"events": [] if message.after else EVENTS, "next": 1})
        if isinstance(message, m.ShowJob):
            if message.job == "idle-3":
                return result(details("idle-3", state="failed", step=0, result={}))
            if message.job != "digits-1":
                why = f'job {message.job!r} does not exist; did you mean "digits-1"?'
                return m.message_bytes(m.Error(code=17, message=why))
            return result(details())
        assert isinstance(message, m.GetMetrics)
        known = every if message.job == "digits-1" else []
        page = known[message.after : message.after + 20]
        answer = {"job": message.job, "steps": 100, "stopped": "", "dropped": 0}
        return result({**answer, "series": page, "next": message.after + len(page)})

    server.script = serve
    return seen


def test_a_page_beside_the_caller(dtdctl, asked):
    code, out, err = dtdctl("report", "digits-1")
    assert (code, out, err) == (0, "digits-1.html\n", "")
    page = Path("digits-1.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "360/s" in page
    request = next(one for one in asked if isinstance(one, m.GetMetrics))
    assert (request.workers, request.job) == (True, "digits-1")


@pytest.mark.parametrize("option", [("-o", "there.md"), ("-othere.md",), ("--output=there.md",)])
def test_markdown_where_it_is_wanted(dtdctl, asked, option):
    code, out, _err = dtdctl("report", "digits-1", "--format", "md", *option)
    assert (code, out) == (0, "there.md\n")
    assert Path("there.md").read_text().startswith("# digits-1")


def test_a_report_on_stdout(dtdctl, asked):
    code, out, _err = dtdctl("report", "digits-1", "--format", "md", "-o", "-")
    assert (code, out.splitlines()[0]) == (0, "# digits-1")


def test_a_job_that_never_trained_is_reported_as_that(dtdctl, asked):
    code, _out, err = dtdctl("report", "idle-3")
    assert (code, err) == (0, "idle-3 never trained a step; it is failed.\n")
    assert "never trained" in Path("idle-3.html").read_text()


def test_an_unknown_job_names_the_nearest(dtdctl, asked):
    for arguments in (("digts-1",), ("digits-1", "--against", "digts-1")):
        code, _out, err = dtdctl("report", *arguments)
        assert code == 1
        assert "job 'digts-1' does not exist; did you mean" in err
    assert not list(Path().iterdir())


def test_another_job_beside_it(dtdctl, asked):
    code, _out, _err = dtdctl("report", "digits-1", "--against", "idle-3")
    assert code == 0
    assert "Nothing to compare with: idle-3" in Path("digits-1.html").read_text()


def test_a_file_that_cannot_be_written_is_named(dtdctl, asked):
    code, _out, err = dtdctl("report", "digits-1", "-o", "no/where.html")
    assert code == 2
    assert "no/where.html cannot be written: No such file or directory" in err


def test_only_report_takes_a_file_as_o():
    assert take_settings(["report", "j", "-o", "f"]) == ({}, ["report", "j", "-o", "f"])
    assert take_settings(["show", "report", "-o", "json"])[0] == {"output": "json"}
