"""Data of a job reach hosts that lack them; a worker's host is its working directory here."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from dtd.wire import messages as m
from tests.integration.conftest import PATIENCE_S, Daemons

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
SMALL = 9
ENV = "/usr/bin/env"
JOB = """
[job]
name = "data"
task = "data_task:Task"
steps = 8
global_batch_size = 16
[elastic]
min_workers = 2
settle_s = 0.0
[data]
numbers = "/proc/self/cwd/numbers"
"""


@pytest.fixture(scope="module")
def daemons(start_daemons: Callable[[int], Daemons]) -> Daemons:
    """A coordinator and two workers, each with a working directory of its own."""
    made = start_daemons(0)
    for name in ("worker-0", "worker-1"):
        place = home(made, name)
        place.mkdir()
        command = made.cluster.worker_command(
            name, "--coordinator", str(made.cluster.address), "--data-cache-gib", "0.05"
        )
        path = os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "integration")))
        made.cluster.add(name, [ENV, f"--chdir={place}", *command], {"PYTHONPATH": path})
        made.cluster.start(name)
    made.cluster.await_registered(["worker-0", "worker-1"])
    return made


def home(daemons: Daemons, name: str) -> Path:
    return daemons.directory / f"{name}-home"


def write(place: Path, seed: int, mib: int = SMALL) -> None:
    """Data of several chunks: a large file, small ones and an empty one."""
    (place / "deep").mkdir(parents=True, exist_ok=True)
    draws = random.Random(seed)
    (place / "deep" / "rows").write_bytes(draws.randbytes(mib * 1024 * 1024))
    (place / "labels").write_bytes(b"labels")
    (place / "empty").touch()


def test_a_worker_without_the_data_fetches_them_and_both_train(daemons: Daemons) -> None:
    write(home(daemons, "worker-0") / "numbers", seed=0)
    answer = daemons.wait(daemons.submit(text=JOB))
    assert answer["state"] == "done", answer
    (copy,) = (daemons.cluster.state_dir("worker-1") / "data").glob("*/content")
    original = home(daemons, "worker-0") / "numbers"
    for file in ("deep/rows", "labels", "empty"):
        assert (copy / file).read_bytes() == (original / file).read_bytes()
    copied = daemons.await_event("data_copied")["message"]
    assert copied.startswith("worker-1: data numbers: copied ")
    assert " from worker-0 in " in copied


def status_says(daemons: Daemons, text: str) -> bool:
    """Whether the status explains the wait with these words."""
    return text in daemons.ask(m.GetStatus())["explain"]


def test_a_job_whose_data_nobody_has_waits_and_says_so_until_they_come(daemons: Daemons) -> None:
    daemons.await_idle()
    job = daemons.submit("data.numbers=/proc/self/cwd/later", text=JOB)
    daemons.until(
        job, lambda: status_says(daemons, "no worker has reported anything at /proc/self/cwd/later")
    )
    write(home(daemons, "worker-1") / "later.part", seed=1)
    (home(daemons, "worker-1") / "later.part").rename(home(daemons, "worker-1") / "later")
    daemons.child("worker-1").signal_group(signal.SIGKILL)
    daemons.child("worker-1").wait(PATIENCE_S)
    daemons.start_worker("worker-1")
    answer = daemons.wait(job)
    assert answer["state"] == "done", answer


def test_data_that_differ_are_named_and_the_job_goes_on_without_them(daemons: Daemons) -> None:
    daemons.await_idle()
    places = [home(daemons, name) / "differs" for name in ("worker-0", "worker-1")]
    for seed, place in enumerate(places):
        write(place, seed)
    job = daemons.submit("data.numbers=/proc/self/cwd/differs", text=JOB)
    aside = daemons.await_event("worker_set_aside", job=job)
    other = "worker-1" if aside["worker"] == "worker-0" else "worker-0"
    assert (
        f"data numbers: /proc/self/cwd/differs on {aside['worker']} is not the same as on {other}:"
        " it differs in deep/rows" in aside["message"]
    )
    shutil.rmtree(places[int(aside["worker"][-1])])
    answer = daemons.wait(job)
    assert answer["state"] == "done", answer


def test_a_cache_without_room_is_named_with_the_bytes(daemons: Daemons) -> None:
    daemons.await_idle()
    write(home(daemons, "worker-0") / "large", seed=3, mib=60)
    job = daemons.submit("data.numbers=/proc/self/cwd/large", text=JOB)
    aside = daemons.await_event("worker_set_aside", job=job)
    assert "data numbers: 60.0 MiB are needed, and the cache holds 51.2 MiB" in aside["message"]
    assert "data_cache_gib" in aside["message"]
    daemons.ask(m.CancelJob(job=job))
    daemons.wait(job)


def has_begun(cache: Path) -> bool:
    """Whether there is something of data that are larger than those of all other tests."""
    with contextlib.suppress(FileNotFoundError):  # it becomes a complete copy at this moment
        return any(one.stat().st_size > SMALL << 20 for one in cache.glob("*/content/deep/rows"))
    return True


def test_a_fetch_goes_on_after_both_sides_were_killed_in_the_middle(daemons: Daemons) -> None:
    daemons.await_idle()
    write(home(daemons, "worker-0") / "gone", seed=4, mib=40)
    job = daemons.submit("data.numbers=/proc/self/cwd/gone", text=JOB)
    cache, fetcher = daemons.cluster.state_dir("worker-1") / "data", daemons.child("worker-1")
    while not has_begun(cache):
        assert fetcher.exit_code() is None
    fetcher.signal_group(signal.SIGSTOP)
    for name in ("worker-0", "worker-1"):
        daemons.child(name).signal_group(signal.SIGKILL)
        daemons.child(name).wait(PATIENCE_S)
    daemons.start_worker("worker-1")
    daemons.await_event("worker_registered", "worker-1")
    daemons.start_worker("worker-0")
    answer = daemons.wait(job)
    assert answer["state"] == "done", answer
    original = (home(daemons, "worker-0") / "gone" / "deep" / "rows").read_bytes()
    copies = [one.read_bytes() for one in cache.glob("*/content/deep/rows")]
    assert original in copies
