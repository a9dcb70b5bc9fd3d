"""Files of tensors that others have written: bounded before anything is computed from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dtd.checkpoint.tensor_file import TensorFile, checked_shape
from dtd.errors import CheckpointError


def written(path: Path, header: bytes, content: bytes = b"") -> Path:
    path.write_bytes(len(header).to_bytes(8, "little") + header + content)
    return path


def of(**entry: Any) -> bytes:
    whole = {"dtype": "U8", "shape": [2], "data_offsets": [0, 2], **entry}
    return json.dumps({"w": whole}).encode()


def test_a_file_is_read(tmp_path: Path) -> None:
    with TensorFile(written(tmp_path / "file", of(), b"ab")) as file:
        assert file.read("w", 1, 2) == b"b"


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (of(shape=[2**62] * 300_000), "a shape has 300000 dimensions, more than 64"),
        (of(shape=[10**4000]), "an integer beyond 64 bits is no size"),
        (of(shape=[2**63]), "an integer beyond 64 bits is no size"),
        (of(shape=[2**62] * 64), "lies from byte"),
        (of(shape={"deep": [1]}), "a table is no shape"),
        (of(dtype="x" * 10**6), 'element type "x+[.][.][.]$'),
        (of(shape=["x" * 10**6]), '"x+[.][.][.] is no size'),
        (b'{"w": []}', "is not a file of tensors"),
        (of(shape=[3]), "lies from byte 0 to 2"),
    ],
)
def test_what_is_no_file_of_tensors_is_named_in_a_line(
    tmp_path: Path, header: bytes, said: str
) -> None:
    with pytest.raises(CheckpointError, match=said) as caught:
        TensorFile(written(tmp_path / "file", header, b"ab"))
    assert len(caught.value.message) < 500 + len(str(tmp_path))


def test_a_header_is_bounded_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.write((17 << 20).to_bytes(8, "little"))
        file.truncate(18 << 20)
    with pytest.raises(CheckpointError, match="its header would have 17825792 bytes"):
        TensorFile(path)


def test_a_shape_may_have_as_many_dimensions_as_torch_computes_with() -> None:
    assert checked_shape([1] * 64) == (1,) * 64
    with pytest.raises(ValueError, match="65 dimensions"):
        checked_shape([1] * 65)
