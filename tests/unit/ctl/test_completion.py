"""Completion, in a real bash against a scripted coordinator."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from dtd.ctl.completion import SCRIPTS
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


def complete(server, *lines):
    done = subprocess.run(
        ["bash", "-c", IN_BASH],
        input="".join(f"{line}\n" for line in lines),
        env={**os.environ, "PYTHON": sys.executable, "DTD_COORDINATOR": str(server.control)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.splitlines()


def test_names_options_and_commands_are_completed(server, result):
    server.script = lambda message: result(ANSWERS[type(message)])
    expected = {
        "dtdctl lo": "logs",
        "dtdctl models f": "fetch",
        "dtdctl logs ": "digits-1 mnist-2",
        "dtdctl -o json logs --worker h": "host-a-cpu",
        "dtdctl logs digits-1 --t": "--tail",
        "dtdctl events --job=mn": "mnist-2",  # bash has broken the word at "="
        "dtdctl events --kind worker_lo": "worker_lost",
        "dtdctl fetch digits-1@": "200",
        "dtdctl models show digits@b": "best",
        "dtdctl compare digits-1 mn": "mnist-2",
        "dtdctl report digits-1 -o ": "html json md",
        "dtdctl drain host-a-cpu ": "",
        "dtdctl nothing ": "",
    }
    assert dict(zip(expected, complete(server, *expected), strict=True)) == expected


def test_nothing_is_completed_without_a_coordinator(free_socket, monkeypatch):
    class Gone:
        control = free_socket

    assert complete(Gone, "dtdctl logs ", "dtdctl sta") == ["", "status"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_reads_its_function():
    subprocess.run(["zsh", "-n"], input=SCRIPTS["zsh"], text=True, timeout=30, check=True)
