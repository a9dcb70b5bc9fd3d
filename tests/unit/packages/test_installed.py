"""A worker's unpacked packages: whole or not there, and not too many."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dtd.errors import TaskError
from dtd.packages.archive import install, installed, pack
from dtd.packages.limits import MAX_KEPT


def test_what_is_installed_is_found_again(make_package, tmp_path: Path) -> None:
    packed = pack([make_package({"__init__.py": "x = 1\n"})])
    directory = tmp_path / "packages"
    assert installed(directory, packed.digest) is None
    place = install(directory, packed.digest, packed.content)
    assert installed(directory, packed.digest) == place == directory / packed.digest
    assert (place / "shop/__init__.py").read_text() == "x = 1\n"


def test_damage_leaves_nothing_behind(make_package, tmp_path: Path) -> None:
    packed = pack([make_package({"__init__.py": ""})])
    with pytest.raises(TaskError, match="damaged"):
        install(tmp_path / "packages", packed.digest, packed.content + b"x")
    assert installed(tmp_path / "packages", packed.digest) is None


def test_the_newest_are_kept_and_leftovers_are_not(make_package, tmp_path: Path) -> None:
    directory = tmp_path / "packages"
    digests = []
    for number in range(MAX_KEPT + 2):
        packed = pack([make_package({"__init__.py": f"x = {number}\n"})])
        digests.append(packed.digest)
        place = install(directory, packed.digest, packed.content)
        os.utime(place, (number, number))
        if number == MAX_KEPT - 1:  # the oldest is used again
            assert installed(directory, digests[0])
            (directory / ".leftover" / "inner").mkdir(parents=True)
            (directory / ".leftover" / "inner").chmod(0o555)
    kept = {path.name for path in directory.iterdir()}
    assert kept == {digests[0], *digests[3:]}
