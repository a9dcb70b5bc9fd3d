"""`dtdctl models ...` against a scripted server that plays coordinator and worker."""

from __future__ import annotations

import hashlib
import json

import pytest
import xxhash

from dtd.job import parse_job, to_mapping
from dtd.wire import messages as m

WEIGHTS = b"weights" * 1000
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()
SPEC = to_mapping(
    parse_job(
        '[job]\nname="own"\ntask="package.module:Task.small"\nepochs=1\nglobal_batch_size=64\n'
        "[task]\nwidth=8\n",
        source="test",
    )
)
RECORD = {
    "job": "own-1",
    "step": 20,
    "generation": 3,
    "digest": "ab",
    "confirmation": "verified",
    "metrics": {"accuracy": 0.9375},
    "task": "package.module:Task.small",
    "spec": SPEC,
    "package": "ef" * 32,
    "dataset_rows": 1437,
    "dataset_fingerprint": "f" * 32,
    "environment": {"torch": "2.14"},
    "registered_by": "operator/ann",
    "registered_s": 60.0,
}
VERSION = {
    "name": "own",
    "number": 2,
    "id": "own.v2.0123456789ab",
    "state": "ready",
    "aliases": ["production"],
    "record": RECORD,
    "files": [{"name": "model.safetensors", "size_bytes": len(WEIGHTS), "sha256": SHA256}],
    "card": "Text.",
    "copies": 2,
    "holders": ["w-0", "w-1"],
    "connected": ["w-0"],
    "copying": [],
    "failed": {},
}


@pytest.fixture
def served(server, result):
    """Plays the coordinator, which knows one version, and a worker that keeps it."""
    known, content = dict(VERSION), {"model.safetensors": WEIGHTS}
    source = {
        "worker": "w-0",
        "data_host": server.address.host,
        "data_port": server.address.port,
        "data_others": [],
        "resource": "model/own.v2.0123456789ab",
        "ticket_expires_s": 2**40,
        "ticket_key": b"s" * 32,
    }

    def script(message):
        names = list(content)
        if isinstance(message, m.FetchOpen):
            files = {name: {"hash": xxhash.xxh3_128(content[name]).hexdigest()} for name in names}
            blobs = tuple(m.BlobInfo(name=n, size_bytes=len(content[n])) for n in names)
            return m.message_bytes(m.FetchInfo(blobs=blobs), json.dumps({"files": files}).encode())
        if isinstance(message, m.FetchRange):
            piece = content[names[message.blob]][message.offset : message.offset + message.length]
            return m.message_bytes(m.FetchData(blob=message.blob, offset=message.offset), piece)
        sources = {"sources": [source]} if getattr(message, "tickets", False) else {}
        return result({"models": [{**known, **sources}]})

    server.script = script
    return known, content


def test_everything_about_one(dtdctl, served, server, check_output):
    known, _content = served
    known |= {"copying": ["w-2"], "failed": {"w-3": "no room"}}
    _code, out, _err = dtdctl("models", "show", "own@production")
    assert server.received[-1] == m.ListModels(name="own", version="production")
    assert "model              own@2  ready  @production" in out
    assert f"model.safetensors  6.8 KiB  sha256 {SHA256}" in out
    assert out.splitlines()[-5:] == [
        "copies             1 of 2",
        "                   on w-0",
        "                   on w-1, not connected",
        "                   being made on w-2",
        "                   none on w-3: no room",
    ]
    known["copying"] = []
    _code, out, _err = dtdctl("models", "show", "own")
    assert out.splitlines()[-1].split(maxsplit=2) == ["to", "repair:", "dtdctl models copy own@2"]
    _code, out, _err = dtdctl("models", "show", "own", "--card")
    assert out.startswith("# own, version 2 (production)\n\nText.\n")
    for words in (("show", "own"), ("show", "own", "--card")):
        check_output(("models", "show"), dtdctl("models", *words, "-o", "json")[1])


def test_fetched_files_are_checked(dtdctl, served, tmp_path, check_output):
    known, content = served
    target = tmp_path / "here"
    code, out, err = dtdctl("models", "fetch", "own@2", str(target))
    assert (code, err) == (0, f"{target}: own@2, as registered; load it with\n")
    assert (target / "model.safetensors").read_bytes() == WEIGHTS
    assert json.loads((target / "version.json").read_text())["files"] == known["files"]
    assert (target / "README.md").read_text().startswith("# own, version 2")
    assert out.splitlines() == [
        "from safetensors.torch import load_model; from package.module import Task",
        "model = Task.small(width=8).build_model()",
        f"load_model(model, '{target / 'model.safetensors'}')",
    ]
    _code, out, _err = dtdctl("models", "fetch", "own@2", str(target), "-o", "json")
    check_output(("models", "fetch"), out)
    (tmp_path / "file").write_text("")
    code, _out, err = dtdctl("models", "fetch", "own@2", str(tmp_path / "file"))
    assert (code, "cannot be written to" in err) == (2, True)
    content["model.safetensors"] = b"others"
    code, _out, err = dtdctl("models", "fetch", "own@2", str(tmp_path / "there"))
    assert (code, "do not have the digests that were registered" in err) == (1, True)
    assert not (tmp_path / "there" / "model.safetensors").exists()
    assert "holds other weights" in dtdctl("models", "fetch", "own@2", str(target))[2]


def test_registered_and_exported(dtdctl, served, server, tmp_path, check_output):
    known, _content = served
    (tmp_path / "card.md").write_text("Hello.")
    code, out, err = dtdctl(
        *("models", "register", "own-1", "own", "--best", "accuracy", "--mode", "max"),
        *("--copies", "3", "--card", str(tmp_path / "card.md"), "--export", str(tmp_path)),
    )
    assert (code, out) == (0, "own@2\n")
    assert server.received[0] == m.RegisterModel(
        name="own", job="own-1", best="accuracy", mode="max", copies=3, card="Hello."
    )
    assert err.splitlines() == [
        "own@2 is step 20 of own-1, verified",
        f"exported to {tmp_path / 'own' / 'v2'}",
    ]
    assert (tmp_path / "own" / "v2" / "model.safetensors").read_bytes() == WEIGHTS
    known["holders"] = ["w-0"]
    _code, out, err = dtdctl("models", "register", "own-1@20", "own", "-o", "json")
    assert "1 of 2 copies are there by now" in err
    check_output(("models", "register"), out)
