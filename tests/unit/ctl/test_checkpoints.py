"""Listing and fetching checkpoints; one scripted server plays coordinator and worker."""

from __future__ import annotations

import json
import ssl

import pytest
import xxhash

from dtd.address import Address
from dtd.checkpoint.choice import holders_of
from dtd.ctl.commands import checkpoints as command
from dtd.ctl.commands.checkpoints import reachable
from dtd.errors import RequestRefused, UsageError
from dtd.net.clients.blocking_link import connect_tcp
from dtd.security.authority import Authority
from dtd.wire import messages as m
from tests.checkpoint_parts import random_state, write_part, write_whole
from tests.shards import held_shards

WEIGHTS = b"weights" * 1000
WORKERS = 4


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(command, "RECONNECT_EVERY_S", 0.02)


def checkpoint(**changes):
    """A checkpoint as the coordinator lists it."""
    return {
        "job": "digits-1",
        "generation": 1,
        "step": 20,
        "size_bytes": 7000,
        "worker": "worker-0",
        "data_host": "127.0.0.1",
        "data_port": 1,
        "data_others": [],
        "alive": True,
        "name": "step-20",
        "directory": "/state/digits-1/step-20",
        "digest": "ab",
        "metrics": {"accuracy": 0.9, "loss": 0.3},
        "verified": True,
        "confirmation": "verified",
        **changes,
    }


def part(rank, **changes):
    """The coordinator's list of a worker's part; each shard is on two workers."""
    own = {"worker": f"worker-{rank}", "part": held_shards(rank, WORKERS, 1).to_wire()}
    named = {"name": "g000003-s000000040", "folder": f"w{rank}", "digest": "ab" * 16}
    return checkpoint(
        **{"step": 40, "generation": 3, "size_bytes": 1024, **own, **named, **changes}
    )


KNOWN = [
    checkpoint(step=10, metrics={"accuracy": 0.95, "loss": 0.4}),
    checkpoint(),
    checkpoint(worker="worker-1"),
    checkpoint(worker="worker-2", alive=False),
    checkpoint(step=30, verified=False, confirmation="contradicted"),
    checkpoint(step=50, verified=False, confirmation="unconfirmed"),
    checkpoint(generation=0, step=40, metrics={}),
    checkpoint(step=5, metrics={"accuracy": None, "loss": None}),
]


# --- the choice --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "step", "workers"),
    [
        ({}, 20, ["worker-0", "worker-1"]),
        ({"step": 10}, 10, ["worker-0"]),
        ({"best_metric": "accuracy"}, 10, ["worker-0"]),
        ({"best_metric": "loss"}, 20, ["worker-0", "worker-1"]),
        ({"best_metric": "accuracy", "mode": "max"}, 10, ["worker-0"]),
    ],
)
def test_the_checkpoint_that_is_wanted(wanted, step, workers):
    found = reachable(holders_of(KNOWN, job="digits-1", **{"step": 0, "best_metric": "", **wanted}))
    assert {one["step"] for one in found} == {step}
    assert [one["worker"] for one in found] == workers


@pytest.mark.parametrize(
    ("known", "step", "metric", "why"),
    [
        ([], 0, "", "job digits-1 has no checkpoint that agrees"),
        (KNOWN, 30, "", "job digits-1 has no checkpoint of step 30 that agrees"),
        (KNOWN, 0, "bleu", "with the metric 'bleu'"),
        ([checkpoint(alive=False)], 0, "", "no worker that holds .* step 20 .*connected: worker-0"),
        ([part(0), part(1)], 0, "", "no checkpoint that agrees"),
        ([part(0), part(1)], 40, "", "has the shards 3/4 to 1; workers that had them: none"),
        (
            [part(rank, alive=rank in (0, 3)) for rank in range(WORKERS)],
            0,
            "",
            r"the shards 1/2 to 3/4; .*: worker-1 \(1/2 to 3/4\), worker-2 \(1/2 to 3/4\)",
        ),
    ],
)
def test_what_cannot_be_had(known, step, metric, why):
    with pytest.raises(RequestRefused, match=why) as caught:
        reachable(holders_of(known, job="digits-1", step=step, best_metric=metric))
    assert caught.value.remedy


# --- fetching a whole checkpoint ---------------------------------------------------------------


@pytest.fixture
def files():
    """The files of the checkpoint."""
    return {"model.safetensors": WEIGHTS}


@pytest.fixture
def offers():
    """The serving worker's description of the state, and the coordinator's."""
    return {"digest": "ab", "verified": True, "confirmation": "verified"}


@pytest.fixture
def cluster(server, result, free_address, spec, files, offers):
    """The newest checkpoint is held by a worker that is away and by one that serves it."""
    ticket = {"ticket_key": server.secret, "ticket_expires_s": 1 << 40}
    there = {"data_host": server.address.host, "data_port": server.address.port, **ticket}
    away = {"data_host": free_address.host, "data_port": free_address.port, **ticket}
    known = [checkpoint(**away), checkpoint(worker="worker-1", **there)]

    def manifest():
        hashes = {name: xxhash.xxh3_128(content).hexdigest() for name, content in files.items()}
        said = {name: {"hash": one} for name, one in hashes.items()}
        return json.dumps({"files": said, "digest": offers["digest"]}).encode()

    def script(message):
        if isinstance(message, m.ListCheckpoints):
            about = {key: offers[key] for key in ("verified", "confirmation")}
            return result({"checkpoints": [{**one, **about} for one in known], "spec": spec})
        if isinstance(message, m.FetchOpen):
            assert message.resource == "checkpoint/digits-1/step-20"
            blobs = tuple(m.BlobInfo(name=n, size_bytes=len(c)) for n, c in files.items())
            return m.message_bytes(m.FetchInfo(blobs=blobs), manifest())
        content = list(files.values())[message.blob]
        data = content[message.offset : message.offset + message.length]
        return m.message_bytes(m.FetchData(blob=message.blob, offset=message.offset), data)

    server.script = script
    return known


def test_fetch_takes_the_next_holder_and_shows_how_to_load(dtdctl, cluster, tmp_path):
    target = tmp_path / "new" / "model.safetensors"
    exit_code, out, err = dtdctl("fetch", "digits-1", str(target.parent))
    assert exit_code == 0
    assert target.read_bytes() == WEIGHTS
    assert out.splitlines() == [
        "from dtd.train.task import load_task; from dtd.train.state.weights import load_weights",
        "model = load_task('digits', {'hidden': 16}).build_model()",
        f"load_weights(model, '{target}')",
    ]
    assert "worker-0: checkpoint/digits-1/step-20" in err
    assert "weights of digits-1 after step 20" in err
    assert "all ranks agreed on its digest, ab" in err
    assert dtdctl("fetch", "digits-1", str(target.parent))[0] == 0
    target.write_bytes(b"other")
    exit_code, _out, err = dtdctl("fetch", "digits-1", str(target.parent))
    assert exit_code == 2
    assert "exists and holds other weights" in err
    assert target.read_bytes() == b"other"


def test_fetch_says_that_nobody_has_confirmed_it(dtdctl, cluster, offers, tmp_path):
    offers |= {"verified": False, "confirmation": "unconfirmed"}
    exit_code, _, err = dtdctl("fetch", "digits-1", str(tmp_path))
    assert exit_code == 0
    assert "not confirmed: only worker-0 has reported its digest" in err


@pytest.mark.parametrize("verified", [True, False])
def test_what_a_worker_offers_instead_is_not_taken(dtdctl, cluster, offers, tmp_path, verified):
    offers |= {"digest": "cd", "verified": verified}
    exit_code, _, err = dtdctl("fetch", "digits-1", str(tmp_path))
    assert exit_code == 1
    assert "has the digest cd, and" in err
    assert list(tmp_path.iterdir()) == []


def test_what_workers_encrypt_is_fetched_encrypted(dtdctl, cluster, spec, tmp_path, monkeypatch):
    called = []

    def tls_connect(context, peer_role):
        called.append((type(context), peer_role))
        return connect_tcp  # the scripted server speaks none

    monkeypatch.setattr("dtd.net.clients.tls.tls_connect", tls_connect)
    monkeypatch.setattr("dtd.ctl.settings.SYSTEM_FILE", tmp_path / "none")
    monkeypatch.setattr("dtd.ctl.settings.operator_file", lambda _environ: tmp_path / "none")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    spec["sync"] = {"encryption": "tls"}
    exit_code, _out, err = dtdctl("fetch", "digits-1", str(tmp_path / "weights"))
    assert exit_code == UsageError.exit_code
    assert "digits-1 is encrypted, and this user has no credential" in err
    assert not (tmp_path / "weights" / "model.safetensors").exists()
    own = tmp_path / "dtd" / "ctl.credential"
    authority = Authority.create(tmp_path / "pki")
    authority.enrol(own, "operator", "ann", coordinators=(Address("127.0.0.1", 1),))
    assert dtdctl("fetch", "digits-1", str(tmp_path / "weights"))[0] == 0
    assert called == [(ssl.SSLContext, "worker")]


# --- fetching a sharded one --------------------------------------------------------------------


@pytest.fixture
def state():
    """A checkpoint saved in parts."""
    return random_state(5)


@pytest.fixture
def uncompared():
    """Ranks whose parts have no digest."""
    return set()


@pytest.fixture
def parted(server, result, spec, state, uncompared, tmp_path):
    """Some workers, each with its part; returns their directories."""
    ticket = {"ticket_key": server.secret, "ticket_expires_s": 1 << 40}
    there = {"data_host": server.address.host, "data_port": server.address.port, **ticket}
    without = {"digest": "", "verified": False, "confirmation": "unconfirmed", "metrics": {}}
    paths = [
        write_part(tmp_path / "disks" / f"w{rank}", state, rank, world_size=WORKERS, mirrors=1)
        for rank in range(WORKERS)
    ]
    opened = []

    def script(message):
        if isinstance(message, m.ListCheckpoints):
            listed = [
                part(rank, **there, **(without if rank in uncompared else {}))
                for rank in range(WORKERS)
            ]
            return result({"checkpoints": listed, "spec": spec})
        if isinstance(message, m.FetchOpen):
            path = tmp_path / "disks" / message.resource.removeprefix("checkpoint/")
            opened[:] = sorted(path.glob("*.safetensors"))
            infos = [m.BlobInfo(name=one.name, size_bytes=one.stat().st_size) for one in opened]
            manifest = (path / "manifest.json").read_bytes()
            return m.message_bytes(m.FetchInfo(blobs=tuple(infos)), manifest)
        content = opened[message.blob].read_bytes()
        data = content[message.offset : message.offset + message.length]
        return m.message_bytes(m.FetchData(blob=message.blob, offset=message.offset), data)

    server.script = script
    return paths


@pytest.fixture
def fetched(dtdctl, parted, state, tmp_path):
    """Fetches the weights, which are those of the whole state; stderr."""

    def fetch():
        exit_code, _out, err = dtdctl("fetch", "digits-1", str(tmp_path / "new"))
        assert exit_code == 0
        (file,) = (tmp_path / "new").iterdir()
        whole = write_whole(tmp_path / "whole", state) / "model.safetensors"
        assert file.read_bytes() == whole.read_bytes()
        return err

    return fetch


def test_fetch_merges_parts(fetched, dtdctl, tmp_path):
    assert "merged from the parts of worker-0, worker-2" in fetched()
    (tmp_path / "new" / "model.safetensors").write_bytes(b"others")
    assert dtdctl("fetch", "digits-1", str(tmp_path / "new"))[0] == 2
