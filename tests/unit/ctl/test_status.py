"""`dtdctl status` and `dtdctl events` against a scripted coordinator."""

from __future__ import annotations

import json

import pytest

from dtd.cluster.events import FromWorker, Submitted
from dtd.cluster.records import Job
from dtd.cluster.several_jobs.pools import Pools
from dtd.cluster.status import status_of
from dtd.ctl.commands import status as command
from dtd.job import parse_job, to_mapping
from dtd.wire import messages as m

INDENT = " " * 13


def test_what_the_coordinator_makes_fits_the_schema(check_output):
    membership = Pools(heartbeat_interval_s=1.0, heartbeat_timeout_s=5.0, last_generation=0)
    here = {"host": "localhost", "device": "cpu", "data_host": "127.0.0.1", "version": "0.1.0"}
    register = m.Register(name="worker-0", incarnation=1, pid=7, data_port=1, **here)
    job = parse_job(
        'job = {name = "a", task = "digits", steps = 3, global_batch_size = 8}', source="test"
    )
    membership.handle(FromWorker(name="worker-0", message=register), 1.0)
    membership.handle(Submitted(job=Job(id="a-1", spec=to_mapping(job))), 1.0)
    made = status_of(
        [membership.cluster],
        explain=membership.explain(),
        address="127.0.0.1:7117",
        uptime_s=1.5,
        version="0.1.0",
        now=2.0,
        allotments={"a-1": {"least": 1, "most": 2, "priority": 0, "workers": 1, "why": ""}},
    )
    check_output(["status"], json.dumps(made))
    assert made["job"]["id"] == "a-1"
    assert command.status_lines(made)


def test_jobs_that_share_workers_show_how_many_they_take_and_why_no_more(status):
    allotment = {"least": 1, "most": 3, "priority": 0, "workers": 2, "why": ""}
    job = {**status["job"], "world_size": 2}
    for why, said in (
        ("", "workers 2 of 1 to 3"),
        ("shares evenly with a-2", " to 3: shares even"),
    ):
        status["jobs"] = [{**job, "allotment": {**allotment, "why": why}}]
        assert said in command.status_lines(status)[1]
    status["jobs"] = [{**job, "allotment": {**allotment, "most": 1}}]
    assert " of " not in command.status_lines(status)[1]


@pytest.mark.parametrize(
    ("part", "change", "why"),
    [
        ("job", {"state": "waiting", "reason": "too few"}, "job digits-1 waits: too few"),
        ("worker", {"state": "lost", "reason": "reset"}, "worker-1 is lost: reset"),
        ("worker", {"state": "refused", "reason": "torch"}, "worker-1 is refused: torch"),
        (
            "status",
            {"job": {"state": "waiting", "explain": "no state"}},
            "digits-1 waits: no state",
        ),
        ("status", {"troubles": [{"message": "disk full"}]}, "disk full"),
    ],
)
def test_degraded_exits_4(dtdctl, server, result, status, part, change, why):
    if part == "status":
        status["job"] |= change.pop("job", {})
        for one in change.get("troubles", ()):
            one |= {"since_s": 3.0, "where": "w", "kind": "disk", "remedy": "free space"}
    {"job": status["job"], "worker": status["workers"][1], "status": status}[part].update(change)
    server.script = lambda _message: result(status)
    exit_code, out, _err = dtdctl("status")
    assert exit_code == 4
    assert why.rpartition(": ")[2] in out
    assert command.degraded_because(status).endswith(why)


def test_where_a_stalled_worker_is(status):
    worker = status["workers"][1]
    worker.update(stalled_s=3.2, patience_s=5.0, where="task.py:12 in loss", reason="joins")
    note = "joins; no progress for 3.2s in task.py:12 in loss (limit 5.0s)"
    assert command.status_lines(status)[-1].endswith(note)
    worker.update(stalled_s=0.5)
    assert "no progress" not in command.status_lines(status)[-1]


def test_why_the_last_job_failed_where_and_what_tells_more(status, monkeypatch, check_output):
    monkeypatch.setattr("dtd.ctl.commands.status.time.time", lambda: 1000.0)
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
    status |= {"job": None, "jobs": [], "explain": "no job", "last_job": last, "queue": []}
    check_output(["status"], json.dumps(status))
    assert command.status_lines(status)[1:7] == [
        "job          none",
        f"{INDENT}no job",
        "last job     digits-1  failed  step 17/100 (17%)  2m03s ago",
        f"{INDENT}worker-1: ValueError: no {'x' * 272}...",
        f"{INDENT}in loss, /t/task.py:49",
        f"{INDENT}more: dtdctl show digits-1, dtdctl logs digits-1",
    ]


# --- events ------------------------------------------------------------------------------------

RECOVERED = {
    "cause": "worker-1 is lost",
    "worker": "worker-1",
    "detected_after_s": 0.0314,
    "recovered_after_s": 1.25,
    "paused_s": 0.09,
    "steps_redone": 1,
    "steps_lost": 0,
    "generation": 2,
}


@pytest.fixture
def events(server, result):
    """Serves two events, page by page; a follower is cut off after them."""
    common = {"time_s": 1_700_000_000.0, "job": "a-1", "generation": 1, "step": 9}
    lost = {"kind": "worker_lost", "worker": "w", "details": {}}
    back = {"kind": "recovered", "worker": "", "details": RECOVERED}
    events = [
        {"seq": seq, "message": f"event {seq}", **common, **one}
        for seq, one in enumerate((lost, back), start=1)
    ]

    def answer(message):
        rest = [event for event in events if event["seq"] > message.after][:1]
        if not rest and message.follow:
            return None
        return result({"events": rest, "next": rest[0]["seq"] if rest else message.after})

    server.script = answer
    return events


@pytest.mark.parametrize("form", ["table", "json"])
def test_events_are_followed_over_a_restart(dtdctl, events, server, monkeypatch, form):
    monkeypatch.setattr("dtd.ctl.answers.RECONNECT_EVERY_S", 0.0)
    monkeypatch.setattr("dtd.ctl.answers.RECONNECT_FOR_S", 0.0)
    exit_code, out, err = dtdctl("events", "--follow", "-o", form)
    assert exit_code == 3
    first, second = out.splitlines()
    if form == "table":
        assert first.endswith("worker_lost  a-1  w  1  9  event 1")
        assert second.endswith(
            "event 2  detected after 31 ms  recovered after 1.25 s  steps redone 1  steps lost 0"
        )
    assert "waiting for it to come back" in err
    assert server.received[:3] == [m.ReadEvents(after=seq, follow=True) for seq in (0, 1, 2)]


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ("", ["event 1", "event 2; detected after 31 ms; recovered after 1.25 s; steps redone 1"]),
        ("--kind recovered,job_done", ["event 2"]),
        ("--kind recovered -o wide", ["31 ms     1.25 s     1       0     event 2"]),
        ("--since 2023-11-15", []),
    ],
)
def test_events_are_filtered(dtdctl, events, options, seen):
    exit_code, out, err = dtdctl("events", *options.split())
    lines = out.splitlines()[1:]
    assert (exit_code, len(lines), err) == (0, len(seen), "" if seen else "no events\n")
    assert all(one in line for one, line in zip(seen, lines, strict=True))


def test_events_of_one_job_are_read_from_the_first(dtdctl, events, server, result):
    answer = server.script
    server.script = lambda one: result({}) if isinstance(one, m.ShowJob) else answer(one)
    assert dtdctl("events", "--job", "b-1")[1:] == ("", "no events\n")
    assert server.received[:2] == [m.ShowJob(job="b-1"), m.ReadEvents(after=1)]


def test_the_wide_form_shows_limits_of_threads_addresses_and_bytes_that_travelled(
    dtdctl, server, result, status
):
    status["workers"][0].update(patience_s=7.5, sent_bytes=84 << 20, plain_bytes=100 << 20)
    status["workers"][0]["addresses"] = ["10.0.0.1:7200", "192.168.0.1:7200"]
    server.script = lambda _message: result(status)
    headings, first = dtdctl("status", "-o", "wide")[1].partition("WORKER ")[2].splitlines()[:2]
    assert "STALL LIMIT" in headings
    assert "7.5s" in first
    assert "SENT" in headings
    assert "UNCODED" in headings
    assert "84.0 MiB" in first
    assert "100.0 MiB" in first
    assert "DATA PORT" in headings
    assert "  10.0.0.1:7200, 192.168.0.1:7200  " in first
    assert "7200" not in dtdctl("status")[1]
