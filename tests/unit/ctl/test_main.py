"""The way in, as a process: what it loads, how it ends, what it leaves on which stream."""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dtd import __version__
from dtd.ctl.command_line import read_arguments
from dtd.ctl.commands import COMMANDS
from dtd.ctl.main import completions
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


def test_no_command_loads_torch():
    program = (
        "import sys, dtd.ctl.commands, dtd.job; assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


@pytest.mark.parametrize("command", ["status", "jobs", "events --follow", "wait a", "drain w"])
def test_no_coordinator_exits_3_with_a_remedy(command, free_socket):
    exit_code, out, err = dtdctl(*command.split(), address=free_socket)
    assert (exit_code, out) == (3, "")
    assert err.startswith(
        f"error: nothing listens at the coordinator's address {free_socket}\ntry:"
    )
    assert "Traceback" not in err


def test_errors_as_json(free_socket):
    exit_code, out, err = dtdctl("-o", "json", "jobs", address=free_socket)
    assert (exit_code, out) == (3, "")
    assert set(json.loads(err)) == {"error", "remedy"}


@pytest.mark.parametrize(
    "line",
    [
        "bogus",
        "models bogus",
        "wait",
        "kill-worker w --signal HUP",
        "wait a --timeout -1",
        "status -o xml",
    ],
)
def test_usage_exits_2(line):
    exit_code, out, err = dtdctl(*line.split())
    assert (exit_code, out) == (2, "")
    assert "Traceback" not in err


def test_a_wrong_address_exits_2():
    exit_code, _out, err = dtdctl("status", address="nonsense")
    assert exit_code == 2
    assert err.startswith("error: DTD_COORDINATOR must be HOST:PORT")


def test_version():
    assert dtdctl("--version") == (0, f"dtd {__version__}\n", "")


def test_help_and_completion():
    exit_code, out, err = dtdctl("kill-worker", "--help")
    assert (exit_code, err) == (0, "")
    assert "--signal" in out
    words = {"COMP_WORDS": "dtdctl ch", "COMP_CWORD": "1", "_DTDCTL_COMPLETE": "complete_bash"}
    exit_code, out, err = dtdctl(**words)
    assert (exit_code, out.split(), err) == (0, ["checkpoints"], "")


def test_completion_of_commands_of_a_group_and_of_options():
    assert completions(["dtdctl", "models", "f"], 2) == ["fetch"]
    assert completions(["dtdctl", "mod"], 1) == ["models"]
    assert completions(["dtdctl", "fetch", "a-1", "--"], 3) == ["--best", "--help", "--mode"]


def test_every_command_has_a_function_for_its_arguments():
    for command in COMMANDS:
        module, _, name = command.function.partition(":")
        function = getattr(importlib.import_module(f"dtd.ctl.{module}"), name)
        _settings, *parameters = inspect.signature(function).parameters
        read = {
            one.options.get("dest", one.names[0].lstrip("-").replace("-", "_"))
            for one in command.arguments
        }
        assert read == set(parameters), command.name


@pytest.mark.parametrize("line", [[], ["models"]])
def test_a_line_without_a_command_prints_the_commands(line):
    exit_code, out, _err = dtdctl(*line)
    assert exit_code == 2
    assert "fetch" in out


def test_optional_arguments_may_follow_options():
    fetch = next(command for command in COMMANDS if command.name == "fetch")
    values = read_arguments(fetch, ["a-1", "--best", "loss", "there"])
    assert (values["text"], values["best_metric"]) == ("a-1", "loss")
    assert values["directory"] == Path("there")


def test_the_help_of_checkpoints_explains_its_columns():
    _exit_code, out, _err = dtdctl("checkpoints", "--help")
    assert "usage: dtdctl checkpoints [-h] [JOB]\n" in out
    for column in ("THERE", "VERIFIED", "BRANCH"):
        assert f"{column}: " in out
    words = " ".join(out.split())
    assert "`dtdctl submit JOB.toml --resume-from JOB@STEP`; fetch its weights" in words


def test_ctrl_c_is_quiet(server):
    server.script = lambda _message: b""
    process = start("logs", "digits-1", address=server.control)
    server.wait_for(m.ReadLogs)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "")


@pytest.mark.parametrize("form", ["table", "json"])
def test_ctrl_c_of_a_wait_says_that_the_job_goes_on(server, form):
    server.script = lambda _message: b""
    process = start("wait", "digits-1", "-o", form, address=server.control)
    server.wait_for(m.WaitJob)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert "job digits-1 continues" in err
    assert "dtdctl wait digits-1" in err
    assert "dtdctl cancel digits-1" in err
    assert "Traceback" not in err


def test_ctrl_c_of_submit_and_wait_says_so_too(server, result, tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(
        'job = {name = "a", task = "digits", steps = 3, global_batch_size = 8}', encoding="utf-8"
    )
    server.script = lambda message: (
        result({"job": "a-1"}) if isinstance(message, m.SubmitJob) else b""
    )
    process = start("submit", str(path), "--wait", address=server.control)
    server.wait_for(m.WaitJob)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[:2] == [
        "job a-1 is submitted",
        "job a-1 continues without this command",
    ]


def test_a_reader_that_leaves_is_told_no_traceback(server, result):
    line = {"seq": 1, "rank": 0, "worker": "w", "text": "x" * 1000, "time_s": 1.0}

    def script(message):
        return result({"lines": [line] * 500, "next": message.after + 1})

    server.script = script
    process = start("logs", "digits-1", address=server.control)
    process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert (process.wait(timeout=30), err) == (1, "")


def test_watch_prints_each_change_when_nobody_looks(server, result, status):
    epochs = itertools.count(3)

    def script(message):
        if not isinstance(message, m.GetStatus):
            return result({"events": [], "series": [], "next": 0})
        return result({**status, "job": {**status["job"], "epoch": next(epochs)}})

    server.script = script
    process = start("status", "--watch", "-o", "json", address=server.control)
    lines = [json.loads(process.stdout.readline()) for _ in range(2)]
    process.send_signal(signal.SIGINT)
    _out, err = process.communicate(timeout=30)
    assert [line["job"]["epoch"] for line in lines] == [3, 4]
    assert (process.returncode, err) == (0, "")
