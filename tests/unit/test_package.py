"""The wheel: what is in it, and that it can install its own services."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("dtd", "systemd", "docs", "pyproject.toml", "setup.py", "README.md", "LICENSE")
PATIENCE_S = 100


def pip(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "pip", *arguments, "--no-deps", "--no-index", "--quiet"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of a copy of this checkout: nothing that was built before gets into it."""
    pytest.importorskip("setuptools", reason="setuptools is not installed")
    directory = tmp_path_factory.mktemp("wheel")
    copy = directory / "copy"
    copy.mkdir()
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, copy / name, ignore=ignore)
        else:
            shutil.copy(source, copy / name)
    pip("wheel", "--no-build-isolation", "--wheel-dir", str(directory), str(copy))
    (made,) = directory.glob("*.whl")
    return made


def test_units_and_examples_are_in_the_wheel(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder, inside in (("systemd", "units"), ("docs/examples", "examples")):
        files = {path for path in (ROOT / folder).rglob("*") if path.is_file()}
        kept = {path for path in files if "__pycache__" not in path.parts}
        assert {f"dtd/{inside}/{path.relative_to(ROOT / folder)}" for path in kept} <= names
    assert not [name for name in names if name.startswith(("systemd/", "docs/", "tests/"))]


def test_what_was_installed_installs_its_services(wheel, tmp_path):
    pip("install", "--target", str(tmp_path / "site"), str(wheel))
    script = tmp_path / "site/bin/dtdctl"
    done = subprocess.run(
        [sys.executable, str(script), "install", "--dry-run", "--prefix", str(tmp_path / "root")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    unit = tmp_path / "root/usr/local/lib/systemd/system/dtd-worker@.service"
    assert f"would write {unit}" in done.stdout.splitlines()
    assert f"dtdctl submit {tmp_path}/site/dtd/examples/digits.toml" in done.stderr
    assert not (tmp_path / "root").exists()
