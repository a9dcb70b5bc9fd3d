"""Whatever a job prints is in its log; it holds up no worker, and stays out of the worker's log."""

from __future__ import annotations

import json
import os
import select
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from dtd.wire import messages as m
from tests.integration.conftest import PATIENCE_S, Daemons

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("unprepared")]

WORKERS = ("worker-0",)
JOB = """
[job]
name = "printing"
task = "printing_task:Printing"
steps = 4
global_batch_size = 16
[elastic]
settle_s = 0.0
"""
LINES = (
    "arguments ['printing_task:Printing']",
    "✓ Verlust, 損失",
    "raw \\xff",
    "descriptor 1",
    "a logger",
    "a child",
    "its error",
    "c",
    "the end",
)


@pytest.fixture(scope="module")
def daemons(start_daemons: Callable[[int], Daemons]) -> Daemons:
    """A coordinator and a worker, which begins afresh as users' do."""
    return start_daemons(len(WORKERS))


def printed(daemons: Daemons, job: str) -> list[str]:
    lines: list[str] = []
    after = 0
    while page := daemons.ask(m.ReadLogs(job=job, after=after)):
        if not page["lines"]:
            return lines
        lines += [line["text"] for line in page["lines"]]
        after = page["next"]
    return lines


def test_a_child_that_prints_without_end_holds_up_nobody(daemons: Daemons, tmp_path: Path) -> None:
    text = JOB.replace("printing_task:Printing", "printing_task:Flooding")
    job = daemons.submit(text=f'{text}[task]\npids = "{tmp_path}"\n')
    answer = daemons.wait(job)
    assert answer["state"] == "done", answer
    assert "again" in printed(daemons, job)
    children = [int(file.name) for file in tmp_path.iterdir()]
    assert len(children) == len(WORKERS)
    for pid in children:
        try:
            ends = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        assert select.select([ends], [], [], PATIENCE_S)[0], "nobody reads what it prints"
        os.close(ends)
    daemons.await_idle()


def test_all_that_a_job_prints_is_in_its_log(daemons: Daemons) -> None:
    """A child of the job before holds that one's pipe."""
    job = daemons.submit(text=JOB)
    answer = daemons.wait(job)
    assert answer["state"] == "done", answer
    assert Counter(printed(daemons, job)) == Counter(LINES * len(WORKERS))


def test_a_terminal_without_unicode_shows_it(
    daemons: Daemons, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = daemons.ask(m.ListJobs())["jobs"][0]["id"]
    for environment in (
        {"PYTHONIOENCODING": "latin-1"},
        {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    ):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        done = daemons.cluster.dtdctl("logs", job)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert "\\u2713 Verlust, \\u640d\\u5931" in done.stdout
    lines = daemons.cluster.dtdctl("logs", job, "-o", "json").stdout.splitlines()
    assert {json.loads(line)["text"] for line in lines} == set(LINES)


def test_the_workers_log_is_its_own(daemons: Daemons) -> None:
    for name in WORKERS:
        log = daemons.child(name).log_path.read_text().splitlines()
        lines = [json.loads(line) for line in log]
        assert {"job_prepared", "job_output"} <= {line["event"] for line in lines}
