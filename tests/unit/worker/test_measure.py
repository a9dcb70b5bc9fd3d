"""A worker measures its host, a link through a real data port, and a step in another process."""

from __future__ import annotations

import asyncio
import sys

import pytest

import dtd.worker.measure.measure as measure_module
from dtd.config import WorkerConfig
from dtd.errors import TaskError
from dtd.net.data_port.resources import PROBE_SCOPE
from dtd.wire import messages as m
from dtd.wire.data_keys import ticket_key
from dtd.worker.measure.measure import measure
from tests.unit.worker.conftest import WORKER_SECRET

PATIENCE_S = 30.0
NEVER_S = 1 << 40


def no_package(digest):
    raise TaskError(f"no package {digest}")


@pytest.fixture
def config(tmp_path):
    return WorkerConfig(name="worker-0", state_dir=tmp_path)


def question(what, address=None, **changed):
    values = {"number": 7, "what": what, "spec": {}}
    if address is not None:
        values |= {"name": "worker-1", "host": address.host, "port": address.port}
        values |= {
            "ticket_expires_s": NEVER_S,
            "ticket_key": ticket_key(WORKER_SECRET, PROBE_SCOPE, NEVER_S),
        }
    return m.Measure(**(values | changed))


async def answer(message, config, *, idle=True, fetch_package=no_package):
    async with asyncio.timeout(PATIENCE_S):
        return await measure(message, config, fetch_package=fetch_package, idle=idle)


# --- steps -----------------------------------------------------------------------------------


@pytest.fixture
def probe_process(tmp_path, monkeypatch):
    """Puts a program in the place of the interpreter that measures steps."""

    def put(body):
        program = tmp_path / "python"
        program.write_text(f"#!{sys.executable}\nimport json, sys\n{body}\n")
        program.chmod(0o755)
        monkeypatch.setattr(measure_module.sys, "executable", str(program))

    return put


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("print(json.dumps({'error': 'no module x', 'remedy': 'y'}))", "worker-0: no module x"),
        ("sys.exit('out of luck')", "out of luck"),
        ("print('[1]')", "it printed nothing"),
        ("print('x' * 300_000)", "it printed nothing"),
    ],
)
async def test_a_step_that_fails_says_why(config, probe_process, body, words):
    probe_process(f"sys.stdin.read()\n{body}")
    measured = await answer(question("step"), config)
    assert measured.figures == {}
    assert words in measured.reason


async def test_a_step_is_measured_with_the_data_that_lie_at_their_paths(config, probe_process):
    probe_process("import os\nprint(json.dumps({'error': os.environ['DTD_DATA'], 'remedy': 'y'}))")
    asked = question("step", spec={"data": {"x": "/data/x"}})
    measured = await answer(asked, config)
    assert 'worker-0: {"x": "/data/x"}' in measured.reason


async def test_beside_a_job_no_step_is_measured(config):
    measured = await answer(question("step"), config, idle=False)
    assert (measured.reason, measured.remedy) == (
        "worker-0 is busy",
        "wait until no job is running",
    )
