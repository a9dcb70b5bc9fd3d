"""Completion against a scripted coordinator, and what a real bash makes of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from dtd.ctl.command_table import COMMANDS
from dtd.ctl.completion import SCRIPTS, completions
from dtd.wire import messages as m

ANSWERS = {
    m.ListJobs: {"jobs": [{"id": "digits-1"}, {"id": "mnist-2"}]},
    m.GetStatus: {"workers": [{"name": "host-a-cpu"}]},
    m.ListModels: {"models": [{"name": "digits", "number": 3, "aliases": ["best"]}]},
    m.ListCheckpoints: {"checkpoints": [{"job": "digits-1", "step": 200}]},
}
IN_BASH = """
dtdctl() { "$PYTHON" -m dtd.ctl.main "$@"; }
eval "$(dtdctl --show-completion bash)"
while IFS= read -r COMP_LINE; do
    COMP_POINT=${#COMP_LINE}; COMPREPLY=(); _dtdctl dtdctl; echo "${COMPREPLY[*]}"
done
"""


def complete(line):
    commands = {one.name: one for one in COMMANDS}
    return " ".join(completions(line, commands, {"models": ["fetch", "show"]}))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("dtdctl lo", "logs"),
        ("dtdctl models f", "fetch"),
        ("dtdctl logs ", "digits-1 mnist-2"),
        ("dtdctl -o json logs --worker h", "host-a-cpu"),
        ("dtdctl logs digits-1 --t", "--tail"),
        ("dtdctl events --job=mn", "--job=mnist-2"),
        ("dtdctl events --kind worker_lo", "worker_lost"),
        ("dtdctl fetch digits-1@", "digits-1@200"),
        ("dtdctl models show digits@b", "digits@best"),
        ("dtdctl compare digits-1 mn", "mnist-2"),
        ("dtdctl report digits-1 -o ", "html json md"),
        ("dtdctl drain host-a-cpu ", ""),
        ("dtdctl nothing ", ""),
    ],
)
def test_names_options_and_commands_are_completed(server, result, monkeypatch, line, words):
    monkeypatch.setenv("DTD_COORDINATOR", str(server.control))
    monkeypatch.setattr("dtd.ctl.completion._PATIENCE_S", 60.0)
    server.script = lambda message: result(ANSWERS[type(message)])
    assert complete(line) == words


def test_no_name_is_known_without_a_coordinator(free_socket, monkeypatch):
    monkeypatch.setenv("DTD_COORDINATOR", str(free_socket))
    assert complete("dtdctl logs ") == ""


def test_bash_gets_what_follows_its_own_break_of_a_word():
    done = subprocess.run(
        ["bash", "-c", IN_BASH],
        input="dtdctl sta\ndtdctl events --kind=worker_lo\n",
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["status", "worker_lost"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_reads_its_function():
    subprocess.run(["zsh", "-n"], input=SCRIPTS["zsh"], text=True, check=True)
