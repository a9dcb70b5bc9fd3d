"""The task's package is found where a person means it, and nothing is imported."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from dtd.packages.archive import source_digest
from dtd.packages.source import find_source, top_level_name, with_imports

EXPLODES = "raise SystemExit('imported')\n"


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("digits", ""),
        ("dtd.tasks.digits:Digits", ""),
        ("shop:Task", "shop"),
        ("shop.deep.er:Task", "shop"),
    ],
)
def test_the_name_is_the_top_level_one_and_empty_when_built_in(reference: str, name: str) -> None:
    assert top_level_name(reference) == name


def test_a_package_is_found_without_being_imported(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text(EXPLODES)
    found = find_source("shop", [tmp_path])
    assert found is not None
    assert (found.path, found.installed) == (tmp_path / "shop", False)
    assert "shop" not in sys.modules


def test_what_an_installer_put_there_is_installed(tmp_path: Path) -> None:
    folder = tmp_path / "site-packages"
    (folder / "shop").mkdir(parents=True)
    (folder / "shop" / "__init__.py").touch()
    found = find_source("shop", [folder])
    assert found is not None
    assert found.installed
    json = find_source("json", sys.path)
    assert json is not None
    assert json.installed


def found(folder: Path, files: Mapping[str, str], module: str = "train") -> list[str]:
    """Names of the modules that belong to a task in a folder of these files."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    source = find_source(module.partition(".")[0], [folder])
    assert source is not None
    return [one.name for one in with_imports(source, module)]


def test_imports_are_followed_from_module_to_module(tmp_path: Path) -> None:
    files = {
        "train.py": "import model\n",
        "model.py": "from blocks.wide import Wide\n",
        "blocks/__init__.py": "",
        "blocks/wide.py": "from . import narrow\nfrom .. import nothing\n",
        "blocks/narrow.py": "import sizes\n",
        "blocks/unused.py": "import unwanted\n",
        "sizes.py": "import train\n",
        "unwanted.py": "",
        "nothing.py": "",
        "alone.py": "",
    }
    assert found(tmp_path, files) == ["train", "blocks", "model", "sizes"]


@pytest.mark.parametrize(
    "text",
    [
        "import torch, beside as other\n",
        "from beside import thing\n",
        "from beside import *\n",
        "try:\n    import beside\nexcept ImportError:\n    beside = None\n",
        "class Task:\n    def build_model(self):\n        import beside\n",
        "import beside.thing\n",
        "# -*- coding: latin-1 -*-\nimport beside  # \xe9\n",
    ],
)
def test_statements_count_wherever_they_stand(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").write_bytes(text.encode("latin-1"))
    assert found(tmp_path, {"beside.py": ""}) == ["train", "beside"]


def test_a_package_reaches_beside_its_own_folder_from_the_tasks_module(tmp_path: Path) -> None:
    files = {
        "shop/__init__.py": "import first\n",
        "shop/deep/__init__.py": "",
        "shop/deep/task.py": "from ..sums import total\nfrom ... import beyond\n",
        "shop/sums.py": "import second\n",
        "shop/tests.py": "import third\n",
        **{f"{name}.py": "" for name in ("first", "second", "third", "beyond")},
    }
    assert found(tmp_path, files, "shop.deep.task") == ["shop", "first", "second"]


def test_a_folder_without_init_counts_where_a_module_of_it_is_imported(tmp_path: Path) -> None:
    text = "import nets.small\nfrom parts import one\nfrom datasets import load\nimport runs\n"
    folders = {"nets/small.py": "", "parts/one.py": "", "datasets/a.txt": "", "runs/b.txt": ""}
    assert found(tmp_path, {"train.py": text, **folders}) == ["train", "nets", "parts"]


def test_what_python_has_in_itself_is_never_taken_from_there(tmp_path: Path) -> None:
    """As by `python train.py`; and dtd is the workers' own, also where its checkout lies."""
    files = {"train.py": "import os, time, dtd.errors\n", "os.py": "", "time.py": ""}
    assert found(tmp_path, {**files, "dtd/__init__.py": "", "dtd/errors.py": ""}) == ["train"]


def test_nothing_is_executed(tmp_path: Path) -> None:
    files = {"train.py": "import explodes\n", "explodes.py": "raise SystemExit\n"}
    assert found(tmp_path, files) == ["train", "explodes"]
    assert "explodes" not in sys.modules


def test_the_digest_is_of_all_of_them(tmp_path: Path) -> None:
    found(tmp_path, {"train.py": "import model\n", "model.py": "x = 1\n", "other.py": ""})
    source = find_source("train", [tmp_path])
    assert source is not None
    digest = source_digest(with_imports(source, "train"))
    (tmp_path / "other.py").write_text("y = 1\n")
    assert source_digest(with_imports(source, "train")) == digest
    (tmp_path / "model.py").write_text("x = 2\n")
    assert source_digest(with_imports(source, "train")) != digest
