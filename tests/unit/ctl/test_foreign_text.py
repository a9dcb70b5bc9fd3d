"""Whatever a coordinator answers, dtdctl shows none of it raw: every command, both forms."""

from __future__ import annotations

import ast
import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from dtd.ctl import output
from dtd.errors import RequestRefused
from dtd.wire import messages as m

HOSTILE = "x\x1b[2J\x1b]0;t\x07\x9b2J\u202e\u2066\u2028\x85\r\n\x00forged: line"
FORGED = "forged: line"
CTL = Path(output.__file__).parent
COORDINATOR = {"address": HOSTILE, "uptime_s": 1.0, "version": HOSTILE}
JOB: dict[str, Any] = {
    **dict.fromkeys(("id", "name", "identity", "task", "state", "reason", "traceback"), HOSTILE),
    **dict.fromkeys(("package", "from_job", "from_mode", "weights", "task_digest"), HOSTILE),
    **dict.fromkeys(("step", "total_steps", "generation", "epoch", "world_size", "lines"), 1),
    **dict.fromkeys(("steps_lost", "skipped_steps", "samples_per_s", "loss", "dataset_rows"), 1),
    **dict.fromkeys(("submitted_s", "started_s", "ended_s", "from_step"), 1.0),
    "result": {"traceback": HOSTILE, HOSTILE: HOSTILE},
    "settings": {HOSTILE: HOSTILE},
    "spec": {"job": {"task": HOSTILE, HOSTILE: HOSTILE}, "task": {HOSTILE: HOSTILE}},
    "metrics": {HOSTILE: 1.0},
    "eval": {HOSTILE: 1.0},
    "incidents": {HOSTILE: 1},
    "workers": [HOSTILE],
    "checkpoints": [],
    "straggler": {"name": HOSTILE, "cost_s": 1.0},
    "dataset_fingerprint": HOSTILE,
}
WORKER = {
    **dict.fromkeys(("name", "state", "device", "host", "reason", "where", "evidence"), HOSTILE),
    "rank": 0,
    "step": 1,
    "samples_per_s": 1.0,
    "last_heartbeat_s": 1.0,
    "pid": 1,
    "stalled_s": 9.0,
    "patience_s": 9.0,
}
CHECKPOINT = {
    **dict.fromkeys(("job", "worker", "directory", "digest"), HOSTILE),
    "generation": 1,
    "step": 1,
    "size_bytes": 1,
    "metrics": {HOSTILE: 1.0},
    "alive": True,
    "verified": True,
    "confirmation": "verified",
    "left_behind": True,
}
EVENT = {
    **dict.fromkeys(("kind", "job", "worker", "message"), HOSTILE),
    "seq": 1,
    "time_s": 1.0,
    "generation": 1,
    "step": 1,
    "details": {HOSTILE: HOSTILE},
}
TOKEN = {
    "id": HOSTILE,
    "role": HOSTILE,
    "expired": False,
    "created_s": 1.0,
    "expires_s": 1.0,
    "uses": 2,
    "used": [HOSTILE],
    "names": [HOSTILE],
}
CREDENTIAL = {
    **dict.fromkeys(("name", "role", "serial"), HOSTILE),
    "revoked_s": 0.0,
    "issued_s": 1.0,
    "expires_s": 1.0,
}
TROUBLE = {"since_s": 1.0, "message": HOSTILE, "remedy": HOSTILE}
ENTRY = {
    **dict.fromkeys(("role", "who", "serial", "address", "what", "outcome", "reason"), HOSTILE),
    "seq": 1,
    "time_s": 1.0,
    "skipped": 1,
    "about": {HOSTILE: HOSTILE},
    "result": {HOSTILE: [{HOSTILE: HOSTILE}]},
}
ANSWERS: dict[type[Any], Any] = {
    m.GetStatus: {
        "coordinator": COORDINATOR,
        "job": JOB,
        "queue": [HOSTILE],
        "workers": [WORKER],
        "explain": HOSTILE,
        "troubles": [TROUBLE],
        "last_job": JOB,
    },
    m.ListJobs: {"jobs": [JOB]},
    m.ShowJob: {**JOB, "checkpoints": [CHECKPOINT]},
    m.ReadLogs: {
        "lines": [{"seq": 1, "rank": 0, "worker": HOSTILE, "text": HOSTILE, "time_s": 1.0}],
        "next": 1,
    },
    m.ReadEvents: {"events": [EVENT], "next": 1},
    m.ReadAudit: {"entries": [ENTRY], "next": 1},
    m.ListCheckpoints: {"checkpoints": [CHECKPOINT]},
    m.ListTokens: {"tokens": [TOKEN]},
    m.ListCredentials: {"credentials": [CREDENTIAL]},
    m.RevokeCredential: {"revoked": [CREDENTIAL], "evicted": [HOSTILE]},
    m.CancelJob: {"job": HOSTILE, "state": HOSTILE},
    m.KillWorker: {"name": HOSTILE, "pid": HOSTILE, "signal": HOSTILE},
    m.DrainWorker: {"name": HOSTILE},
}
COMMANDS = [
    *("status", "jobs", "show a", "logs a", "events", "checkpoints", "token list", "credentials"),
    *("audit", "revoke a", "cancel a", "kill-worker a", "drain a"),
]


def unsafe(text: str) -> list[str]:
    """Characters that would steer a terminal or break a line."""
    bidi = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    bad = {"Cc", "Zl", "Zp", "Cs"}
    return [c for c in text if (unicodedata.category(c) in bad or c in bidi) and c != "\n"]


@pytest.mark.parametrize("form", ["table", "json"])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_shows_what_others_wrote_raw(dtdctl, server, result, command, form) -> None:
    def script(message):
        answer = ANSWERS[type(message)]
        if getattr(message, "after", 0):
            answer = {key: [] if isinstance(value, list) else 1 for key, value in answer.items()}
        return result(answer)

    server.script = script
    _exit_code, out, err = dtdctl(*command.split(), "-o", form)
    assert FORGED in out + err
    assert not unsafe(out + err)
    lines = out.splitlines() if form == "json" else (out + err).splitlines()
    assert not [line for line in lines if line.startswith("forged")]
    for line in out.splitlines() if form == "json" else ():
        json.loads(line)


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_refusal_is_no_more_than_a_refusal(dtdctl, server, form) -> None:
    server.script = lambda _message: m.message_bytes(
        m.Error(code=9, message=f"no\nerror: {HOSTILE}\ntry: rm -rf /", remedy=HOSTILE)
    )
    exit_code, out, err = dtdctl("jobs", "-o", form)
    assert (exit_code != 0, out) == (True, "")
    assert not unsafe(err)
    begins = [line.partition(" ")[0] for line in err.splitlines() if line[:1] != " "]
    assert begins in (["error:", "try:"], ["error:"]) or form == "json"


def test_an_error_with_several_lines_stays_readable(capsys) -> None:
    output.say_error(RequestRefused("job.toml: 2 problems\n  one\n  two"), as_json=False)
    assert capsys.readouterr().err == "error: job.toml: 2 problems\n  one\n  two\n"


def test_nothing_is_printed_but_by_the_one_file_that_escapes() -> None:
    """`print`, and writing to a standard stream, is for `dtd.ctl.output` alone."""
    found = []
    for path in sorted(CTL.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            prints = isinstance(node.func, ast.Name) and node.func.id == "print"
            writes = isinstance(node.func, ast.Attribute) and node.func.attr == "write"
            if prints or (writes and "std" in ast.unparse(node.func)):
                found.append(path.name)
    assert set(found) == {"output.py"}
