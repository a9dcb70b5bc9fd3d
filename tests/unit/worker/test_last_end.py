"""How the process before this one ended: real signals, and every kind of trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dtd.worker import last_end
from dtd.worker.last_end import LastEnd, Moment, Traces, verdict

BEGAN = Moment(boot="b1", cgroup="/g:7", cgroup_oom_kills=2, host_oom_kills=5)
SEGMENTATION_FAULT = """Fatal Python error: Segmentation fault

Thread 0x00007f01 [asyncio] (most recent call first):
  File "/usr/lib/python3.11/selectors.py", line 468 in select

Current thread 0x00007f02 [trainer] (most recent call first):
  File "/srv/job/task.py", line 31 in loss
  File "/opt/dtd/lib/dtd/train/step.py", line 90 in contribute
"""


def test_the_strongest_evidence_speaks():
    def end(*, fault="", service="", **now):
        traces = Traces(pid=1, began=BEGAN, fault=fault, service=service)
        return verdict(traces, Moment(**{**vars_of(BEGAN), **now}))

    collecting = "[trainer] (most recent call first):\n"
    fault = SEGMENTATION_FAULT.replace(collecting, f"{collecting}  Garbage-collecting\n")
    assert end(fault=fault) == "ended by SIGSEGV in loss (task.py:31)"
    assert end(fault=SEGMENTATION_FAULT, service="core-dump dumped SEGV") == (
        "ended by SIGSEGV in loss (task.py:31)"
    )
    assert end(fault="Fatal Python error: Bus error\n") == "ended by SIGBUS"
    assert end(fault="Fatal Python error: RuntimeError: no\n") == "ended by RuntimeError: no"
    assert "for lack of memory (systemd: oom-kill)" in end(service="oom-kill killed KILL")
    assert "systemd's watchdog" in end(service="watchdog dumped ABRT")
    stack = SEGMENTATION_FAULT.replace("Segmentation fault", "Aborted")
    assert end(fault=stack, service="watchdog dumped ABRT") == (
        "was ended by systemd's watchdog: its event loop did not answer in loss (task.py:31)"
    )
    assert end(service="signal killed KILL") == "ended by SIGKILL (systemd: signal)"
    assert end(service="exit-code exited 3") == "ended with exit status 3"
    assert end(boot="b2") == "ended when its host went down; the host has restarted since"
    assert end() == "ended without a message: by SIGKILL, or because a library ended the process"


def vars_of(moment):
    return {name: getattr(moment, name) for name in Moment.__slots__}


def test_the_kernels_counts_tell_of_memory():
    def end(service="", **now):
        return verdict(
            Traces(pid=1, began=BEGAN, service=service), Moment(**{**vars_of(BEGAN), **now})
        )

    assert "oom_kill of its control group" in end(cgroup_oom_kills=3)
    assert "killed 1 process of this host" in end(host_oom_kills=6)
    assert "killed 2 processes of this host" in end(service="signal killed KILL", host_oom_kills=7)
    # A group that was made anew counts from zero; another signal is no lack of memory.
    assert "lack of memory" not in end(cgroup="/g:8", cgroup_oom_kills=3)
    assert end(service="signal killed SEGV", host_oom_kills=6) == (
        "ended by SIGSEGV (systemd: signal)"
    )


LIVE = """
import os, signal, sys
from pathlib import Path
from dtd.worker.last_end import LastEnd
one = LastEnd(Path(sys.argv[1]))
one.begin()
{deed}
"""


def live_and_die(directory: Path, deed: str) -> None:
    script = LIVE.format(deed=deed)
    subprocess.run(
        [sys.executable, "-c", script, str(directory)], check=False, capture_output=True, timeout=60
    )


@pytest.fixture
def told(tmp_path, monkeypatch):
    """What the next process says; without taking the test's own fault handler."""
    monkeypatch.setattr(last_end.faulthandler, "enable", lambda *_: None)

    def tell() -> str:
        following = LastEnd(tmp_path)
        following.begin()
        following.end()
        return following.told

    return tell


@pytest.mark.parametrize(
    ("deed", "words"),
    [
        ("def at_fault():\n  os.kill(os.getpid(), signal.SIGSEGV)\nat_fault()", "SIGSEGV in at_f"),
        ("os.kill(os.getpid(), signal.SIGABRT)", "ended by SIGABRT"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "ended without a message"),
        ("os._exit(3)", "ended without a message"),
        ("one.failed(ValueError('x'))", "ended by ValueError: x"),
        ("one.end()", ""),
        ("import io; sys.stderr = io.StringIO(); one.end(); print('over'); os._exit(3)", ""),
    ],
)
def test_a_process_that_ended_is_told_of_once(tmp_path, told, deed, words):
    live_and_die(tmp_path, deed)
    said = told()
    assert said.startswith(words) or words in said
    assert bool(said) is bool(words)
    assert told() == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "record",
    [
        "",
        "{",
        "[]",
        "3",
        json.dumps({"pid": 1}),
        json.dumps({"pid": 1, "began": {"a": 1}}),
        json.dumps({"pid": "x", "began": {}}),
        json.dumps({"pid": 1, "began": 3}),
    ],
)
def test_a_trace_that_is_not_whole_is_no_trace(tmp_path, told, record):
    (tmp_path / last_end.RUNNING_FILE).write_text(record)
    assert told() == ""


@pytest.fixture
def small_group(tmp_path):
    """A control group of 60 MB, where this user may make one."""
    for root, limit in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        group = Path("/sys/fs/cgroup", root, f"dtd-test-{os.getpid()}")
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text("60000000")
            yield group
            return
        except OSError:
            continue
        finally:
            group.rmdir()
    pytest.skip("no control group with a memory limit can be made here")


def test_the_kernels_killing_for_lack_of_memory_is_told(tmp_path, told, small_group):
    live_and_die(
        tmp_path,
        f"Path({str(small_group / 'cgroup.procs')!r}).write_text(str(os.getpid()))\n"
        "kept = [bytearray(10_000_000) for _ in range(50)]\n"
        "for one in kept: one[::4096] = b'x' * len(one[::4096])",
    )
    assert "for lack of memory" in told()


def test_what_is_told_is_bounded_and_printable(tmp_path, told):
    live_and_die(tmp_path, "os._exit(1)")
    (tmp_path / last_end.FAULT_FILE).write_text(
        "Fatal Python error: \x1b[31m" + "x" * 100_000 + "\n"
    )
    said = told()
    assert len(said) <= 255
    assert "\x1b" not in said


def test_a_directory_that_cannot_be_written_keeps_nobody_from_working(tmp_path):
    one = LastEnd(tmp_path / "missing")
    one.begin()
    one.failed(ValueError("x"))
    one.end()
    assert one.told == ""


def test_the_kernels_files_are_read(tmp_path):
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text("4:memory:/old\n0::/system.slice/dtd-worker@cpu.service\n")
    (proc / "vmstat").write_text("nr_free_pages 3\noom_kill 12\n")
    (proc / "sys/kernel/random").mkdir(parents=True)
    (proc / "sys/kernel/random/boot_id").write_text("b1\n")
    group = cgroups / "system.slice/dtd-worker@cpu.service"
    group.mkdir(parents=True)
    (group / "memory.events").write_text("low 0\noom 4\noom_kill 3\n")
    seen = last_end._moment(proc, cgroups)
    assert (seen.boot, seen.cgroup_oom_kills, seen.host_oom_kills) == ("b1", 3, 12)
    assert seen.cgroup.startswith(f"{group}:")
    assert last_end._moment(tmp_path / "none", tmp_path / "none") == Moment()
