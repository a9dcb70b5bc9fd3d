"""Only plain files inside, whatever the archive says."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from dtd.errors import TaskError
from dtd.packages import archive as unpacking
from dtd.packages.archive import pack, unpack, verify


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
    verify(packed.content, packed.digest)
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
        [("a" * 300, b"")],
        [("/".join(["a" * 50] * 12), b"")],
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


@pytest.mark.parametrize("limit", ["MAX_CONTENT_BYTES", "MAX_FILES", "MAX_ARCHIVE_BYTES"])
def test_no_limit_is_passed(limit: str, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(unpacking, limit, 1)
    with pytest.raises(TaskError, match="not created by dtd"):
        unpack(archive(("a", b"1"), ("b", b"2")), tmp_path / "place")


def test_headers_that_announce_headers_have_an_end(tmp_path: Path) -> None:
    header = tarfile.TarInfo("x")
    header.type = tarfile.XHDTYPE
    with pytest.raises(TaskError, match="it is not an archive"):
        unpack(header.tobuf() * 5000 + bytes(1024), tmp_path / "place")


@pytest.mark.parametrize("cut", [1, 100, 512, 600])
def test_a_truncated_archive_is_refused(cut: int, tmp_path: Path) -> None:
    whole = archive(("a", b"x" * 700))
    with pytest.raises(TaskError, match="not created by dtd"):
        unpack(whole[:cut], tmp_path / "place")
