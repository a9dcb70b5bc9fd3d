"""The task's package is found where a person means it, and nothing is imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dtd.packages.source import find_source, top_level_name

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
