"""The shell scripts' premises: pins that are whole and name no host, and scripts that parse."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = (
    "scripts/quickstart",
    "scripts/test",
    "scripts/fix",
    "scripts/build-wheel",
    ".ci/run",
)


@pytest.mark.parametrize("script", [*SCRIPTS, "scripts/_env"])
def test_a_script_parses_and_can_be_run(script):
    subprocess.run(["bash", "-n", ROOT / script], check=True)
    assert os.access(ROOT / script, os.X_OK) is (script in SCRIPTS)


def environment_of(tmp_path, python, **settings):
    """Runs the script's environment part with this program as python3 and an empty venv place."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "python3").write_text(f"#!/bin/sh\n{python}\n")
    (tools / "python3").chmod(0o755)
    for name in ("bash", "dirname", "cat", "sha256sum", "cut"):
        (tools / name).symlink_to(
            next(p for p in ("/usr/bin", "/bin") if Path(p, name).exists()) + f"/{name}"
        )
    return subprocess.run(
        ["bash", "-c", f"set -euo pipefail; . {ROOT}/scripts/_env"],
        env={"PATH": str(tools), "DTD_VENV": str(tmp_path / "venv"), **settings},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("python", "error", "remedy"),
    [
        ('case "$2" in *ensurepip*) exit 1;; esac', "venv module is missing", "python3-venv"),
        ('[ "$1" = -V ] && echo Python 3.9.2; exit 1', "python3 is Python 3.9.2", "a newer Python"),
    ],
)
def test_a_python_that_does_not_do_is_explained(tmp_path, python, error, remedy):
    done = environment_of(tmp_path, python)
    assert done.returncode == 1
    said = done.stderr.splitlines()
    assert error in said[-2]
    assert remedy in said[-1]
    assert not (tmp_path / "venv").exists()


# A Python that makes an environment whose interpreter notes what pip is asked for.
