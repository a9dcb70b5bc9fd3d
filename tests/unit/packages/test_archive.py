"""The archive depends on names and contents alone, and holds nothing that it should not."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from dtd.errors import TaskError
from dtd.packages.archive import install, installed, pack, unpack

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


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside.py", "b", "nowhere"])
def test_a_link_elsewhere_is_refused_by_name(make_package, target: str) -> None:
    source = make_package(FILES)
    (source.path.parent / "outside.py").write_text("")
    (source.path / "link.py").symlink_to(target)
    with pytest.raises(TaskError, match=r"link\.py is a link"):
        pack([source])


def archive(*members: tuple[str, bytes | tarfile.TarInfo]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, body in members:
            if isinstance(body, tarfile.TarInfo):
                body.name = name
                tar.addfile(body)
                continue
            member = tarfile.TarInfo(name)
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
    return made.getvalue()


def special(kind: bytes, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo()
    member.type, member.linkname = kind, target
    return member


def test_a_package_comes_out_as_it_went_in_and_read_only(make_package, tmp_path: Path) -> None:
    source = make_package({"__init__.py": "", "b/c.py": "x = 1\n"})
    packed = pack([source])
    place = tmp_path / "place"
    unpack(packed.content, place)
    found = sorted(str(p.relative_to(place)) for p in place.rglob("*") if p.is_file())
    assert found == ["shop/__init__.py", "shop/b/c.py"]
    assert (place / "shop/b/c.py").read_text() == "x = 1\n"
    assert {path.stat().st_mode & 0o222 for path in (place, *place.rglob("*"))} == {0}


@pytest.mark.parametrize(
    "members",
    [
        [("../x.py", b"")],
        [("/tmp/x.py", b"")],
        [("a/../../x.py", b"")],
        [("a//x.py", b"")],
        [("./x.py", b"")],
        [("link", special(tarfile.SYMTYPE, "/etc/passwd"))],
        [("link", special(tarfile.LNKTYPE, "x"))],
        [("pipe", special(tarfile.FIFOTYPE))],
        [("device", special(tarfile.CHRTYPE))],
        [("sparse", special(tarfile.GNUTYPE_SPARSE))],
        [("x", b"1"), ("x", b"2")],
        [("x", b"1"), ("x/y", b"2")],
        [("x/y", b"1"), ("x", b"2")],
    ],
)
def test_what_a_package_must_not_hold_is_refused(members, tmp_path: Path) -> None:
    place = tmp_path / "inner" / "place"
    place.parent.mkdir()
    with pytest.raises(TaskError, match="not created by dtd"):
        unpack(archive(*members), place)
    assert [path for path in tmp_path.rglob("*") if not path.is_relative_to(place)] == [
        place.parent
    ]


def test_damage_leaves_nothing_behind(make_package, tmp_path: Path) -> None:
    packed = pack([make_package({"__init__.py": ""})])
    with pytest.raises(TaskError, match="damaged"):
        install(tmp_path / "packages", packed.digest, packed.content + b"x")
    assert installed(tmp_path / "packages", packed.digest) is None
