"""Only published checkpoints may be fetched, and nothing else of the disk."""

from __future__ import annotations

import pytest

from dtd.errors import CheckpointError
from dtd.worker.checkpoint_files import open_checkpoint

NAME = "g000001-s000000010"


@pytest.fixture
def directory(tmp_path):
    """A checkpoint directory with one checkpoint of one job, and a secret beside it."""
    folder = tmp_path / "checkpoints" / "digits-1" / NAME
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text('{"files": {}}')
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "optimizer.safetensors").write_bytes(b"momenta")
    (folder / "below").mkdir()
    secret = tmp_path / "secret" / NAME
    secret.mkdir(parents=True)
    (secret / "manifest.json").write_text("secret")
    return tmp_path / "checkpoints"


def test_manifest_and_files_of_a_checkpoint(directory):
    found = open_checkpoint([directory], f"checkpoint/digits-1/{NAME}")
    assert found.manifest == b'{"files": {}}'
    assert [(blob.name, blob.size_bytes) for blob in found.blobs] == [
        ("model.safetensors", 7),
        ("optimizer.safetensors", 7),
    ]
    assert found.blobs[0].read(2, 3) == b"igh"


def test_the_first_directory_that_has_it_counts(directory, tmp_path):
    other = tmp_path / "other"
    (other / "digits-1" / NAME).mkdir(parents=True)
    resource = f"checkpoint/digits-1/{NAME}"
    assert len(open_checkpoint([other, directory], resource).blobs) == 2  # without a manifest
    (other / "digits-1" / NAME / "manifest.json").write_text("{}")
    assert open_checkpoint([other, directory], resource).blobs == []


@pytest.mark.parametrize(
    "resource",
    [
        f"checkpoint/../secret/{NAME}",
        f"checkpoint/..%2Fsecret/{NAME}",
        f"checkpoint/./secret/{NAME}",
        f"checkpoint/.hidden/{NAME}",
        f"checkpoint//digits-1/{NAME}",
        f"checkpoint/digits-1/../digits-1/{NAME}",
        f"checkpoint/digits-1/{NAME}/manifest.json",
        f"checkpoint/digits-1/{NAME}/",
        f"checkpoint/digits-1/{NAME}\n",
        f"checkpoint/digits-1\0/{NAME}",
        "checkpoint/digits-1/..",
        "checkpoint/digits-1/",
        f"checkpoint/{'x' * 129}/{NAME}",
        f"/checkpoint/digits-1/{NAME}",
        f"state/digits-1/{NAME}",
        "checkpoint/",
        "",
    ],
)
def test_whatever_leads_elsewhere_is_refused(directory, resource):
    with pytest.raises(CheckpointError, match="does not name a checkpoint"):
        open_checkpoint([directory], resource)


@pytest.mark.parametrize(
    "resource", [f"checkpoint/digits-2/{NAME}", "checkpoint/digits-1/g000001-s000000011"]
)
def test_what_is_not_here_is_refused_with_a_remedy(directory, resource):
    with pytest.raises(CheckpointError, match="is not on this worker's disk") as caught:
        open_checkpoint([directory], resource)
    assert "dtdctl checkpoints" in caught.value.remedy


def test_a_draft_without_a_manifest_is_not_offered(directory):
    (directory / "digits-1" / "g000001-s000000020").mkdir()
    with pytest.raises(CheckpointError, match="not on this worker's disk"):
        open_checkpoint([directory], "checkpoint/digits-1/g000001-s000000020")
