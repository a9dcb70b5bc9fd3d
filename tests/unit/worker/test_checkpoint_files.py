"""Only published checkpoints may be fetched or deleted, and nothing else of the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dtd.checkpoint.format import MANIFEST_FILE, Manifest, encode_manifest
from dtd.errors import CheckpointError
from dtd.job.terms import folder_of
from dtd.wire import messages as m
from dtd.worker.files.checkpoints import drop_checkpoint, open_checkpoint

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


@pytest.mark.parametrize(
    "resource",
    [
        f"checkpoint/../secret/{NAME}",
        f"checkpoint/..%2Fsecret/{NAME}",
        f"checkpoint/.hidden/{NAME}",
        f"checkpoint/digits-1/../digits-1/{NAME}",
        f"checkpoint/digits-1/{NAME}/manifest.json",
        f"checkpoint/digits-1/{NAME}\n",
        f"checkpoint/digits-1\0/{NAME}",
        "checkpoint/digits-1/..",
        f"checkpoint/{'x' * 129}/{NAME}",
        f"/checkpoint/digits-1/{NAME}",
        f"state/digits-1/{NAME}",
    ],
)
def test_whatever_leads_elsewhere_is_refused(directory, resource):
    with pytest.raises(CheckpointError, match="does not name a checkpoint"):
        open_checkpoint([directory], resource)


IDENTITY = "aa.1.digits-1.bb"


def checkpoint(root: Path, *, job: str = "digits-1", identity: str = IDENTITY) -> Path:
    path = root / folder_of(job, identity) / "g000002-s000000010"
    path.mkdir(parents=True)
    manifest = Manifest(
        format=2,
        job=job,
        job_name="digits",
        task="digits",
        generation=2,
        step=10,
        epoch=0,
        offset=0,
        digest="",
        parent="",
        metrics={},
        world_size=1,
        files={},
        state={},
        tensors=(),
        identity=identity,
    )
    (path / MANIFEST_FILE).write_bytes(encode_manifest(manifest))
    return path


def order(path: Path, **changes: Any) -> m.DropCheckpoint:
    values: dict[str, Any] = {"job": "digits-1", "identity": IDENTITY, "generation": 2, "step": 10}
    return m.DropCheckpoint(**{**values, "directory": str(path), **changes})


def test_paths_that_lead_elsewhere(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "a")
    folder = path.parent.name
    assert "is not called" in drop_checkpoint(order(path.parent))
    assert "is not called" in drop_checkpoint(order(path, identity="another"))
    link = tmp_path / "b" / folder
    link.mkdir(parents=True)
    (link / path.name).symlink_to(path)
    assert "is a link" in drop_checkpoint(order(link / path.name))
    assert path.is_dir()
