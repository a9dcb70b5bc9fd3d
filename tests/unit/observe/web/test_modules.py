"""The page's modules without a browser: incidents from events, tracebacks."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from dtd.event_names import INCIDENTS

MODULES = """
const { incidentsOf } = await import("./incidents/incidents.js");
globalThis.localStorage = { getItem: () => "" };
const { ownFirst } = await import("./incidents/traceback.js");
const { ERRORS, INFOS, level } = await import("./parts.js");
"""
pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="needs node")


def event(kind: str, worker: str = "", message: str = "", **more: Any) -> dict[str, Any]:
    made = {"kind": kind, "worker": worker, "message": message, "job": "digits-1", "details": {}}
    return {"seq": 1, "time_s": 10.0, "step": 0, **made, **more}


RECOVERED = event(
    "recovered",
    "worker-1",
    step=26,
    details={
        "detected_after_s": 0.5,
        "recovered_after_s": 0.25,
        "steps_redone": 1,
        "steps_lost": 2,
    },
)


def test_a_killed_worker_is_one_incident_with_its_cost(evaluate: Any) -> None:
    happened = [
        event("generation_running"),
        event("worker_signalled", "worker-1", "SIGKILL sent to worker-1 (pid 7) by the operator"),
        event("ring_broken", "worker-2"),
        event("generation_ending"),
        event("worker_lost", "worker-1"),
        event("worker_lost", "worker-7", job="other-2"),
        RECOVERED,
    ]
    one, other = evaluate(f"incidentsOf({json.dumps(happened)})")
    told = {name: one[name] for name in ("title", "step", "is_fault", "detected_s", "recovered_s")}
    assert told == {
        "title": "worker-1 killed",
        "step": 26,
        "is_fault": True,
        "detected_s": 0.5,
        "recovered_s": 0.25,
    }
    assert (one["redone"], one["lost"], len(one["parts"])) == (1, 2, 5)
    assert (other["title"], other["recovered_s"]) == ("worker-7 lost", None)


def test_a_worker_that_joins_is_no_fault(evaluate: Any) -> None:
    details = {"cause": "worker-1 joins", "recovered_after_s": 0.2}
    happened = [event("generation_ending"), event("recovered", details=details)]
    (one,) = evaluate(f"incidentsOf({json.dumps(happened)})")
    assert (one["title"], one["is_fault"]) == ("worker-1 joins", False)


def test_the_end_of_a_job_is_no_fault(evaluate: Any) -> None:
    happened = [event("generation_ending"), event("job_done")]
    assert evaluate(f"incidentsOf({json.dumps(happened)})") == []


TRACEBACK = """Traceback (most recent call last):
  File "/opt/dtd/train/loop.py", line 9, in compute
    self._step()
  File "/home/eve/planes/task.py", line 57, in loss
    raise ValueError("row 17 is odd")
ValueError: row 17 is odd
"""


def test_the_frame_of_the_user_comes_first(evaluate: Any) -> None:
    error, own, all_frames = evaluate(f"ownFirst({json.dumps(TRACEBACK)})")
    assert error == "ValueError: row 17 is odd"
    assert own.splitlines() == [
        '  File "/home/eve/planes/task.py", line 57, in loss',
        '    raise ValueError("row 17 is odd")',
    ]
    assert all_frames == TRACEBACK


def test_levels_name_events_that_exist(evaluate: Any) -> None:
    errors, infos = evaluate("[ERRORS, INFOS]")
    assert not set(errors) & set(infos)
    assert set(errors) | set(infos) <= set(INCIDENTS)
    assert evaluate('["job_done", "worker_lost", "job_failed", "new_kind"].map(level)') == [
        *("info", "warning", "error", "warning")
    ]
