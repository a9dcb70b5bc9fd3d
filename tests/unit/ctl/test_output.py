from __future__ import annotations

import io
import json
from pathlib import Path

from jsonschema import Draft202012Validator

from dtd.ctl import output
from dtd.ctl.commands import COMMANDS


def test_a_stream_that_is_not_unicode_gets_json_in_ascii_and_documents_in_utf_8(monkeypatch):
    made = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(made, "latin-1"))
    value = {"text": "é ✓ \U0001f600"}
    output.print_json(value)
    assert made.getvalue().isascii()
    assert json.loads(made.getvalue()) == value
    made.truncate(0)
    output.print_document("é ✓\n")
    assert made.getvalue().lstrip(b"\0") == "é ✓\n".encode()


def test_every_command_has_its_schema():
    schema = json.loads((Path(__file__).parents[3] / "docs/output.schema.json").read_text("utf-8"))
    printing = {command.name for command in COMMANDS} - {
        "join",
        "report",
    }  # a report is a file, in forms of its own
    assert printing <= set(schema["$defs"])
    Draft202012Validator.check_schema(schema)
