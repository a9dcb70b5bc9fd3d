"""Files of tensors and parts: bounded before anything is computed, refused if contradictory."""

from __future__ import annotations

import copy
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dtd.checkpoint.choice import fewest, missing
from dtd.checkpoint.tensor_file import HeldTensor, Part, TensorFile
from dtd.engine.shards import NOTHING, WHOLE, ShardSet
from dtd.errors import CheckpointError
from tests.shards import held_shards


def written(path: Path, header: bytes, content: bytes = b"") -> Path:
    path.write_bytes(len(header).to_bytes(8, "little") + header + content)
    return path


def of(**entry: Any) -> bytes:
    whole = {"dtype": "U8", "shape": [2], "data_offsets": [0, 2], **entry}
    return json.dumps({"w": whole}).encode()


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


HALF = Part(
    shards=held_shards(0, 2, 0),
    mirrors=0,
    tensors={
        "model.w": HeldTensor(dtype="F32", shape=(2, 3), ranges=((3, 6),)),
        "model.b": HeldTensor(dtype="BF16", shape=(4,), ranges=((2, 3), (3, 4))),
        "model.none": HeldTensor(dtype="F32", shape=(0, 3), ranges=()),
    },
)


def test_a_part_is_read_back() -> None:
    assert Part.from_mapping(HALF.to_mapping()) == HALF
    assert HALF.tensors["model.b"].stored_as("b").shape == (2,)


def put(*path: Any, value: Any) -> Any:
    def change(content: dict[str, Any]) -> None:
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (put("shards", value=[1, 0, 1, 1]), "a set of shards is described by 1/0"),
        (put("shards", value=[0, 1, True, 1]), "true is no size"),
        (put("mirrors", value=-1), "-1 is no size"),
        (put("tensors", "model.w", "dtype", value="F8"), '"model.w" is no description'),
        (put("tensors", "model.w", "shape", value=[2, -3]), "-3 is no size"),
        (put("tensors", "model.w", "shape", value=6), "6 is no shape"),
        (
            put("tensors", "model.w", "ranges", value=[[3, 7]]),
            '"model.w": its ranges do not ascend',
        ),
        (
            put("tensors", "model.w", "ranges", value=[[3, 5], [4, 6]]),
            '"model.w": its ranges do not ascend',
        ),
        (
            put("tensors", "model.w", "ranges", value=[[3, 3]]),
            '"model.w": its ranges do not ascend',
        ),
        (put("tensors", "model.w", "ranges", value=[[3]]), "not enough values"),
        (put("tensors", value=[]), "has no attribute 'items'"),
    ],
)
def test_a_part_that_contradicts_itself_is_refused(change: Any, why: str) -> None:
    content = copy.deepcopy(HALF.to_mapping())
    change(content)
    with pytest.raises(CheckpointError, match=why):
        Part.from_mapping(content)
    with pytest.raises(CheckpointError, match="broken"):
        Part.from_mapping([content])


def test_as_few_parts_as_possible_are_taken() -> None:
    ring = [held_shards(rank, 6, 1) for rank in range(6)]
    assert fewest(ring) == [0, 2, 4]
    assert fewest([held_shards(0, 2, 0), WHOLE]) == [1]
    assert fewest(ring[:3]) == [0, 2]
    assert fewest([]) == []
    assert missing(ring[:3]) == ShardSet.of([(Fraction(4, 6), Fraction(1))])
    assert missing([WHOLE]) == NOTHING
