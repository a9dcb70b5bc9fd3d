"""`dtdctl status`: its text, its judgement, and its JSON against docs/status.schema.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dtd.cluster.events import FromWorker, Submitted
from dtd.cluster.machine import Membership
from dtd.cluster.records import Job
from dtd.cluster.status import status_of
from dtd.ctl import status as command
from dtd.job import parse_job, to_mapping
from dtd.wire import messages as m

SCHEMA = json.loads(
    (Path(__file__).resolve().parents[3] / "docs" / "status.schema.json").read_text()
)
TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}


def faults(schema, value, where="status"):
    """Values that do not fit; of JSON Schema only the words that our schema uses."""
    kinds = schema.get("type", list(TYPES))
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if isinstance(value, bool) or not any(isinstance(value, TYPES[kind]) for kind in kinds):
        return [f"{where}: {value!r} is no {kinds}"]
    found = []
    if "const" in schema and value != schema["const"]:
        found.append(f"{where}: {value!r} is not {schema['const']!r}")
    if value not in schema.get("enum", [value]):
        found.append(f"{where}: {value!r} is not listed")
    if "minimum" in schema and value is not None and value < schema["minimum"]:
        found.append(f"{where}: {value} is too small")
    if isinstance(value, dict):
        found += [
            f"{where}.{key} is missing" for key in schema.get("required", ()) if key not in value
        ]
        for key, inner in schema.get("properties", {}).items():
            if key in value:
                found += faults(inner, value[key], f"{where}.{key}")
    if isinstance(value, list):
        for index, item in enumerate(value):
            found += faults(schema.get("items", {}), item, f"{where}[{index}]")
    return found


def test_a_healthy_status_fits_the_schema_and_a_bent_one_does_not(status):
    assert faults(SCHEMA, status) == []
    assert faults(SCHEMA, {**status, "job": None, "workers": []}) == []
    bent = {**status, "schema": 2, "job": {**status["job"], "state": "asleep", "step": -1}}
    del bent["coordinator"]
    assert faults(SCHEMA, bent) == [
        "status.coordinator is missing",
        "status.schema: 2 is not 1",
        "status.job.state: 'asleep' is not listed",
        "status.job.step: -1 is too small",
    ]


def test_what_the_coordinator_makes_fits_the_schema():
    membership = Membership(heartbeat_interval_s=1.0, heartbeat_timeout_s=5.0, last_generation=0)
    here = {"host": "localhost", "device": "cpu", "data_host": "127.0.0.1", "version": "0.1.0"}
    register = m.Register(name="worker-0", incarnation=1, pid=7, data_port=1, **here)
    job = parse_job(
        'job = {name = "a", task = "digits", steps = 3, global_batch_size = 8}', source="test"
    )
    membership.handle(FromWorker(name="worker-0", message=register), 1.0)
    membership.handle(Submitted(job=Job(id="a-1", spec=to_mapping(job))), 1.0)
    made = status_of(
        membership.cluster,
        explain=membership.explain(),
        address="127.0.0.1:7117",
        uptime_s=1.5,
        version="0.1.0",
        now=2.0,
    )
    assert faults(SCHEMA, made) == []
    assert made["job"]["id"] == "a-1"
    assert [worker["name"] for worker in made["workers"]] == ["worker-0"]
    assert command.status_lines(made, colour=False)


def test_status_prints_job_and_workers(dtdctl, server, result, status):
    status["workers"][1]["patience_s"] = 41.0
    server.script = lambda _message: result(status)
    exit_code, out, err = dtdctl("status")
    assert (exit_code, err) == (0, "")
    figures = "loss 0.1235  2,345/s  steps lost 0"
    assert out.splitlines() == [
        "coordinator  127.0.0.1:7117  up 3m12s  dtd 0.1.0",
        "job          digits-1  running  generation 2  workers 2",
        f"{' ' * 13}step 120/600 (20%)  epoch 3  {figures}  eval accuracy=0.95",
        "queue        digits-2",
        "",
        "WORKER    STATE    RANK  STEP  RATE     HEARD  STUCK AFTER  DEVICE  HOST       PID  NOTE",
        "worker-0  running  0     120   1,172/s  0.2s   -            cpu     localhost  100",
        "worker-1  running  1     120   1,172/s  0.2s   41s          cpu     localhost  101",
    ]


def test_status_as_json_is_what_the_coordinator_said(dtdctl, server, result, status):
    server.script = lambda _message: result(status)
    exit_code, out, _err = dtdctl("status", "-o", "json")
    assert exit_code == 0
    assert json.loads(out) == status


def test_status_without_job_and_workers(dtdctl, server, result, status):
    why = "no job: submit one with `dtdctl submit JOB.toml`"
    server.script = lambda _message: result(
        {**status, "job": None, "workers": [], "queue": [], "explain": why}
    )
    exit_code, out, _err = dtdctl("status")
    assert exit_code == 0
    assert out.splitlines()[1:] == [
        "job          none",
        f"             {why}",
        "",
        "no worker is registered",
    ]


@pytest.mark.parametrize(
    ("part", "change", "why"),
    [
        ("job", {"state": "waiting", "reason": "too few"}, "job digits-1 waits: too few"),
        ("worker", {"state": "lost", "reason": "reset"}, "worker-1 is lost: reset"),
        ("worker", {"state": "refused", "reason": "torch"}, "worker-1 is refused: torch"),
    ],
)
def test_degraded_exits_4(dtdctl, server, result, status, part, change, why):
    (status["job"] if part == "job" else status["workers"][1]).update(change)
    server.script = lambda _message: result(status)
    exit_code, out, _err = dtdctl("status")
    assert exit_code == 4
    assert change["reason"] in out
    assert command.degraded_because(status) == why


def test_where_a_stalled_worker_is(status):
    worker = status["workers"][1]
    worker.update(stalled_s=3.2, patience_s=5.0, where="task.py:12 in loss")
    note = "no progress for 3.2s in task.py:12 in loss (limit 5.0s)"
    assert command.status_lines(status, colour=False)[-1].endswith(note)
    worker["reason"] = "joins"
    assert command.status_lines(status, colour=False)[-1].endswith(f"joins; {note}")
    worker.update(stalled_s=0.5, reason="")
    assert "no progress" not in command.status_lines(status, colour=False)[-1]


def test_troubles_are_not_healthy(dtdctl, server, result, status):
    diagnostic = {
        "since_s": 3.0,
        "where": "worker-1",
        "kind": "disk",
        "message": "worker-1 cannot write: it is full",
        "remedy": "free space",
    }
    made = {**status, "troubles": [diagnostic]}
    server.script = lambda _message: result(made)
    assert dtdctl("status")[0] == 4
    assert command.degraded_because(made) == "worker-1 cannot write: it is full"


def test_what_a_waiting_job_waits_for(dtdctl, server, result, status):
    why = "waiting for worker-1: no present worker holds the state of step 120"
    status["job"]["state"] = "waiting"
    server.script = lambda _message: result({**status, "explain": why})
    exit_code, out, _err = dtdctl("status")
    assert exit_code == 4
    assert out.splitlines()[3] == f"{' ' * 13}{why}"


def test_why_the_last_job_failed_where_and_what_tells_more(
    dtdctl, server, result, status, monkeypatch
):
    monkeypatch.setattr("dtd.ctl.status.time.time", lambda: 1000.0)
    trace = [f'  File "/t/task.py", line {number}, in loss' for number in range(50)]
    last = {
        "id": "digits-1",
        "name": "digits",
        "state": "failed",
        "step": 17,
        "total_steps": 100,
        "ended_s": 877.0,
        "reason": "worker-1: ValueError: no\n" + "x" * 500,
        "traceback": "\n".join(["Traceback:", *trace, "ValueError: no"]),
    }
    made = {**status, "job": None, "explain": "no job", "last_job": last, "queue": []}
    assert faults(SCHEMA, made) == []
    server.script = lambda _message: result(made)
    exit_code, out, _err = dtdctl("status")
    indent = " " * 13
    assert exit_code == 0
    assert out.splitlines()[1:7] == [
        "job          none",
        f"{indent}no job",
        "last job     digits-1  failed  step 17/100 (17%)  2m03s ago",
        f"{indent}worker-1: ValueError: no {'x' * 272}...",
        f"{indent}in loss, /t/task.py:49",
        f"{indent}more: dtdctl show digits-1, dtdctl logs digits-1",
    ]
    assert "File" not in out
