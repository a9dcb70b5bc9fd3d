"""A state on its way between workers."""

from __future__ import annotations

import json

import pytest
import torch

from dtd.engine.step_protocol import StateKey
from dtd.errors import CheckpointError
from dtd.train.state.load import IncomingImage, export_image
from dtd.train.state.tensors import state_digest


def receive(image, limit_bytes: int = 1 << 20) -> IncomingImage:
    incoming = IncomingImage(image.manifest, limit_bytes=limit_bytes)
    for memory, blob in zip(incoming.blobs(), image.blobs, strict=True):
        memory[:] = blob
    return incoming


def test_an_image_is_live_memory(make_replica) -> None:
    own = make_replica()
    image = export_image(own, key=StateKey(4, 2))
    own.model.embed.weight.data.zero_()
    assert image.blobs[0].tobytes() == bytes(36)


def test_an_image_goes_over_whole(make_replica) -> None:
    source, target = make_replica(), make_replica(updates=0)
    incoming = receive(export_image(source, key=StateKey(4, 2)))
    incoming.apply(target)
    assert incoming.key == (4, 2)
    assert state_digest(target) == state_digest(source)
    target.model(torch.ones(2, 3)).sum().backward()
    target.optimizer.step()


def test_a_damaged_image_is_refused_and_changes_nothing(make_replica) -> None:
    target = make_replica(updates=0)
    before = state_digest(target)
    incoming = receive(export_image(make_replica(), key=StateKey(4, 2)))
    incoming.blobs()[1][0] ^= 1
    with pytest.raises(CheckpointError, match="does not match its digest"):
        incoming.check()
    assert state_digest(target) == before


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"[]",
        b'{"generation": 1}',
        b"\xff",
        b'{"generation": 1, "state": {"step": 0}, "tensors": []}',
        b'{"generation": Infinity, "state": {"step": 0}, "tensors": [], "digest": ""}',
        b"[" * 100_000,
        *(
            b'{"generation": 1, "state": {"step": 0}, "tensors": [["a", "F32", %b]], "digest": ""}'
            % json.dumps(shape).encode()
            for shape in ([-1], [-4, -4], ["4"], [2**62] * 300_000)
        ),
    ],
)
def test_a_broken_manifest_is_refused(manifest) -> None:
    with pytest.raises(CheckpointError, match="manifest of a received state is broken"):
        IncomingImage(manifest, limit_bytes=100)


@pytest.mark.parametrize("shape", [[1 << 40], [1 << 62] * 64])
def test_an_image_that_announces_too_much_is_refused(shape) -> None:
    manifest = {
        "generation": 1,
        "tensors": [["a", "F32", shape]],
        "state": {"step": 0},
        "digest": "",
    }
    with pytest.raises(CheckpointError, match="announces"):
        IncomingImage(json.dumps(manifest).encode(), limit_bytes=1000)
