"""Workers on one GPU: replicas are equal, a death costs no step, a GPU that computes is no hang."""

from __future__ import annotations

import pytest

from dtd.worker.process.host_checks import ask_driver
from tests.integration.deaths import (
    assert_no_step_was_lost,
    assert_survivors_are_equal,
    run_with_deaths,
)

pytestmark = pytest.mark.integration

DEVICE = "cuda:0"
WORKERS = 3
STEPS = 12
JOB = """
[job]
name = "on-a-gpu"
task = "dying_task:Dying"
steps = 12
global_batch_size = 128
seed = 7
[task]
width = 256
transport = "{transport}"
[optimizer]
name = "adamw"
[train]
eval_every = 4
precision = "{precision}"
[sync]
transport = "{transport}"
[elastic]
settle_s = 0.0
[strategy]
{strategy}
"""
STRATEGIES = {
    "float32": "",
    "bfloat16": 'codec = "bfloat16"',
    "float16": 'codec = "float16"',
    "int8": 'codec = "int8"',
    "PowerSGD": 'codec = "powersgd"\nrank = 2\nmin_compression = 1.1',
    "top-k": 'codec = "top_k"\ndensity = 0.1',
    "random-k": 'codec = "random_k"\ndensity = 0.1',
    "sign": 'codec = "sign"',
    "local SGD": 'name = "local_sgd"\ninner_steps = 3',
    "DiLoCo": 'name = "diloco"\ninner_steps = 3\ncodec = "int8"',
    "streaming DiLoCo": 'name = "streaming_diloco"\ninner_steps = 4\nfragments = 2',
}
LONG_STEP = f"""
[job]
name = "long-step"
task = "gpu_task:Gpu"
steps = 20
global_batch_size = 128
[task]
at = 12
cycles = 15_000_000_000
[elastic]
settle_s = 0.0
min_workers = {WORKERS}
stall_timeout_s = 2.0
"""


@pytest.fixture(scope="module", autouse=True)
def gpu():
    driver = ask_driver()
    if driver is None or driver.code or not driver.devices:
        pytest.skip("no GPU")


@pytest.mark.parametrize(
    ("strategy", "transport", "precision"),
    [
        *((name, "ring", "float32") for name in STRATEGIES),
        ("float32", "gloo", "float32"),
        ("float32", "ring", "bfloat16"),
        ("float32", "ring", "float16"),
    ],
)
def test_a_death_costs_no_step(start_daemons, tmp_path, strategy, transport, precision):
    job = JOB.format(strategy=STRATEGIES[strategy], transport=transport, precision=precision)
    ended = run_with_deaths(
        start_daemons, tmp_path, ["exchange-2"], workers=WORKERS, job=job, device=DEVICE
    )
    daemons, _, answer = ended
    assert_no_step_was_lost(ended, steps=STEPS, deaths=1)
    assert_survivors_are_equal(answer, WORKERS - 1)
    daemons.stop()


def test_a_gpu_that_computes_for_long_is_no_hang(start_daemons, tmp_path):
    """One worker's thread waits for it several times as long as nothing may move."""
    order = tmp_path / "order"
    order.touch()
    daemons = start_daemons(WORKERS, device=DEVICE)
    job = daemons.submit(f"task.order={str(order)!r}", text=LONG_STEP)
    ended = daemons.wait(job)
    assert not order.exists()
    assert (ended["state"], ended["result"]["steps_lost"]) == ("done", 0)
    assert daemons.events("worker_lost", job) == []


def test_a_divided_state_is_refused(start_daemons):
    daemons = start_daemons(1, device=DEVICE)
    job = daemons.submit('strategy.name="sharded"')
    ended = daemons.wait(job)
    assert ended["state"] == "failed"
    assert "trains on CPUs only" in ended["reason"]
