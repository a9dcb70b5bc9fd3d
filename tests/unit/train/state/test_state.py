"""A replica's state as tensors, metadata and a digest, and on its way between workers."""

from __future__ import annotations

import json

import pytest

from dtd.errors import CheckpointError, TaskError
from dtd.train.state.load import IncomingImage, load_state
from dtd.train.state.tensors import metadata, named_tensors, state_digest


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_state_goes_over_whole(make_replica, name) -> None:
    source, target = make_replica(name), make_replica(name, updates=0)
    assert state_digest(source) != state_digest(target)
    tensors = {key: tensor.clone() for key, tensor in named_tensors(source).items()}
    load_state(target, tensors, json.loads(json.dumps(metadata(source))))
    assert state_digest(target) == state_digest(source)
    assert list(named_tensors(target)) == list(named_tensors(source))
    assert target.model.out.weight is target.model.embed.weight
    betas = source.optimizer.param_groups[0].get("betas")
    assert target.optimizer.param_groups[0].get("betas") == betas


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r.model.embed.weight.data[0].add_(1e-6),
        lambda r: r.model.norm.num_batches_tracked.add_(1),
        lambda r: r.optimizer.state[r.trained[0][1]]["exp_avg"].mul_(1.0000002),
        lambda r: setattr(r, "step", 3),
        lambda r: setattr(r.scaler, "scale", 2.0),
        lambda r: r.optimizer.param_groups[0].update(lr=0.2),
        lambda r: setattr(r.ledger, "rows_missing", 1),
    ],
)
def test_everything_is_in_the_digest(make_replica, change) -> None:
    own, same = make_replica(), make_replica()
    assert state_digest(own) == state_digest(same)
    change(own)
    assert state_digest(own) != state_digest(same)


def test_another_models_state_is_refused(make_replica) -> None:
    other = make_replica(width=4)
    with pytest.raises(CheckpointError, match=r"model: embed\.weight is \(4, 4\)"):
        load_state(make_replica(), named_tensors(other), metadata(other))
    fewer = dict(named_tensors(make_replica()))
    fewer.pop("model.norm.weight")
    with pytest.raises(CheckpointError, match=r"norm\.weight is only in the model"):
        load_state(make_replica(), fewer, metadata(make_replica()))
    with pytest.raises(CheckpointError, match="optimizer"):
        load_state(make_replica(), named_tensors(make_replica()), {"step": 1})


def test_state_that_is_no_tensor_is_refused(make_replica) -> None:
    class Extra(type(make_replica().model)):
        def get_extra_state(self):
            return {"python": "object"}

        def set_extra_state(self, state):
            """Part of torch's protocol."""

    own = make_replica()
    own.model.__class__ = Extra
    with pytest.raises(TaskError, match="_extra_state, which is no tensor"):
        named_tensors(own)
    own = make_replica()
    own.optimizer.param_groups[0]["callback"] = print
    with pytest.raises(TaskError, match="keeps callback as a"):
        metadata(own)


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
