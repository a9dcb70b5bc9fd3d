"""Manifests: what is data, what a received manifest may say, and where two differ."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from dtd.datasets.manifest import (
    CHUNK_BYTES,
    MAX_BYTES,
    Manifest,
    Piece,
    first_difference,
    look,
    parse,
    scan,
)
from dtd.errors import TaskError


def scanned(path: Path) -> Manifest:
    root, single, found = look(path)
    return scan(root, single, found, lambda: None)


def written(place: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    return place


def test_chunks_run_through_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    content = {"b/large": b"x" * (CHUNK_BYTES + 5), "a": b"12", "c": b"", "b.txt": b"345"}
    manifest = scanned(written(tmp_path, content))
    assert [path for path, _ in manifest.files] == ["a", "b.txt", "b/large", "c"]
    row = b"12345" + content["b/large"]
    assert manifest.chunks == (
        hashlib.sha256(row[:CHUNK_BYTES]).hexdigest(),
        hashlib.sha256(row[CHUNK_BYTES:]).hexdigest(),
    )
    assert [*manifest.pieces(1, 6)] == [
        Piece("a", 1, 1),
        Piece("b.txt", 0, 3),
        Piece("b/large", 0, 2),
    ]
    assert manifest.chunk_bytes(1) == 10
    assert parse(manifest.encoded) == manifest


def test_a_file_and_a_directory_with_it_are_different_data(tmp_path: Path) -> None:
    written(tmp_path / "d", {"f": b"content"})
    directory, file = scanned(tmp_path / "d"), scanned(tmp_path / "d" / "f")
    assert directory.files == file.files
    assert directory.digest != file.digest
    assert first_difference(directory, file) == "whether it is a directory or a file"


def test_where_two_differ_is_named(tmp_path: Path) -> None:
    one = scanned(written(tmp_path / "1", {"a": b"12", "b": b"3", "z": b"x" * CHUNK_BYTES}))
    changed = scanned(written(tmp_path / "2", {"a": b"12", "b": b"4", "z": b"x" * CHUNK_BYTES}))
    longer = scanned(written(tmp_path / "3", {"a": b"12", "b": b"34"}))
    fewer = scanned(written(tmp_path / "4", {"a": b"12", "b": b"3"}))
    assert first_difference(one, changed) == "a, or a file up to z"
    assert first_difference(one, longer) == "b"
    assert first_difference(one, fewer) == "its number of files, 3 instead of 2"


def test_links_within_are_files_and_links_out_are_refused(tmp_path: Path) -> None:
    place = written(tmp_path / "d", {"real": b"1"})
    (place / "link").symlink_to("real")
    assert scanned(place).files == (("link", 1), ("real", 1))
    written(tmp_path, {"secret": b"2"})
    (place / "out").symlink_to(tmp_path / "secret")
    with pytest.raises(TaskError, match=f"{place}/out is a link that leads out of {place}"):
        look(place)


@pytest.mark.parametrize("kind", ["pipe", "link to a directory", "name"])
def test_what_is_no_regular_file_is_refused(tmp_path: Path, kind: str) -> None:
    written(tmp_path, {"d/f": b"1"})
    if kind == "pipe":
        os.mkfifo(tmp_path / "pipe")
    elif kind == "name":
        (tmp_path / os.fsdecode(b"\xff")).touch()
    else:
        (tmp_path / "l").symlink_to("d")
    with pytest.raises(TaskError):
        look(tmp_path)


def test_links_in_a_circle_are_an_error_of_the_disk(tmp_path: Path) -> None:
    (tmp_path / "l").symlink_to("l")
    for path in (tmp_path, tmp_path / "l"):
        with pytest.raises(OSError, match="Too many levels of symbolic links"):
            look(path)


def test_too_many_bytes_are_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "f").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    for path in (tmp_path, tmp_path / "f"):
        with pytest.raises(TaskError, match=f"{path} has {MAX_BYTES + 1} bytes, more than"):
            look(path)


def test_a_file_that_shrinks_while_it_is_read_is_refused(tmp_path: Path) -> None:
    written(tmp_path, {"f": b"12345"})
    root, single, found = look(tmp_path)
    (tmp_path / "f").write_bytes(b"1")
    with pytest.raises(TaskError, match="has become shorter"):
        scan(root, single, found, lambda: None)


@pytest.mark.parametrize(
    "files",
    [
        [["../f", 1]],
        [["/f", 1]],
        [["a//f", 1]],
        [["a/./f", 1]],
        [["", 1]],
        [["a\0b", 1]],
        [["\ud800", 1]],
        [["a", -1]],
        [["a", True]],
        [["a"]],
    ],
)
def test_a_received_manifest_leads_nowhere_else(files: list[object]) -> None:
    content = {"single": False, "files": files, "chunks": ["0" * 64]}
    with pytest.raises(TaskError, match="not a manifest"):
        parse(json.dumps(content, separators=(",", ":")).encode())
