"""A worker's unpacked packages: whole or not there, and not too many."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dtd.errors import TaskError
from dtd.packages import archive as shelf
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


@pytest.mark.parametrize(
    "digest", ["", "..", "../" + "a" * 61, "A" * 64, "a" * 63, "a" * 64 + "\n"]
)
def test_a_digest_is_a_digest(digest: str, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="sha256"):
        installed(tmp_path, digest)


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


def test_a_full_disk_is_named(make_package, tmp_path: Path, monkeypatch) -> None:
    packed = pack([make_package({"__init__.py": ""})])

    def full(_content: object, _directory: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shelf, "unpack", full)
    with pytest.raises(TaskError, match="No space left on device"):
        install(tmp_path / "packages", packed.digest, packed.content)
