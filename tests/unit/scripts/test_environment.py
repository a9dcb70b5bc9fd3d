"""The shell scripts' premises: pins that are whole and name no host, and scripts that parse."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
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


def names(requirements):
    return {re.match(r"[A-Za-z0-9._-]+", one)[0].lower() for one in requirements}


def test_every_direct_dependency_is_pinned_and_no_host_is_named():
    text = (ROOT / "constraints.txt").read_text()
    pins = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", pin) for pin in pins)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    direct = names([*project["dependencies"], *project["optional-dependencies"]["dev"]])
    assert direct <= names(pins)
    assert "://" not in text


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


def test_a_build_of_torch_that_cannot_be_asked_for_is_refused(tmp_path):
    done = environment_of(tmp_path, "exit 1", DTD_TORCH="rocm")
    assert done.returncode == 1
    assert 'DTD_TORCH is "rocm", and only "cpu" can be asked for' in done.stderr


# A Python that makes an environment whose interpreter notes what pip is asked for.
NOTING = """
[ "$2" = venv ] || exit 0
mkdir -p "$3/bin"
printf '#!/bin/sh\\necho "$@" >>"%s/asked"\\ncase "$*" in %s) exit 1;; esac\\n' "$3" "$MISSING" \
  >"$3/bin/python"
/bin/chmod +x "$3/bin/python"
"""


@pytest.mark.parametrize("has_one", [True, False])
def test_the_build_without_cuda_is_asked_for_first(tmp_path, has_one):
    missing = "*--constraint\\ constraints.txt\\ uv*" + ("" if has_one else "|*+cpu*")
    path = "/usr/bin:/bin"
    script = tmp_path / "bin"
    script.mkdir()
    (script / "python3").write_text(f"#!/bin/sh\n{NOTING}")
    (script / "python3").chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", f"set -euo pipefail; . {ROOT}/scripts/_env"],
        env={
            "PATH": f"{script}:{path}",
            "DTD_VENV": str(tmp_path / "venv"),
            "DTD_TORCH": "cpu",
            "MISSING": missing,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    asked = (tmp_path / "venv/asked").read_text().splitlines()
    first = next(i for i, line in enumerate(asked) if "+cpu" in line)
    assert re.search(r" torch==[0-9.]+\+cpu torchvision==[0-9.]+\+cpu$", asked[first])
    whole = next(i for i, line in enumerate(asked) if "--editable" in line)
    assert first < whole
    assert ("no build without CUDA" in done.stderr) is not has_one
