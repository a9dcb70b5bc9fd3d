"""Whatever a coordinator answers, dtdctl shows none of it raw, in either form."""

from __future__ import annotations

import ast
import json
import unicodedata
from pathlib import Path

import pytest

from dtd.ctl import output
from dtd.wire import messages as m

HOSTILE = "x\x1b[2J\x1b]0;t\x07\x9b2J\u202e\u2066\u2028\x85\r\n\x00forged: line"
LINE = {"seq": 1, "rank": 0, "worker": HOSTILE, "text": HOSTILE, "time_s": 1.0}
CREDENTIAL = {
    **dict.fromkeys(("name", "role", "serial"), HOSTILE),
    **dict.fromkeys(("revoked_s", "issued_s", "expires_s"), 0.0),
}
ENTRY = {
    **dict.fromkeys(("role", "who", "serial", "address", "what", "outcome", "reason"), HOSTILE),
    "seq": 1,
    "time_s": 1.0,
    "skipped": 1,
    "about": {HOSTILE: HOSTILE},
    "result": {HOSTILE: [{HOSTILE: HOSTILE}]},
}
ANSWERS = {
    "logs a": {"lines": [LINE], "next": 1},
    "audit": {"entries": [ENTRY], "next": 1},
    "credentials": {"credentials": [CREDENTIAL]},
    "revoke a": {"revoked": [CREDENTIAL], "evicted": [HOSTILE]},
    "cancel a": {"job": HOSTILE, "state": HOSTILE},
}


def hostile(value):
    """All texts of a value are replaced."""
    match value:
        case str():
            return HOSTILE
        case dict():
            return {key: hostile(one) for key, one in value.items()}
        case list():
            return [hostile(one) for one in value]
    return value


def unsafe(text: str) -> list[str]:
    """Characters that would steer a terminal or break a line."""
    bidi = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    bad = {"Cc", "Zl", "Zp", "Cs"}
    return [c for c in text if (unicodedata.category(c) in bad or c in bidi) and c != "\n"]


@pytest.mark.parametrize("form", ["table", "json"])
@pytest.mark.parametrize("command", ["status", *ANSWERS])
def test_no_command_shows_what_others_wrote_raw(dtdctl, server, result, status, command, form):
    status["job"] |= {"straggler": {"name": "w", "cost_s": 1.0}, "reason": "r"}
    status["troubles"] = [{"since_s": 1.0, "message": "m", "remedy": "r"}]
    answer = ANSWERS[command] if command in ANSWERS else hostile(status)

    def script(message):
        after = getattr(message, "after", 0)
        return result({key: [] if after and key != "next" else answer[key] for key in answer})

    server.script = script
    _exit_code, out, err = dtdctl(*command.split(), "-o", form)
    assert "forged: line" in out + err
    assert not unsafe(out + err)
    if form == "json":
        assert [json.loads(line) for line in out.splitlines()]
    else:
        assert not [line for line in (out + err).splitlines() if line.startswith("forged")]


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_refusal_is_no_more_than_a_refusal(dtdctl, server, form):
    server.script = lambda _message: m.message_bytes(
        m.Error(code=9, message=f"no\nerror: {HOSTILE}\ntry: rm -rf /", remedy=HOSTILE)
    )
    exit_code, out, err = dtdctl("jobs", "-o", form)
    assert (exit_code != 0, out) == (True, "")
    assert not unsafe(err)
    begins = [line.partition(" ")[0] for line in err.splitlines() if line[:1] != " "]
    assert begins in (["error:", "try:"], ["error:"]) or form == "json"


def test_nothing_is_printed_but_by_the_one_file_that_escapes():
    """`print`, and writing to a standard stream, is for `dtd.ctl.output` alone."""
    found = set()
    for path in sorted(Path(output.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            prints = isinstance(node.func, ast.Name) and node.func.id == "print"
            writes = isinstance(node.func, ast.Attribute) and node.func.attr == "write"
            if prints or (writes and "std" in ast.unparse(node.func)):
                found.add(path.name)
    assert found == {"output.py"}
