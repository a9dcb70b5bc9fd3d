"""The task's package is found where a person means it, and nothing is imported."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from dtd.packages.source import find_source, imports_dtd, top_level_name, with_imports

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
    ("text", "joins"),
    [
        ("import dtd\n", True),
        ("def f():\n    from dtd import join\n", True),
        ("import os\n", False),
    ],
)
def test_a_script_joins_if_what_is_shipped_imports_dtd(
    tmp_path: Path, text: str, joins: bool
) -> None:
    found(tmp_path, {"train.py": "import model\n", "model.py": text, "other.py": "import dtd\n"})
    source = find_source("train", [tmp_path])
    assert source is not None
    assert imports_dtd(with_imports(source, "train")) is joins


def test_nothing_is_executed(tmp_path: Path) -> None:
    files = {"train.py": "import explodes\n", "explodes.py": "raise SystemExit\n"}
    assert found(tmp_path, files) == ["train", "explodes"]
    assert "explodes" not in sys.modules
