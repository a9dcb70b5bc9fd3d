"""Environments of jobs: pip installs what is missing, and replaces nothing."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from dtd.errors import TaskError
from dtd.packages.requirements import MEMBER
from dtd.worker.environment.environments import Environments
from tests.wheels import write_wheel

GIB = 1 << 30
PATIENCE_S = 60.0


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory in which pip finds packages; what a job does to imports is undone."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path / "index"


@pytest.fixture
def package(tmp_path: Path) -> Callable[[str], Path]:
    """Makes a job's package with these requirements."""

    def make(requirements: str) -> Path:
        place = tmp_path / "package"
        place.mkdir(exist_ok=True)
        (place / MEMBER).write_text(requirements)
        return place

    return make


def use(environments: Environments, package: Path) -> None:
    environments.use(package, progress=lambda: None, patience_s=PATIENCE_S)


def names(place: Path) -> set[str]:
    return {one.name for one in place.iterdir()} if place.exists() else set()


def test_what_is_missing_is_installed_once_and_found_by_child_processes(
    index, package, tmp_path
) -> None:
    write_wheel(index, "dtd_alpha", requires=["dtd_beta>=2", "numpy", "torch"])
    write_wheel(index, "dtd_beta", "2.5")
    place = package("dtd_alpha==1.0\nnumpy>=1\n")
    environments = Environments(tmp_path / "made", GIB)
    with pytest.raises(TaskError, match="not installed here yet"):
        environments.made(place)
    use(environments, place)
    for wheel in index.iterdir():
        wheel.unlink()
    use(environments, place)  # needs no index any more
    assert len(names(tmp_path / "made")) == 1
    assert importlib.import_module("dtd_beta").VERSION == "2.5"
    assert environments.made(place) in sys.path
    assert environments.versions == f"dtd-alpha 1.0, numpy {version('numpy')}"
    asked = [sys.executable, "-c", "import dtd_alpha, numpy; print(numpy.__file__)"]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert str(tmp_path) not in done.stdout


def test_nothing_that_the_worker_has_is_replaced(index, package, tmp_path) -> None:
    write_wheel(index, "numpy", "1.0")
    write_wheel(index, "dtd_gamma", requires=["numpy==1.0"])
    with pytest.raises(TaskError) as failure:
        use(Environments(tmp_path / "made", GIB), package("dtd_gamma"))
    assert "a job replaces nothing of it" in failure.value.message
    assert f"(constraint) numpy=={version('numpy')}" in failure.value.message
    assert not names(tmp_path / "made")


def test_a_file_with_another_hash_is_refused(index, package, tmp_path) -> None:
    write_wheel(index, "dtd_delta")
    place = package(f"dtd_delta==1.0 --hash=sha256:{'0' * 64}")
    with pytest.raises(TaskError, match="does not have the hash"):
        use(Environments(tmp_path / "made", GIB), place)
    assert not names(tmp_path / "made")


def test_an_index_that_does_not_answer_is_named(index, package, tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://somebody:secret@127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(TaskError, match="index does not answer") as failure:
        use(Environments(tmp_path / "made", GIB), package("dtd_epsilon"))
    assert "127.0.0.1:9/simple" in failure.value.message
    assert "PIP_INDEX_URL" in failure.value.remedy
    assert "secret" not in failure.value.message


def test_those_used_least_recently_go(index, package, tmp_path) -> None:
    write_wheel(index, "dtd_zeta", code=f"# {'x' * 60_000}\n")
    for number, name in enumerate(("old", "older", "half")):
        made = tmp_path / "made" / name
        made.mkdir(parents=True)
        if name != "half":
            (made / "complete").write_text("100000")
            os.utime(made / "complete", (100 - number, 100 - number))
    use(Environments(tmp_path / "made", 230_000), package("dtd_zeta"))
    assert len(names(tmp_path / "made")) == 2
    assert "old" in names(tmp_path / "made")
    with pytest.raises(TaskError, match=r"more than the .* environments_gib"):
        use(Environments(tmp_path / "other", 10_000), package("dtd_zeta"))


def test_a_worker_may_make_none(package, tmp_path) -> None:
    with pytest.raises(TaskError, match=r"makes no environments.*environments_gib"):
        use(Environments(tmp_path / "made", 0), package("dtd_iota"))


def test_one_that_was_begun_is_made_again(index, package, tmp_path) -> None:
    """As after the loss of power, or a kill; an error in this process ends pip."""
    write_wheel(index, "dtd_kappa")
    place, environments = package("dtd_kappa"), Environments(tmp_path / "made", GIB)
    left: list[Path] = []

    def interrupted() -> None:
        left.extend((tmp_path / "made").iterdir())
        raise InterruptedError

    with pytest.raises(TaskError):
        environments.use(place, progress=interrupted, patience_s=PATIENCE_S)
    assert not names(tmp_path / "made")
    (left[0] / "lib").mkdir(parents=True)
    (left[0] / "lib" / "half").touch()
    use(environments, place)
    assert not (left[0] / "lib" / "half").exists()
    assert (left[0] / "complete").is_file()


def test_an_installation_that_stands_still_is_ended(index, package, tmp_path) -> None:
    """Such as one that builds from a source that waits for something."""
    index.mkdir()
    source = tmp_path / "source"
    source.mkdir()
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (source / "backend.py").write_text("import time; time.sleep(3600)")
    place = package(f"dtd_mu @ file://{source}\n")
    with pytest.raises(TaskError, match="pip has done nothing for 3 s"):
        Environments(tmp_path / "made", GIB).use(place, progress=lambda: None, patience_s=3.0)
