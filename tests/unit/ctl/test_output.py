from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from dtd.ctl import output
from dtd.ctl.command_table import COMMANDS
from dtd.errors import DtdError


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


def test_json_is_one_line_and_bytes_are_hex(capsys):
    output.print_json({"digest": b"\x00\xff", "text": "ü\n"})
    assert capsys.readouterr().out == '{"digest": "00ff", "text": "ü\\n"}\n'
    with pytest.raises(TypeError, match="object has no JSON form"):
        output.print_json(object())


@pytest.mark.parametrize(
    ("columns", "lines"),
    [
        (100, ["NAME  EMPTY  WHY", "a     -      its worker is gone, and nobody waits for it"]),
        (
            38,
            [
                "NAME  EMPTY  WHY",
                "a     -      its worker is gone, and",
                "             nobody waits for it",
            ],
        ),
    ],
)
def test_a_table_is_folded_to_the_terminal(monkeypatch, columns, lines):
    monkeypatch.setattr(os, "get_terminal_size", lambda _fd: os.terminal_size((columns, 24)))
    row = ("a", "-", "its worker is gone, and nobody waits for it")
    assert output.table_lines(("NAME", "EMPTY", "WHY"), [row]) == lines
    narrow = output.table_lines(("NAME", "EMPTY", "WHY"), [row], wide=False, only_wide=("NAME",))
    assert narrow[0] == "WHY"


def test_an_error_is_a_sentence_and_a_remedy(capsys):
    output.say_error(DtdError("it broke", remedy="mend it"), as_json=False)
    output.say_error(DtdError("it broke"), as_json=False)
    output.say_error(DtdError("it broke", remedy="mend it"), as_json=True)
    out, err = capsys.readouterr()
    assert out == ""
    plain, as_json = err.splitlines()[:3], err.splitlines()[3]
    assert plain == ["error: it broke", "try: mend it", "error: it broke"]
    assert json.loads(as_json) == {"error": "it broke", "remedy": "mend it"}


def test_every_command_has_its_schema():
    schema = json.loads((Path(__file__).parents[3] / "docs/output.schema.json").read_text("utf-8"))
    printing = {command.name for command in COMMANDS} - {"join"}
    assert printing <= set(schema["$defs"])
    Draft202012Validator.check_schema(schema)
