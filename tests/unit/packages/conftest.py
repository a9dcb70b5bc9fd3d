"""Packages on a temporary disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from dtd.packages.source import Source


@pytest.fixture
def make_package(tmp_path: Path) -> Callable[[Mapping[str, str]], Source]:
    """Writes the files of a package "shop", by name below it."""

    def make(files: Mapping[str, str]) -> Source:
        path = tmp_path / "code" / "shop"
        path.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(text)
        return Source(name="shop", path=path, installed=False)

    return make
