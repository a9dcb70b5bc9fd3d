"""Copies of models on a worker's disk: linked, fetched, merged, refused, opened, deleted."""

from __future__ import annotations

import hashlib
import json
import queue
import shutil

import pytest
import xxhash

from dtd.checkpoint.format import read_manifest
from dtd.errors import CheckpointError
from dtd.net.clients.blocking_link import connect_tcp
from dtd.wire import messages as m
from dtd.worker.files.models import (
    PinnedModels,
    held,
    open_model,
    pin_model,
)
from tests.checkpoint_parts import random_state, write_whole

VERSION = "digits.v1.0123456789ab"
WEIGHTS = b"weights" * 1000
FOLDER = "job.0123456789"


def sha256(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def checkpoints(tmp_path):
    """A directory with one whole checkpoint; the source that names it."""
    directory = tmp_path / "checkpoints"
    path = write_whole(directory / FOLDER, random_state(1))
    source = m.ModelSource(
        name="w0",
        host="127.0.0.1",
        port=1,
        resource=f"checkpoint/{FOLDER}/{path.name}",
        digest=read_manifest(path).digest,
    )
    return directory, source, path


def pin(place, *sources, worker="w0", checkpoints=(), files=()):
    order = m.PinModel(version=VERSION, files=files, sources=tuple(sources))
    return pin_model(order, place, worker=worker, checkpoints=checkpoints, connect=connect_tcp)


@pytest.fixture
def other(server):
    """A worker that keeps the version; what it serves can be changed."""
    content = {"model.safetensors": WEIGHTS}

    def script(message):
        names = list(content)
        if isinstance(message, m.FetchOpen):
            files = {name: {"hash": xxhash.xxh3_128(content[name]).hexdigest()} for name in names}
            blobs = tuple(m.BlobInfo(name=n, size_bytes=len(content[n])) for n in names)
            return m.message_bytes(m.FetchInfo(blobs=blobs), json.dumps({"files": files}).encode())
        piece = content[names[message.blob]][message.offset : message.offset + message.length]
        return m.message_bytes(m.FetchData(blob=message.blob, offset=message.offset), piece)

    server.script = script
    source = m.ModelSource(
        name="w1",
        host=server.address.host,
        port=server.address.port,
        resource=f"model/{VERSION}",
        ticket_key=b"s" * 32,
        ticket_expires_s=2**40,
    )
    return source, content


def test_its_own_checkpoint_is_linked_and_survives_it(tmp_path, checkpoints):
    directory, source, path = checkpoints
    place = tmp_path / "models"
    files = pin(place, source, checkpoints=[directory])
    kept = place / VERSION / "model.safetensors"
    assert kept.stat().st_ino == (path / "model.safetensors").stat().st_ino
    assert files[0].name == "model.safetensors"
    assert files[0].sha256 == sha256(kept.read_bytes())
    shutil.rmtree(directory)
    assert held(place) == (VERSION,)
    assert pin(place) == files  # it is here, and left as it is
    opened = open_model(place, f"model/{VERSION}")
    assert json.loads(opened.manifest)["files"]["model.safetensors"]["sha256"] == files[0].sha256
    assert opened.blobs[0].size_bytes == files[0].size_bytes
    assert [path.name for path in place.iterdir()] == [VERSION]


def test_nobody_has_it(tmp_path):
    with pytest.raises(CheckpointError, match="no connected worker has its files"):
        pin(tmp_path / "models")
    with pytest.raises(CheckpointError, match="is not called as a version"):
        pin_model(
            m.PinModel(version="../x"),
            tmp_path,
            worker="w",
            checkpoints=[],
            connect=connect_tcp,
        )
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be kept in"):
        pin(tmp_path / "file")


def test_orders_are_carried_out_one_after_the_other(tmp_path, other, monkeypatch):
    said: queue.Queue[m.Message] = queue.Queue()
    models = PinnedModels(
        tmp_path / "models",
        worker="w2",
        checkpoints=list,
        connect=lambda _encrypted: connect_tcp,
        send=said.put,
    )
    registered = m.Registered(heartbeat_interval_s=1.0, heartbeat_timeout_s=2.0)
    models.order(registered)
    assert said.get(timeout=30) == m.ModelsHeld()
    models.order(m.PinModel(version=VERSION, sources=(other[0],)))
    pinned = said.get(timeout=30)
    assert (pinned.version, pinned.files[0].sha256) == (VERSION, sha256(WEIGHTS))
    assert open_model(tmp_path / "models", f"model/{VERSION}").blobs[0].size_bytes == len(WEIGHTS)
    models.order(m.PinModel(version="x.v1.0123456789ab"))
    assert said.get(timeout=30).reason == "no connected worker has its files"
    models.order(registered)
    assert said.get(timeout=30) == m.ModelsHeld(versions=(VERSION,))

    def fail(*_arguments):
        raise OSError("read-only")

    with monkeypatch.context() as patch:
        patch.setattr("dtd.worker.files.models.drop_model", fail)
        models.order(m.UnpinModel(version=VERSION))
        assert said.get(timeout=30) == m.ModelsHeld(versions=(VERSION,))
    models.order(m.UnpinModel(version=VERSION))
    assert said.get(timeout=30) == m.ModelsHeld()


def test_a_damaged_checkpoint_is_passed_over(tmp_path, checkpoints, other):
    directory, source, path = checkpoints
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    (file,) = pin(tmp_path / "models", source, other[0], checkpoints=[directory])
    assert file == m.ModelFile(
        name="model.safetensors", size_bytes=len(WEIGHTS), sha256=sha256(WEIGHTS)
    )
