"""Imports look in the shipped package first, and workers say which code they have found."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dtd.errors import TaskError
from dtd.worker.environment.packages import look_first_in, task_digest


@pytest.fixture(autouse=True)
def path_of_its_own(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path / "installed"), *sys.path])
    monkeypatch.chdir(tmp_path)


def write(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "shop_task.py").write_text(text)
    return folder


def test_a_module_that_the_worker_has_imported_from_elsewhere_is_refused(tmp_path: Path) -> None:
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    (shipped / "structlog.py").touch()
    with pytest.raises(TaskError, match=r"brings a module structlog .*structlog\.py.*rename"):
        look_first_in(shipped)


def test_what_a_task_imports_from_its_folder_is_in_its_digest(tmp_path: Path) -> None:
    shipped = write(tmp_path / "shipped", "import shop_model")
    without = task_digest("shop_task:Task", shipped)
    (shipped / "shop_model.py").write_text("x = 1")
    assert task_digest("shop_task:Task", shipped) != without


def test_other_code_has_another_digest_wherever_it_lies(tmp_path: Path) -> None:
    shipped = write(tmp_path / "shipped", "x = 1")
    write(tmp_path / "installed", "x = 1")
    known = task_digest("shop_task:Task", shipped)
    assert known == task_digest("shop_task:Task", None) != ""
    write(tmp_path / "installed", "x = 2")
    assert task_digest("shop_task:Task", None) != known
