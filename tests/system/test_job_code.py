"""A job's code under real systemd reaches its own worker's things, and no more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.system.cluster import COORDINATOR, Cluster
from tests.system.host import Host, show
from tests.system.prying_task import LENT, NOTES

INSTANCES: Final = ("cpu", "cpu-2")
STATE: Final = "/var/lib/dtd"
JOB: Final = """[job]
name = "prying"
task = "prying_task:Prying"
steps = 40
global_batch_size = 8
{more}
[task]
paths = {paths}
places = {places}
addresses = {addresses}
pids = {pids}

[elastic]
min_workers = {workers}
settle_s = 1.0

[train]
threads = 1
"""


def unit(instance: str) -> str:
    return f"dtd-worker@{instance}.service"


@pytest.fixture(scope="module")
def host(hosts_can_be_booted: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A host with a coordinator and two workers."""
    cluster = Cluster(1, directory=tmp_path_factory.mktemp("host"), say=print)
    try:
        made = cluster.coordinator
        made.run("dtdctl", "install")
        workers = [unit(instance) for instance in INSTANCES]
        made.run("systemctl", "enable", "--now", COORDINATOR, "dtd-workers.target", *workers)
        yield made
    finally:
        cluster.close()


def secrets(instance: str) -> list[str]:
    """Files that a job on a worker must not read."""
    others = [one for one in INSTANCES if one != instance]
    return [
        "/etc/shadow",
        "/root",
        f"{STATE}/coordinator",
        f"{STATE}/coordinator/coordinator.sqlite3",
        f"{STATE}/coordinator/pki/ca.key",
        *(f"{STATE}/worker-{other}" for other in others),
        *(f"/var/cache/dtd/worker-{other}" for other in others),
        *(f"/run/credentials/{unit(other)}/worker.credential" for other in others),
    ]


def pry(host: Host, *, workers: int = len(INSTANCES), more: str = "", **asked: Any) -> bool:
    """Have the task's code try it; whether the job is done."""
    task = (Path(__file__).parent / "prying_task.py").read_text("utf-8")
    host.write("/srv/job/prying_task.py", task)
    defaults: dict[str, Any] = {"paths": [], "places": [], "addresses": []}
    given = {key: json.dumps(asked.get(key, default)) for key, default in defaults.items()}
    pids = ", ".join(f"{name} = {pid}" for name, pid in asked.get("pids", {}).items())
    job = JOB.format(workers=workers, more=more, pids=f"{{ {pids} }}", **given)
    host.write("/srv/job/job.toml", job)
    done = host.attempt("dtdctl", "submit", "--wait", "/srv/job/job.toml")
    print(done.stdout, done.stderr)
    return done.returncode == 0


def outcome_of(host: Host, wanted: str) -> str:
    """The end of the test host's last submitted job."""
    jobs = json.loads(host.run("dtdctl", "jobs", "-o", "json"))["jobs"]
    job = max(jobs, key=lambda job: job["submitted_s"])
    assert job["state"] == wanted, job
    return str(job["reason"])


def found(host: Host, instance: str) -> dict[str, str]:
    """The notes of the code on a worker about each attempt."""
    said: dict[str, str] = json.loads(host.run("cat", f"/run/dtd/worker-{instance}/{NOTES}"))
    del said[LENT]
    return said


def test_job_code_reads_no_secrets(host: Host) -> None:
    names = {one: one.replace("-", "_") for one in INSTANCES}
    pids = {"coordinator": show(host, COORDINATOR).pid}
    pids |= {name: show(host, unit(one)).pid for one, name in names.items()}
    host.run("touch", "/dev/shm/of-somebody")
    paths = sorted({path for one in INSTANCES for path in secrets(one)})
    places = ["/etc", "/usr", "/opt/dtd", STATE, "/var/cache/dtd", "/run/dtd"]
    assert pry(host, paths=[*paths, "/dev/shm"], places=places, pids=pids)
    for instance, name in names.items():
        tried = found(host, instance)
        its_own = set(tried) & (
            {f"read {path}" for path in paths} - {f"read {path}" for path in secrets(instance)}
        )
        its_own |= {what for what in tried if what.endswith(f" of {name}")}
        assert tried[f"read environ of {name}"].startswith("got"), "an attempt can succeed"
        got = {what for what, outcome in tried.items() if not outcome.startswith("refused")}
        assert got <= its_own, tried


def test_workers_of_one_host_lend_each_other_memory(host: Host) -> None:
    """Though each is kept out of what the others have."""
    assert pry(host)
    for instance in INSTANCES:
        notes = json.loads(host.run("cat", f"/run/dtd/worker-{instance}/{NOTES}"))
        assert notes[LENT] == "2", "its own, and its neighbour's"


def open_files(host: Host, pid: int) -> int:
    """The hard limit of a process."""
    return int(host.run("grep", "Max open files", f"/proc/{pid}/limits").split()[4])


def test_what_a_service_uses_is_bounded(host: Host) -> None:
    for service, memory in ((COORDINATOR, 2 << 30), (unit("cpu"), None)):
        said = host.run("systemctl", "show", service, "--property=MemoryMax,TasksMax,LimitNOFILE")
        limits = dict(line.split("=") for line in said.split())
        assert limits["TasksMax"].isdecimal()
        total = int(host.run("grep", "MemTotal", "/proc/meminfo").split()[1]) * 1024
        assert int(limits["MemoryMax"]) == pytest.approx(memory or 0.95 * total, rel=0.01)
        allowed, most = (open_files(host, pid) for pid in (show(host, service).pid, 1))
        assert allowed == min(int(limits["LimitNOFILE"]), most)


STRANGERS: Final = ("192.0.2.1:9", "127.0.0.53:53", "10.77.0.254:9")
STRICT: Final = "cpu-strict"


@pytest.fixture
def strict(host: Host) -> Iterator[Host]:
    """The host with one worker alone, which an administrator has put into the strict sandbox."""
    example = host.run("cat", "/etc/dtd/strict.conf.example")
    host.write(f"{DROP_INS}/{unit(STRICT)}.d/strict.conf", example)
    host.run("systemctl", "daemon-reload")
    host.run("systemctl", "stop", *(unit(one) for one in INSTANCES))
    try:
        started = host.attempt("systemctl", "start", unit(STRICT))
        said = host.run("journalctl", "--no-pager", "--output=cat", f"--unit={unit(STRICT)}")
        assert started.returncode == 0, said
        yield host
    finally:
        host.run("systemctl", "stop", unit(STRICT))
        host.run("systemctl", "start", *(unit(one) for one in INSTANCES))


DROP_INS: Final = "/etc/systemd/system"
ASKS: Final = 'sandbox = "strict"\n'


def test_a_strict_job_calls_nobody_and_trains(strict: Host) -> None:
    places = ["/", "/etc", "/srv", "/opt/dtd", "/var/lib", "/run"]
    assert pry(strict, workers=1, more=ASKS, addresses=STRANGERS, places=places)
    tried = found(strict, STRICT)
    assert len(tried) > 2 * len(STRANGERS)
    assert [what for what, outcome in tried.items() if not outcome.startswith("refused")] == []


def test_an_ordinary_worker_refuses_a_strict_job_and_says_why(host: Host) -> None:
    assert not pry(host, more=ASKS)
    why = outcome_of(host, "failed")
    assert 'the job requires sandbox = "strict", and this worker has no such sandbox' in why
    assert pry(host, addresses=STRANGERS[:1])
    assert found(host, "cpu")["send 192.0.2.1:9"].startswith("got"), "it would have been possible"


def test_a_worker_whose_sandbox_has_a_hole_does_not_start(host: Host) -> None:
    """The kernel may have no filter of addresses, and systemd goes on without."""
    name = unit("cpu-leaky")
    host.write(f"{DROP_INS}/{name}.d/strict.conf", "[Service]\nEnvironment=DTD_SANDBOX=strict\n")
    host.run("systemctl", "daemon-reload")
    assert host.attempt("systemctl", "start", name).returncode != 0
    said = host.run("journalctl", "--no-pager", "--output=cat", f"--unit={name}")
    assert "outside the cluster, such as 192.0.2.1, can be reached" in said
    assert show(host, name).active == "failed"
    assert show(host, name).restarts == 0
