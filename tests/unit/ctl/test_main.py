"""The way in, as a process: what it loads, how it ends, what it leaves on which stream."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import shlex
import signal
import subprocess
import sys

import pytest

from dtd import __version__
from dtd.ctl.command_line import read_arguments
from dtd.ctl.command_table import COMMANDS, EXAMPLES, TOPICS
from dtd.ctl.main import run
from dtd.ctl.settings import take_settings
from dtd.wire import messages as m

DTDCTL = (sys.executable, "-m", "dtd.ctl.main")


def start(*arguments, address="unix:/nonexistent/control.sock", **environment):
    return subprocess.Popen(
        [*DTDCTL, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "DTD_COORDINATOR": str(address), **environment},
    )


def dtdctl(*arguments, **options):
    process = start(*arguments, **options)
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


def test_status_loads_nothing_heavy(server, result, status):
    server.script = lambda _message: result(status)
    program = (
        "import sys; from dtd.ctl.main import run; assert run(['status', '-o', 'json']) == 0;"
        "heavy = {'rich', 'asyncio', 'uvloop', 'torch', 'numpy', 'structlog', 'pydantic',"
        " 'cryptography', 'ssl', 'hashlib', 'difflib'};"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "DTD_COORDINATOR": str(server.control)},
        timeout=30,
        check=True,
    )
    assert json.loads(done.stdout) == status
    assert done.stderr == "[]\n"


@pytest.mark.parametrize(
    ("line", "exit_code", "told"),
    [
        ("status", 3, "error: nothing listens at the coordinator's address"),
        ("events --follow", 3, "error: nothing listens at the coordinator's address"),
        ("bogus", 2, "dtdctl has no command 'bogus'"),
        ("models bogus", 2, "dtdctl models has no command 'bogus'"),
        ("wait", 2, "dtdctl wait: "),
        ("kill-worker w --signal HUP", 2, "invalid choice: 'HUP'"),
        ("wait a --timeout -1", 2, "must be at least 0, not -1"),
        ("status -o csv", 2, "'csv' is not an output format"),
        ("status -o jsno", 2, 'did you mean "json"?'),
        ("logs a --tial 3", 2, "unexpected argument '--tial'; did you mean \"--tail\"?"),
        ("logs a b", 2, "unexpected argument 'b'"),
        ("events --kind recoverd", 2, 'did you mean "recovered"?'),
        ("events --since soon", 2, "'soon' is not a time: write"),
        ("--coordinator nonsense status", 2, "--coordinator must be HOST:PORT"),
    ],
)
def test_a_line_that_fails(free_socket, monkeypatch, capsys, line, exit_code, told):
    monkeypatch.setenv("DTD_COORDINATOR", str(free_socket))
    assert run(line.split()) == exit_code
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    assert run(["-o", "json", *line.split()]) == exit_code
    if "-o" not in line:
        assert set(json.loads(capsys.readouterr().err)) == {"error", "remedy"}


@pytest.mark.parametrize(
    ("line", "exit_code", "told"),
    [
        ("--version", 0, f"dtd {__version__}\n"),
        ("", 2, "  fetch "),
        ("help logs", 0, "  dtdctl logs -f digits-1\n"),
        ("models", 2, "  models register "),
        ("kill-worker --help", 0, "--signal"),
        ("checkpoints --help", 0, "AVAILABLE: whether connected workers"),
    ],
)
def test_help(line, exit_code, told):
    code, out, err = dtdctl(*line.split())
    assert (code, err) == (exit_code, "")
    assert told in out


def test_the_help_lists_every_command_once():
    listed = [name for names in TOPICS.values() for name in names]
    assert sorted(listed) == sorted({one.name.partition(" ")[0] for one in COMMANDS})


@pytest.mark.parametrize(
    "line", [*EXAMPLES, *(line for command in COMMANDS for line in command.examples)]
)
def test_every_example_is_a_line_that_dtdctl_reads(line):
    _values, words = take_settings(shlex.split(line.partition(" >")[0]))
    commands = {command.name: command for command in COMMANDS}
    name = next(name for n in (2, 1) if (name := " ".join(words[:n])) in commands)
    read_arguments(commands[name], words[len(name.split()) :])


def test_every_command_has_a_function_for_its_arguments():
    for command in COMMANDS:
        module, _, name = command.function.partition(":")
        function = getattr(importlib.import_module(f"dtd.ctl.commands.{module}"), name)
        _settings, *parameters = inspect.signature(function).parameters
        read = {
            one.options.get("dest", max(one.names, key=len).lstrip("-").replace("-", "_"))
            for one in command.arguments
        }
        assert read == set(parameters), command.name


@pytest.mark.parametrize(
    ("line", "asked", "told"),
    [
        ("logs digits-1", m.ReadLogs, []),
        (
            "wait digits-1 -o json",
            m.WaitJob,
            [
                "job digits-1 continues without this command",
                "  follow it:  dtdctl wait digits-1   or   dtdctl status --watch",
                "  stop it:    dtdctl cancel digits-1",
            ],
        ),
    ],
)
def test_ctrl_c_is_quiet(server, line, asked, told):
    server.script = lambda _message: b""
    process = start(*line.split(), address=server.control)
    server.wait_for(asked)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err.splitlines()) == (130, "", told)


def test_watch_is_for_a_terminal(dtdctl):
    exit_code, _out, err = dtdctl("status", "--watch")
    assert exit_code == 2
    assert "dtdctl events --follow" in err


def test_options_after_two_dashes_are_the_scripts_own(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DTD_COORDINATOR", "unix:/nonexistent/control.sock")
    script = tmp_path / "train.py"
    script.write_text("import sys\n")
    assert run(["run", "--workers", "2", "--", "python", str(script), "--lr", "0.1", "--wait"]) == 3
    assert "nothing listens" in capsys.readouterr().err
