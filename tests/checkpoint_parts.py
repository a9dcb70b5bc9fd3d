"""Small states of random tensors, written as a whole checkpoint or as the parts of ranks."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dtd.checkpoint.format import (
    FORMAT,
    MANIFEST_FILE,
    PART_FORMAT,
    Manifest,
    checkpoint_name,
    encode_manifest,
)
from dtd.checkpoint.tensor_file import HeldTensor, Part, Range, placed
from dtd.checkpoint.writer import RawTensor, write_safetensors
from dtd.strategy.wire_memory import tensor_bytes
from dtd.train.state.tensors import digest_of, dtype_name
from tests.shards import held_shards

DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float16)
GENERATION, STEP = 3, 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A state: all its tensors by name, and how parameters lie in flat buckets."""

    tensors: Mapping[str, Tensor]
    buckets: Sequence[Sequence[int]]


def random_state(seed: int, *, parameters: int = 4, largest: int = 7) -> Written:
    """Parameters in buckets, of any shapes, a buffer, and an optimizer with a step for each."""
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    model: dict[str, Tensor] = {}
    optimizer: dict[str, Tensor] = {}
    for index in range(parameters):
        shape = [draw.randint(0, largest) for _ in range(draw.randint(0, 3))]
        dtype = draw.choice(DTYPES)
        model[f"model.{index}.weight"] = torch.randn(shape, generator=generator).to(dtype)
        model[f"model.{index}.seen"] = torch.tensor(draw.randrange(1000))
        optimizer[f"optimizer.{index}.exp_avg"] = torch.randn(shape, generator=generator)
        optimizer[f"optimizer.{index}.step"] = torch.tensor(float(draw.randrange(100)))
    order = draw.sample(range(parameters), parameters)
    cuts = sorted({0, parameters, *(draw.randrange(parameters) for _ in range(2))})
    buckets = [order[a:b] for a, b in pairwise(cuts)]
    return Written(tensors=model | optimizer, buckets=buckets)


def manifest(state: Written, /, **fields: Any) -> Manifest:
    """The manifest of the whole state, without files; `fields` are put in."""
    about = {"step": STEP, "loss_scale": 1.0}
    whole = Manifest(
        format=FORMAT,
        job="parent",
        job_name="name",
        task="digits",
        generation=GENERATION,
        step=STEP,
        epoch=0,
        offset=STEP,
        digest=digest_of(state.tensors, about).hex(),
        parent="",
        metrics={"loss": 0.5},
        world_size=2,
        files={},
        state=about,
        tensors=tuple(state.tensors),
        local_state={},
    )
    return replace(whole, **fields)


def ranges_of(state: Written, rank: int, world_size: int, mirrors: int) -> dict[int, list[Range]]:
    """A rank's part of each flattened parameter, cut as the ring cuts its bucket."""
    found: dict[int, list[Range]] = {}
    for bucket in state.buckets:
        sizes = [state.tensors[f"model.{index}.weight"].numel() for index in bucket]
        cut = held_shards(rank, world_size, mirrors).ranges(sum(sizes))
        for index, size, first in zip(bucket, sizes, _firsts(sizes), strict=True):
            pieces = [(max(a - first, 0), min(b - first, size)) for a, b in cut]
            found[index] = [(a, b) for a, b in pieces if a < b]
    return found


def _firsts(sizes: Sequence[int]) -> list[int]:
    return [sum(sizes[:number]) for number in range(len(sizes))]


def write_whole(directory: Path, state: Written, **fields: Any) -> Path:
    """Write the checkpoint that one process with the whole state writes."""
    return _write(directory, manifest(state, **fields), state.tensors)


def write_part(
    directory: Path, state: Written, rank: int, *, world_size: int, mirrors: int, **fields: Any
) -> Path:
    """Write a rank's part of the checkpoint; `fields` of the manifest are put in."""
    stored, held = dict(state.tensors), {}
    for index, ranges in ranges_of(state, rank, world_size, mirrors).items():
        for name in (f"model.{index}.weight", f"optimizer.{index}.exp_avg"):
            whole = state.tensors[name]
            pieces = [whole.reshape(-1)[start:stop] for start, stop in ranges]
            stored[name] = torch.cat(pieces) if pieces else whole.reshape(-1)[:0]
            held[name] = HeldTensor(
                dtype=dtype_name(name, whole.dtype),
                shape=tuple(whole.shape),
                ranges=tuple(ranges),
            )
    shards = held_shards(rank, world_size, mirrors)
    part = Part(shards=shards, mirrors=mirrors, tensors=held)
    about = {**manifest(state).state, "optimizer_shards": {"0.exp_avg": "F32"}}
    own = {"format": PART_FORMAT, "world_size": world_size, "part": part, "state": about}
    return _write(directory, manifest(state, **(own | {"digest": "ab" * 16} | fields)), stored)


def _write(directory: Path, unwritten: Manifest, tensors: Mapping[str, Tensor]) -> Path:
    path = directory / checkpoint_name(unwritten.generation, unwritten.step)
    path.mkdir(parents=True)
    files: dict[str, list[RawTensor]] = {"model.safetensors": [], "optimizer.safetensors": []}
    for listed, tensor in tensors.items():
        file, name = placed(listed)
        raw = RawTensor(
            name=name,
            dtype=dtype_name(listed, tensor.dtype),
            shape=tuple(tensor.shape),
            content=(tensor_bytes(tensor.contiguous()),),
        )
        files[file].append(raw)
    written = {name: write_safetensors(path / name, raws, int) for name, raws in files.items()}
    complete = replace(unwritten, files=written)
    (path / MANIFEST_FILE).write_bytes(encode_manifest(complete))
    return path
