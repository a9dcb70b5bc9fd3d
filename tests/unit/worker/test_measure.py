"""A worker measures its host, a link through a real data port, and a step in another process."""

from __future__ import annotations

import asyncio
import sys
import time
import tracemalloc

import pytest

import dtd.worker.measure as measure_module
from dtd.config import WorkerConfig
from dtd.errors import TaskError
from dtd.net.data_server import PROBE_SCOPE
from dtd.wire import messages as m
from dtd.wire.data_keys import ticket_key
from dtd.worker.measure import measure
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


async def test_the_host(config):
    measured = await answer(question("host"), config)
    figures = measured.figures
    assert (measured.number, measured.reason) == (7, "")
    assert 0 < figures["disk_free_bytes"] <= figures["disk_bytes"]
    assert abs(figures["time_s"] - time.time()) < PATIENCE_S


async def test_bandwidth_is_bounded_in_time(config, data_port, monkeypatch):
    monkeypatch.setattr(measure_module, "TRANSFER_S", 0.0)
    monkeypatch.setattr(measure_module, "TRANSFER_BYTES", 1 << 50)
    measured = await answer(question("bandwidth", data_port[1]), config)
    assert measured.figures["bytes_per_s"] > 0


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


async def test_a_step_is_measured_in_another_process(config, probe_process):
    probe_process("print(json.dumps({'asked': json.load(sys.stdin), 'by': sys.argv[1:]}))")
    measured = await answer(question("step", spec={"a": 1}, worlds=2), config)
    asked = measured.figures["asked"]
    assert measured.figures["by"] == ["-P", "-m", "dtd.train.measure"]
    assert (asked["spec"], asked["worlds"], asked["place"]) == ({"a": 1}, [1, 2], "")


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


async def test_what_a_task_prints_does_not_fill_the_memory_of_the_worker(config, probe_process):
    probe_process(
        "json.load(sys.stdin)\n"
        "for _ in range(16):\n"
        "    sys.stderr.write('x' * 2**20)\n"
        "print(json.dumps({'error': 'enough'}))"
    )
    tracemalloc.start()
    try:
        measured = await answer(question("step"), config)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert measured.reason.endswith("enough")
    assert peak_bytes < 8 * 2**20


async def test_a_step_that_takes_too_long_is_ended(config, probe_process, monkeypatch):
    monkeypatch.setattr(measure_module, "STEP_TIMEOUT_S", 0.2)
    probe_process("sys.stdin.read(); import signal; signal.pause()")
    measured = await answer(question("step"), config)
    assert "not measured within 0.2 s" in measured.reason


async def test_beside_a_job_no_step_is_measured(config):
    measured = await answer(question("step"), config, idle=False)
    assert (measured.reason, measured.remedy) == (
        "worker-0 is busy",
        "wait until no job is running",
    )
