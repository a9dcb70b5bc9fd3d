"""Whatever an archive holds, unpacking stays inside of its directory or says why it does not."""

from __future__ import annotations

import contextlib
import io
import tarfile
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dtd.errors import TaskError
from dtd.packages.archive import pack, unpack
from dtd.packages.source import Source

PARTS = st.sampled_from(["a", "b", "..", ".", "", "c.py", "\x00", "é", "\udce9", "x" * 300])
NAMES = st.lists(PARTS, min_size=1, max_size=5).map("/".join)
KINDS = st.sampled_from(
    [
        *(tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE),
        *(tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE),
    ]
)
MEMBERS = st.lists(st.tuples(NAMES, KINDS, st.binary(max_size=40), NAMES), max_size=6)


def archive(members: list[tuple[str, bytes, bytes, str]]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", errors="surrogateescape") as tar:
        for name, kind, body, target in members:
            member = tarfile.TarInfo(name)
            member.type, member.size, member.linkname = kind, len(body), target
            with contextlib.suppress(UnicodeError, ValueError):
                tar.addfile(member, io.BytesIO(body))
    return made.getvalue()


def everything(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def check_stays_inside(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as made:
        outer = Path(made) / "p" / "q" / "r"
        outer.mkdir(parents=True)
        before = everything(Path(made))
        place = outer / "place"
        with contextlib.suppress(TaskError, OSError):  # OSError: a name too long
            unpack(content, place)
        after = [p for p in everything(Path(made)) if not p.is_relative_to(place)]
        assert after == before
        inside = everything(place) if place.exists() else []
        assert all(path.is_dir() or path.is_file() for path in inside)
        assert not any(path.is_symlink() for path in inside)
        for path in (place, *inside):
            if path.is_dir():
                path.chmod(0o755)


@given(MEMBERS)
def test_no_archive_reaches_outside(members: list[tuple[str, bytes, bytes, str]]) -> None:
    check_stays_inside(archive(members))


@given(MEMBERS, st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), max_size=8))
def test_nor_does_a_damaged_one(members, damage) -> None:
    content = bytearray(archive(members))
    for at, value in damage:
        content[at % len(content)] = value
    check_stays_inside(bytes(content))


@given(st.binary(max_size=2000))
def test_nor_do_bytes_that_are_none(content: bytes) -> None:
    check_stays_inside(content)


TREES = st.dictionaries(
    st.lists(st.sampled_from(["a", "b", "ü", "c c"]), min_size=1, max_size=3).map("/".join),
    st.binary(max_size=200),
    max_size=6,
)


@given(TREES)
def test_every_tree_comes_out_as_it_went_in(tree: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as made:
        root = Path(made) / "shop"
        root.mkdir()
        written = {"__init__.py": b""}
        (root / "__init__.py").touch()
        for name, body in tree.items():
            with contextlib.suppress(FileExistsError, NotADirectoryError, IsADirectoryError):
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_bytes(body)
                written[name] = body
        packed = pack([Source(name="shop", path=root, installed=False)])
        assert packed == pack([Source(name="shop", path=root, installed=False)])
        place = Path(made) / "place"
        unpack(packed.content, place)
        found = {
            str(path.relative_to(place / "shop")): path.read_bytes()
            for path in (place / "shop").rglob("*")
            if path.is_file()
        }
        assert found == written
        for path in (place, *place.rglob("*")):
            if path.is_dir():
                path.chmod(0o755)
