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
        "import sys; from dtd.host.streams import fit_streams; fit_streams()\n"
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
