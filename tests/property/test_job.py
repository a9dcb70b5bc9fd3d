"""Job files made by chance: they parse or raise `JobSpecError`, and nothing else."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtd.errors import JobSpecError
from dtd.job import from_mapping, load_job, parse_job, to_mapping
from dtd.text.toml_source import key_lines

MINIMAL = {
    "job": {"name": "x", "task": "digits", "steps": 3, "global_batch_size": 8},
}
TABLES = ("job", "task", "optimizer", "schedule", "train", "sync", "elastic", "checkpoint", "no")
KEYS = (
    *("name", "task", "epochs", "steps", "seed", "global_batch_size", "lr", "momentum", "gamma"),
    *("precision", "warmup_steps", "chunk_kib", "min_workers", "directory", "keep", "nesterov"),
)
SCALARS = (
    st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=10)
    | st.sampled_from(["digits", "adam", "cosine", "float16", "a:b", "/x"])
)
VALUES = st.recursive(
    SCALARS | st.none() | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
MAPPINGS = st.dictionaries(
    st.sampled_from(TABLES) | st.text(max_size=4) | st.integers(),
    st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=4) | st.integers(), VALUES) | VALUES,
)
IDENTIFIERS = st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True)
ARGUMENTS = st.recursive(
    st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=4,
)
# TOML-looking lines: far likelier to reach the checks than arbitrary text.
LINES = st.one_of(
    st.sampled_from(TABLES).map(lambda name: f"[{name}]"),
    st.tuples(st.sampled_from(KEYS), SCALARS).map(lambda pair: f"{pair[0]} = {_toml(pair[1])}"),
    st.tuples(st.sampled_from(TABLES), st.sampled_from(KEYS), st.lists(SCALARS, max_size=2)).map(
        lambda parts: f"{parts[0]}.{parts[1]} = [\n{', '.join(map(_toml, parts[2]))}\n]"
    ),
)


def _toml(value: object) -> str:
    return json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")


@given(st.text())
def test_any_text_parses_or_is_refused(text: str) -> None:
    with contextlib.suppress(JobSpecError):
        parse_job(text, source="x")


@given(st.lists(LINES, max_size=12).map("\n".join), st.lists(st.text(), max_size=2))
def test_any_toml_parses_or_is_refused_line_by_line(text: str, overrides: list[str]) -> None:
    with contextlib.suppress(JobSpecError):
        parse_job(text, source="x", overrides=overrides)


@given(
    st.lists(
        st.tuples(st.sampled_from(TABLES), st.sampled_from(KEYS), st.text() | SCALARS.map(_toml)),
        max_size=4,
    )
)
def test_any_override_is_applied_or_refused(overrides: list[tuple[str, str, str]]) -> None:
    text = '[job]\nname = "x"\ntask = "digits"\nsteps = 3\nglobal_batch_size = 8\n'
    with contextlib.suppress(JobSpecError):
        parse_job(text, source="x", overrides=[f"{t}.{k}={v}" for t, k, v in overrides])


@given(st.binary())
def test_any_bytes_load_or_are_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    file: Path = tmp_path_factory.getbasetemp() / "job.toml"
    file.write_bytes(data)
    with contextlib.suppress(JobSpecError):
        load_job(file)


@given(MAPPINGS | VALUES)
def test_any_map_is_a_spec_that_can_travel_or_is_refused(mapping: Any) -> None:
    with contextlib.suppress(JobSpecError):
        spec = from_mapping(mapping, source="x")
        assert from_mapping(msgpack.unpackb(msgpack.packb(to_mapping(spec))), source="x") == spec


@given(
    st.dictionaries(IDENTIFIERS, ARGUMENTS, max_size=3),
    st.floats(0, 1e6, exclude_min=True),
    st.integers(0, 2**63 - 1),
)
def test_a_spec_equals_what_comes_back_from_the_wire(
    arguments: dict[str, Any], lr: float, seed: int
) -> None:
    job = MINIMAL["job"] | {"seed": seed}
    mapping = {"job": job, "task": arguments, "optimizer": {"lr": lr}}
    try:
        spec = from_mapping(mapping, source="x")
    except JobSpecError as error:  # chance may nest arguments deeper than is allowed
        assert all("nested more than" in problem for problem in error.problems)  # noqa: PT017
        return
    assert spec.task == arguments
    assert (spec.optimizer.lr, spec.job.seed) == (lr, seed)
    assert from_mapping(msgpack.unpackb(msgpack.packb(to_mapping(spec))), source="x") == spec


@given(st.lists(st.sampled_from(["", "# x", 'a.b = "c"', "[t]", "k = [\n1,\n]"]), max_size=6))
def test_every_line_number_points_at_its_key(statements: list[str]) -> None:
    numbered = [
        line.replace("a.b", f"a{i}.b").replace("t]", f"t{i}]").replace("k =", f"k{i} =")
        for i, line in enumerate(statements)
    ]
    text = "\n".join(numbered)
    lines = text.split("\n")
    for path, number in key_lines(text).items():
        assert path[-1] in lines[number - 1]
