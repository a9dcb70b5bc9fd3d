"""`dtdctl doctor` against a scripted coordinator: what it asks for, prints and exits with."""

from __future__ import annotations

import json

import pytest

from dtd import __version__
from dtd.doctor.larger import ASSUMED
from dtd.wire import messages as m

HOST = {
    "version": __version__,
    "skew_s": 0.0,
    "round_trip_s": 0.001,
    "disk_free_bytes": 1 << 40,
    "state_dir": "/state",
    "time_s": 0.0,
    "heartbeat_timeout_s": 1.5,
    "heartbeat_interval_s": 0.25,
}
WORLD = {"data_s": 0.0, "compute_s": 0.1, "ready_s": [0.1, 0.1], "optimizer_s": 0.0}
ALONE = {"data_s": 0.0, "compute_s": 0.2, "ready_s": [0.2, 0.2], "optimizer_s": 0.0}
NONE = {
    "strategy": "replicated",
    "every_steps": 1,
    "overlaps": False,
    "codec": "none",
    "risk": "",
    "reason": "",
}
STEP = {
    "candidates": [
        NONE,
        {**NONE, "codec": "half", "risk": "rounds"},
        {**NONE, "codec": "rank", "reason": "does not fit: no matrix"},
    ],
    "codecs": {"half": {"passes": 2, "wires": [[0, 5 * 10**7, False, False]]}},
    "pass_s_per_byte": 1e-10,
    "state": {"parameter_bytes": 1 << 19, "common_bytes": 0, "optimizer_bytes": 1 << 20},
    "buckets": [10**8, 0],
    "rows": 32,
    "memory": {"parameters": 1 << 20},
    "available_bytes": 1 << 30,
    "worlds": {"1": ALONE, "2": WORLD},
}


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text('[job]\nname = "a"\ntask = "digits"\nsteps = 3\nglobal_batch_size = 8\n')
    return str(path)


@pytest.fixture
def cluster(server, result, status, monkeypatch):
    """A healthy one with two idle workers, and its answers."""
    monkeypatch.setattr("dtd.ctl.commands.doctor.time.time", lambda: 0.0)
    status["job"] = None
    for worker in status["workers"]:
        worker["state"] = "idle"
    answers = {
        "host": HOST,
        "latency": {"host": "10.0.0.1", "rtt_s": 0.001},
        "bandwidth": {"host": "10.0.0.1", "rtt_s": 0.001, "bytes_per_s": 1e8},
        "step": STEP,
    }

    def script(message):
        answer = status if isinstance(message, m.GetStatus) else answers[message.what]
        return m.message_bytes(answer) if isinstance(answer, m.Error) else result(answer)

    server.script = script
    return answers


def test_a_job_is_forecast_and_strategies_are_compared(dtdctl, server, cluster, job, check_output):
    exit_code, out, _ = dtdctl("doctor", job, "-o", "json")
    report = json.loads(out)
    check_output(["doctor"], out)
    assert exit_code == 0
    assert [one["world_size"] for one in report["forecast"]] == [1, 2]
    assert [one["forecast"]["world_size"] for one in report["larger"]["worlds"]] == [16]
    assert {need["worker"] for need in report["memory"]} == {"worker-0", "worker-1"}
    assert {finding["check"] for finding in report["checks"]} >= {"memory", "ports", "clocks"}
    _, out, _ = dtdctl("doctor", job)
    assert "LIMITED BY" in out
    table = [line.split("  ") for line in out.splitlines()[out.splitlines().index("") :]]
    rows = [[cell.strip() for cell in line if cell] for line in table]
    at = rows.index(["STRATEGY", "CODEC", "SENT/STEP", "STEP", "SPEEDUP", "RISK"])
    assert rows[at + 1 : at + 4] == [
        ["replicated", "half", "47.7 MiB", "621 ms", "1.77 x", "rounds"],
        ["replicated", "none (the job's)", "95.4 MiB", "1.10 s", "1.00 x", "same numbers"],
        ["replicated", "rank", "-", "-", "-", "does not fit: no matrix"],
    ]
    at = rows.index(next(line for line in rows if line[-1:] == ["FASTER WITH"]))
    assert rows[at + 1][0] == "16"
    assert rows[at + 1][-1].startswith("replicated, half: ")
    assert rows[at + 2] == [ASSUMED]
    assert "beyond 1 worker, each one more shortens a step by less than 1 %" in out
    assert "ok    with strategy replicated and codec half a step should take 621 ms" in out
    assert "      try: compare the loss of short runs first; under [strategy] write" in out


@pytest.mark.parametrize(
    ("what", "error", "told"),
    [
        (
            "bandwidth",
            m.Error(code=17, message="Connection refused", remedy=""),
            "FAIL  worker-1 cannot fetch from worker-0: Connection refused",
        ),
        (
            "step",
            m.Error(code=17, message="worker-0: no module 'x'", remedy="install it"),
            "FAIL  worker-0: no module 'x'",
        ),
    ],
)
def test_what_cannot_be_measured_fails(dtdctl, cluster, job, what, error, told):
    cluster[what] = error
    exit_code, out, _ = dtdctl("doctor", job)
    assert exit_code == 4
    assert told in out
