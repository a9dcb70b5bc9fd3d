"""Characters that a terminal lacks are spelt; a program's streams outlive replaced descriptors."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PATIENCE_S = 60.0
NOT_UNICODE = {
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "POSIX": {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
}


def run(*command, **environment):
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        check=False,
        env=os.environ | environment,
        timeout=PATIENCE_S,
    )


@pytest.mark.parametrize("where", NOT_UNICODE)
def test_what_a_stream_lacks_is_spelt(where):
    text = "▁█░… é ✓ 😀"
    done = run(
        "-c",
        "import sys; from dtd.streams import fit_streams; fit_streams()\n"
        f"print({text!a}); print({text!a}, file=sys.stderr)",
        **NOT_UNICODE[where],
    )
    letter = b"\xe9" if where == "latin-1" else b"\\xe9"
    line = b".#-~ " + letter + b" \\u2713 \\U0001f600\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, line, line)


@pytest.mark.parametrize(
    "module",
    ["dtd.ctl.main", "dtd.worker", "dtd.coordinator.main", "scripts.launch_local"],
)
def test_every_program_says_there_how_it_is_used(module):
    done = run("-m", module, "--help", **NOT_UNICODE["ascii"])
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"sage: " in done.stdout


def test_the_own_streams_outlive_their_descriptors():
    program = (
        "import os, sys; from dtd.streams import fit_streams, hand_over_streams, own_streams\n"
        "fit_streams()\n"
        "out, error = own_streams()\n"
        "os.write(1, b'a library\\n')\n"
        "os.dup2(os.open(os.devnull, os.O_WRONLY), 1); os.dup2(1, 2)\n"
        "print('a job'); print('a job', file=sys.stderr)\n"
        "print('log', '\\u2713', file=out); print('last words', file=error)\n"
        "sys.stdout.flush()\n"
        "hand_over_streams(out, error)\n"
        "os.execv('/bin/sh', ['sh', '-c', 'echo next; echo its error >&2'])\n"
    )
    done = run("-c", program, PYTHONIOENCODING="ascii")
    assert done.stdout == b"log \\u2713\nnext\n"
    assert done.stderr == b"a library\nlast words\nits error\n"
