"""The archive depends on names and contents alone, and holds nothing that it should not."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from dtd.errors import TaskError
from dtd.packages import archive as packing
from dtd.packages.archive import pack, source_digest
from dtd.packages.source import Source

FILES = {"__init__.py": "", "b/c.py": "x = 1\n", "a.txt": "data"}


def names(content: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        return tar.getnames()


def test_the_same_files_are_the_same_bytes_whenever_they_were_written(make_package) -> None:
    source = make_package(FILES)
    first = pack([source])
    for path in source.path.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o755)
    assert pack([source]) == first
    (source.path / "a.txt").write_text("Data")
    assert pack([source]).digest != first.digest


def test_byte_code_and_hidden_files_stay_at_home(make_package) -> None:
    source = make_package(
        {**FILES, "__pycache__/x.pyc": "", "b/y.pyc": "", ".git/config": "", ".env": "secret"}
    )
    archive = pack([source])
    assert names(archive.content) == ["shop/__init__.py", "shop/a.txt", "shop/b/c.py"]
    assert archive.files == 3


def test_a_folder_without_init_gets_one(make_package) -> None:
    """Or a package of that name that a worker has installed would come first."""
    archive = pack([make_package({"task.py": ""})])
    assert names(archive.content) == ["shop/__init__.py", "shop/task.py"]


def test_a_link_within_the_package_is_the_file_that_it_leads_to(make_package) -> None:
    source = make_package(FILES)
    (source.path / "link.py").symlink_to("b/c.py")
    with tarfile.open(fileobj=io.BytesIO(pack([source]).content)) as tar:
        assert tar.getmember("shop/link.py").isreg()


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside.py", "b", "nowhere"])
def test_a_link_elsewhere_is_refused_by_name(make_package, target: str) -> None:
    source = make_package(FILES)
    (source.path.parent / "outside.py").write_text("")
    (source.path / "link.py").symlink_to(target)
    with pytest.raises(TaskError, match=r"link\.py is a link"):
        pack([source])


def test_what_is_too_large_is_refused_with_the_largest_file(make_package, monkeypatch) -> None:
    monkeypatch.setattr(packing, "MAX_CONTENT_BYTES", 10)
    with pytest.raises(TaskError, match=r"largest is shop/big\.bin"):
        pack([make_package({**FILES, "big.bin": "12345678901"})])


def test_the_source_digest_is_of_python_files_alone(make_package, tmp_path: Path) -> None:
    source = make_package(FILES)
    digest = source_digest([source])
    (source.path / "a.txt").write_text("other data")
    assert source_digest([source]) == digest
    (source.path / "b" / "c.py").write_text("x = 2\n")
    assert source_digest([source]) != digest
    nothing = Source(name="shop", path=None, installed=True)
    empty = Source(name="shop", path=tmp_path / "code" / "shop" / "a.txt", installed=True)
    assert source_digest([nothing]) == ""
    assert len(source_digest([empty])) == 64
