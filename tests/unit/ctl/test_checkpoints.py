"""Listing and fetching checkpoints; one scripted server plays coordinator and worker."""

from __future__ import annotations

import errno
import json
import os
import shutil
import ssl
from dataclasses import replace

import pytest
import torch
import xxhash

from dtd.address import Address
from dtd.ctl import checkpoints as command
from dtd.ctl.checkpoints import holders_of, reachable
from dtd.errors import RequestRefused, UsageError
from dtd.net.blocking_link import connect_tcp
from dtd.parts.merge import FileMerge
from dtd.security.authority import Authority
from dtd.wire import messages as m
from tests.checkpoint_parts import random_state, write_part, write_whole
from tests.shards import held_shards

WEIGHTS = b"weights" * 1000


def checkpoint(**changes):
    return {
        "job": "digits-1",
        "generation": 1,
        "step": 20,
        "size_bytes": 7000,
        "worker": "worker-0",
        "data_host": "127.0.0.1",
        "data_port": 1,
        "alive": True,
        "name": "step-20",
        "directory": "/state/digits-1/step-20",
        "digest": "ab",
        "metrics": {"accuracy": 0.9, "loss": 0.3},
        "verified": True,
        "confirmation": "verified",
        **changes,
    }


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


@pytest.mark.parametrize(
    ("wanted", "step", "workers"),
    [
        ({}, 20, ["worker-0", "worker-1"]),
        ({"step": 10}, 10, ["worker-0"]),
        ({"best_metric": "accuracy"}, 10, ["worker-0"]),
        ({"best_metric": "loss"}, 20, ["worker-0", "worker-1"]),
        ({"best_metric": "loss", "mode": "min"}, 20, ["worker-0", "worker-1"]),
        ({"best_metric": "accuracy", "mode": "max"}, 10, ["worker-0"]),
    ],
)
def test_who_holds_what_is_wanted(wanted, step, workers):
    found = reachable(holders_of(KNOWN, job="digits-1", **{"step": 0, "best_metric": "", **wanted}))
    assert {one["step"] for one in found} == {step}
    assert [one["worker"] for one in found] == workers


@pytest.mark.parametrize(
    ("known", "step", "metric", "why"),
    [
        ([], 0, "", "job digits-1 has no checkpoint that agrees"),
        (KNOWN, 30, "", "job digits-1 has no checkpoint of step 30 that agrees"),
        (KNOWN, 0, "bleu", "with the metric 'bleu'"),
        (
            [checkpoint(alive=False)],
            0,
            "",
            "no worker that holds .* step 20 is connected: worker-0",
        ),
    ],
)
def test_what_cannot_be_had(known, step, metric, why):
    with pytest.raises(RequestRefused, match=why) as caught:
        reachable(holders_of(known, job="digits-1", step=step, best_metric=metric))
    assert caught.value.remedy


def test_checkpoints_are_listed(dtdctl, server, result):
    server.script = lambda _message: result({"checkpoints": KNOWN[:4]})
    exit_code, out, _err = dtdctl("checkpoints", "digits-1")
    lines = out.splitlines()
    assert exit_code == 0
    assert lines[0].split()[:3] == ["JOB", "GENERATION", "STEP"]
    assert "6.8 KiB  worker-0  yes    yes       accuracy=0.95 loss=0.4" in lines[1]
    assert "worker-2  no" in lines[4]
    assert server.received == [m.ListCheckpoints(job="digits-1")]
    assert json.loads(dtdctl("checkpoints", "-o", "json")[1])["checkpoints"] == KNOWN[:4]


def test_what_the_job_has_left_behind_and_the_way_back(dtdctl, server, result):
    left = [checkpoint(step=step, left_behind=True) for step in (400, 300)]
    answer = {"checkpoints": [checkpoint(generation=3, step=40, left_behind=False), *left]}
    server.script = lambda _message: result(answer)
    _exit_code, out, err = dtdctl("checkpoints", "digits-1")
    assert ["left" in line for line in out.splitlines()] == [False, False, True, True]
    assert "dtdctl cancel digits-1" in err
    assert "--resume-from digits-1@400" in err
    server.script = lambda _message: result({"checkpoints": KNOWN[:2]})
    assert dtdctl("checkpoints", "digits-1")[2] == ""


# --- checkpoints of a sharded state ------------------------------------------------------------

WORKERS = 4


def part(rank, **changes):
    """What the coordinator lists of a worker's part; each shard is on two workers."""
    own = {"worker": f"worker-{rank}", "part": held_shards(rank, WORKERS, 1).to_wire()}
    named = {"name": "g000003-s000000040", "folder": f"w{rank}", "digest": "ab" * 16}
    return checkpoint(
        **{"step": 40, "generation": 3, "size_bytes": 1024, **own, **named, **changes}
    )


@pytest.mark.parametrize(
    ("away", "there"),
    [([], "yes"), ([1], "yes"), ([1, 2], "no"), ([0, 1, 2, 3], "no"), (None, "incomplete")],
)
def test_a_sharded_checkpoint_is_listed_as_one(dtdctl, server, result, away, there):
    ranks = range(WORKERS) if away is not None else [0, 1]
    parts = [part(rank, alive=rank not in (away or ())) for rank in ranks]
    server.script = lambda _message: result({"checkpoints": [*parts, *KNOWN[:2]]})
    lines = dtdctl("checkpoints", "digits-1")[1].splitlines()
    assert len(lines) == 4
    names = ",".join(one["worker"] for one in parts)
    assert lines[1].split()[:7] == [
        *("digits-1", "3", "40", f"{len(parts)}.0", "KiB", names, there),
    ]
    assert json.loads(dtdctl("checkpoints", "-o", "json")[1])["checkpoints"][: len(parts)] == parts


def test_an_incomplete_checkpoint_is_not_what_is_wanted():
    newest = [part(rank) for rank in (0, 1)]
    older = [part(rank, step=30) for rank in range(WORKERS)]
    found = holders_of([*newest, *older], job="digits-1", step=0, best_metric="")
    assert found == older
    with pytest.raises(RequestRefused, match="no checkpoint that agrees"):
        holders_of(newest, job="digits-1", step=0, best_metric="")
    named = holders_of(newest, job="digits-1", step=40, best_metric="")
    with pytest.raises(
        RequestRefused, match="has the shards 3/4 to 1; workers that had them: none"
    ):
        reachable(named)


UNCOMPARED = {"digest": "", "verified": False, "confirmation": "unconfirmed", "metrics": {}}


def test_a_part_without_a_digest_is_listed_with_those_of_its_step(dtdctl, server, result):
    """It was saved when no ring was left to compare it."""
    parts = [part(0, **UNCOMPARED), part(2), part(0, step=30), part(2, step=30)]
    server.script = lambda _message: result({"checkpoints": parts})
    lines = [line.split() for line in dtdctl("checkpoints", "digits-1")[1].splitlines()]
    assert [line[5:8] for line in lines[1:]] == [
        ["worker-2,worker-0", "yes", "unconfirmed"],
        ["worker-0,worker-2", "yes", "yes"],
    ]


def test_a_part_without_a_digest_counts_for_what_is_fetched():
    alone, other = part(0, **UNCOMPARED), part(2)

    def found(*known, **wanted):
        wanted = {"step": 0, "best_metric": "", **wanted}
        return reachable(holders_of(known, job="digits-1", **wanted))

    assert found(alone, other) == [other, alone]
    assert found(alone, other, best_metric="loss") == [other, alone]
    older = [part(rank, step=30) for rank in range(WORKERS)]
    assert found(alone, other, *older) == older
    assert found(alone, other, *older, step=40) == [other, alone]
    with pytest.raises(RequestRefused, match="no checkpoint that agrees"):
        found(part(1, **UNCOMPARED), other)  # they lack a shard
    with pytest.raises(RequestRefused, match="no checkpoint that agrees"):
        found(alone, other, part(3, digest="cd" * 16))  # to which of the two?


def test_workers_that_have_the_missing_shards_are_named():
    holders = [part(rank, alive=rank in (0, 3)) for rank in range(WORKERS)]
    assert reachable([part(rank, alive=rank != 1) for rank in range(WORKERS)])
    with pytest.raises(
        RequestRefused, match="no connected worker has the shards 1/2 to 3/4"
    ) as one:
        reachable(holders)
    assert "worker-1 (1/2 to 3/4), worker-2 (1/2 to 3/4)" in one.value.message


@pytest.fixture
def state():
    """What is saved in parts."""
    return random_state(5)


@pytest.fixture
def uncompared():
    """Ranks whose parts have no digest."""
    return set()


@pytest.fixture
def world():
    """How many workers there are."""
    return WORKERS


@pytest.fixture
def parted(server, result, spec, state, world, uncompared, tmp_path):
    """Some workers, each with its part; returns their directories."""
    ticket = {"ticket_key": server.secret, "ticket_expires_unix_s": 1 << 40}
    there = {"data_host": server.address.host, "data_port": server.address.port, **ticket}
    known = [part(rank, **there, **({"part": []} if world == 2 else {})) for rank in range(world)]
    paths = [
        write_part(tmp_path / "disks" / f"w{rank}", state, rank, world_size=world, mirrors=1)
        for rank in range(world)
    ]
    opened = []

    def script(message):
        if isinstance(message, m.ListCheckpoints):
            listed = [
                {**one, **(UNCOMPARED if rank in uncompared else {})}
                for rank, one in enumerate(known)
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


def test_fetch_merges_parts(dtdctl, parted, state, tmp_path):
    exit_code, _out, err = dtdctl("fetch", "digits-1", str(tmp_path / "new"))
    whole = write_whole(tmp_path / "whole", state)
    assert exit_code == 0
    assert "merged from the parts of worker-0, worker-2" in err
    (file,) = (tmp_path / "new").iterdir()
    assert file.read_bytes() == (whole / "model.safetensors").read_bytes()
    assert dtdctl("fetch", "digits-1", str(tmp_path / "new"))[0] == 0
    file.write_bytes(b"others")
    exit_code, _out, err = dtdctl("fetch", "digits-1", str(tmp_path / "new"))
    assert exit_code == 2
    assert "exists and holds other weights" in err


@pytest.mark.parametrize("world", [2])
def test_fetch_gives_tensors_their_shapes_if_a_worker_has_all_shards(
    dtdctl, parted, state, tmp_path
):
    whole = write_whole(tmp_path / "whole", state)
    for _ in range(2):  # the second time it is there
        assert dtdctl("fetch", "digits-1", str(tmp_path / "new"))[0] == 0
        (file,) = (tmp_path / "new").iterdir()
        assert file.read_bytes() == (whole / "model.safetensors").read_bytes()


def test_fetch_takes_other_parts_if_a_worker_does_not_deliver(dtdctl, parted, state, tmp_path):
    (parted[2] / "model.safetensors").write_bytes(b"damaged")
    exit_code, _out, err = dtdctl("fetch", "digits-1", str(tmp_path / "new"))
    assert exit_code == 0
    assert "worker-2: model.safetensors of checkpoint/w2" in err
    assert "merged from the parts of worker-0, worker-1, worker-3" in err
    whole = write_whole(tmp_path / "whole", state) / "model.safetensors"
    assert (tmp_path / "new" / "model.safetensors").read_bytes() == whole.read_bytes()


def test_fetch_merges_parts_without_a_digest(dtdctl, parted, state, uncompared, tmp_path):
    uncompared |= {0, 2}
    others = random_state(6)
    for rank in uncompared:
        shutil.rmtree(parted[rank])
        place = tmp_path / "disks" / f"w{rank}"
        write_part(place, state, rank, world_size=WORKERS, mirrors=1, digest="")
    shutil.rmtree(parted[1])
    write_part(tmp_path / "disks" / "w1", others, 1, world_size=WORKERS, mirrors=1, digest="cd")
    exit_code, out, err = dtdctl("fetch", "digits-1", str(tmp_path / "new"), "-o", "json")
    assert exit_code == 0
    assert "worker-1: its checkpoint of step 40 has the digest cd" in err
    merged = "merged from the parts of worker-3, worker-0, worker-2"
    assert f"{merged}; saved without a digest: those of worker-0, worker-2" in err
    assert "step 40 is not confirmed" not in err  # two workers hold all of it with a digest
    assert json.loads(out)["digest"] == "ab" * 16
    whole = write_whole(tmp_path / "whole", state) / "model.safetensors"
    assert (tmp_path / "new" / "model.safetensors").read_bytes() == whole.read_bytes()


def test_fetch_says_that_parts_have_no_digest(dtdctl, parted, uncompared, state, tmp_path):
    uncompared |= {0, 1, 2}
    for rank in uncompared:
        shutil.rmtree(parted[rank])
        place = tmp_path / "disks" / f"w{rank}"
        write_part(place, state, rank, world_size=WORKERS, mirrors=1, digest="")
    exit_code, out, err = dtdctl("fetch", "digits-1", str(tmp_path / "new"), "-o", "json")
    assert exit_code == 0
    assert "not confirmed: saved without a digest on worker-0, worker-1, worker-2" in err
    assert json.loads(out)["confirmation"] == "unconfirmed"


def test_fetch_leaves_out_one_of_two_parts_that_differ(dtdctl, parted, state, tmp_path):
    other = replace(state, tensors={**state.tensors, "model.0.seen": torch.tensor(-1)})
    shutil.rmtree(parted[2])
    write_part(tmp_path / "disks" / "w2", other, 2, world_size=WORKERS, mirrors=1)
    exit_code, _out, err = dtdctl("fetch", "digits-1", str(tmp_path / "new"))
    assert exit_code == 0
    merged = "merged from the parts of worker-0, worker-1, worker-3"
    assert f"{merged}, which differ from those of worker-2" in err
    whole = write_whole(tmp_path / "whole", state) / "model.safetensors"
    assert (tmp_path / "new" / "model.safetensors").read_bytes() == whole.read_bytes()


def test_fetch_fails_if_the_parts_that_come_lack_a_shard(dtdctl, parted, tmp_path):
    for rank in (1, 2):
        (parted[rank] / "model.safetensors").write_bytes(b"damaged")
    exit_code, _out, err = dtdctl("fetch", "digits-1", str(tmp_path / "new"))
    assert exit_code == 1
    assert "does not match the hash in its manifest" in err
    assert not (tmp_path / "new" / "model.safetensors").exists()


def test_a_part_that_is_not_what_was_reported_is_not_taken(dtdctl, parted, state, tmp_path):
    shutil.rmtree(parted[0].parent)
    write_part(tmp_path / "disks" / "w0", state, 2, world_size=WORKERS, mirrors=1)
    exit_code, _out, err = dtdctl("fetch", "digits-1", str(tmp_path / "new"))
    assert exit_code == 0
    assert "has 1/2 to 1 of the shards, and was reported as 0 to 1/2" in err
    assert "merged from the parts of worker-1, worker-3" in err


@pytest.mark.parametrize("listed", [5, [["model.0.weight"]] * 2])
def test_a_worker_whose_manifest_lists_no_tensors_is_passed_over(dtdctl, parted, tmp_path, listed):
    file = parted[2] / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "tensors": listed}))
    exit_code, _out, err = dtdctl("fetch", "digits-1", str(tmp_path / "new"))
    assert exit_code == 0
    assert "worker-2: its manifest does not list the tensors of the checkpoint" in err


def test_parts_that_do_not_fit_on_the_disk(dtdctl, parted, tmp_path, monkeypatch):
    def full(*_given):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(FileMerge, "write", full)
    exit_code, _out, err = dtdctl("fetch", "digits-1", str(tmp_path / "new"))
    assert exit_code == 2
    assert f"{tmp_path / 'new'} cannot be written to: No space left on device" in err


@pytest.fixture
def credential(tmp_path, monkeypatch):
    """This user has one, of a cluster whose coordinator is elsewhere."""
    authority = Authority.create(tmp_path / "pki")
    own = tmp_path / "dtd" / "ctl.credential"
    authority.enrol(own, "operator", "ann", coordinators=(Address("127.0.0.1", 1),))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.fixture
def spec():
    """The job file, as the coordinator tells it."""
    return {"job": {"task": "digits"}, "task": {"hidden": 16}}


@pytest.fixture
def files():
    """What the checkpoint consists of."""
    return {"model.safetensors": WEIGHTS}


@pytest.fixture
def offers():
    """What the worker that serves it says of the state, and what the coordinator knows of it."""
    return {"digest": "ab", "verified": True, "confirmation": "verified"}


@pytest.fixture
def cluster(server, result, free_address, spec, files, offers):
    """The newest checkpoint is held by a worker that is away and by one that serves it."""
    ticket = {"ticket_key": server.secret, "ticket_expires_unix_s": 1 << 40}
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


def test_fetch_says_whether_all_ranks_agreed(dtdctl, cluster, offers, tmp_path):
    assert "all ranks agreed on its digest, ab" in dtdctl("fetch", "digits-1", str(tmp_path))[2]
    offers |= {"verified": False, "confirmation": "unconfirmed"}
    exit_code, _, err = dtdctl("fetch", "digits-1", str(tmp_path))
    assert exit_code == 0
    assert "not confirmed: only worker-0 has reported its digest" in err


@pytest.mark.parametrize("verified", [True, False])
def test_what_a_worker_offers_instead_is_not_taken(dtdctl, cluster, offers, tmp_path, verified):
    """It has told of one state, and has another on its disk, or has made one up."""
    offers |= {"digest": "cd", "verified": verified}
    exit_code, _, err = dtdctl("fetch", "digits-1", str(tmp_path))
    assert exit_code == 1
    assert "has the digest cd, and" in err
    assert list(tmp_path.iterdir()) == []


def test_a_newer_one_that_nobody_has_confirmed_is_named(
    dtdctl, server, result, spec, tmp_path, monkeypatch
):
    monkeypatch.setattr(command, "HOLDERS_BACK_S", 0.0)
    unsure = checkpoint(step=30, verified=False, confirmation="unconfirmed", alive=False)
    ticket = {"ticket_key": bytes(32), "ticket_expires_unix_s": 1 << 40}
    known = [unsure, checkpoint(**ticket)]
    server.script = lambda _message: result({"checkpoints": known, "spec": spec})
    err = dtdctl("fetch", "digits-1", str(tmp_path))[2]
    assert "step 30 is newer and not confirmed: dtdctl fetch digits-1@30" in err


def test_averages_come_along_and_are_what_is_loaded(dtdctl, cluster, files, tmp_path):
    files["ema.safetensors"] = b"averages"
    exit_code, out, err = dtdctl("fetch", "digits-1", str(tmp_path))
    assert exit_code == 0
    averages = tmp_path / "ema.safetensors"
    assert averages.read_bytes() == b"averages"
    loads = f"load_weights(model, '{tmp_path / 'model.safetensors'}', '{averages}')"
    assert out.splitlines()[-1] == loads
    assert f"their averages in {averages}; load the averages with" in err
    shown = json.loads(dtdctl("fetch", "digits-1", str(tmp_path), "-o", "json")[1])
    assert shown["averages"] == str(averages)
    assert shown["load"][-1] == loads
    averages.write_bytes(b"others")
    assert dtdctl("fetch", "digits-1", str(tmp_path))[0] == 2


def test_what_workers_encrypt_is_fetched_encrypted(
    dtdctl, cluster, spec, credential, tmp_path, monkeypatch
):
    called = []

    def tls_connect(context, peer_role):
        called.append((type(context), peer_role))
        return connect_tcp  # the scripted server speaks none

    monkeypatch.setattr("dtd.net.tls_connect.tls_connect", tls_connect)
    spec["sync"] = {"encryption": "tls"}
    assert dtdctl("fetch", "digits-1", str(tmp_path))[0] == 0
    assert called == [(ssl.SSLContext, "worker")]


def test_without_a_credential_no_encrypted_weights_are_fetched(
    dtdctl, cluster, spec, tmp_path, monkeypatch
):
    spec["sync"] = {"encryption": "tls"}
    monkeypatch.setattr("dtd.ctl.settings.SYSTEM_FILE", tmp_path / "none")
    monkeypatch.setattr("dtd.ctl.settings.operator_file", lambda _environ: tmp_path / "none")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    exit_code, _out, err = dtdctl("fetch", "digits-1", str(tmp_path / "weights"))
    assert exit_code == UsageError.exit_code
    assert "digits-1 is encrypted, and this user has no credential" in err
    assert not (tmp_path / "weights" / "model.safetensors").exists()


def test_fetch_waits_for_a_worker_that_starts_afresh(dtdctl, cluster, server, result, tmp_path):
    serving, asked = server.script, []

    def script(message):
        if isinstance(message, m.ListCheckpoints) and len(asked) < 2:
            asked.append(message)
            return result({"checkpoints": [checkpoint(alive=False)], "spec": {}})
        return serving(message)

    server.script = script
    exit_code, _out, err = dtdctl("fetch", "digits-1", str(tmp_path))
    assert (exit_code, len(asked)) == (0, 2)
    assert err.count("waiting for worker-0: a worker restarts after a job") == 1


def test_fetch_asks_again_where_a_worker_is_that_has_just_left(
    dtdctl, cluster, server, result, free_address, tmp_path
):
    """It is listed as there, and its process has ended: the next answer has its new address."""
    serving, asked = server.script, []
    ticket = {"ticket_key": server.secret, "ticket_expires_unix_s": 1 << 40}
    gone = {"data_host": free_address.host, "data_port": free_address.port, **ticket}

    def script(message):
        if isinstance(message, m.ListCheckpoints) and len(asked) < 2:
            asked.append(message)
            return result({"checkpoints": [checkpoint(**gone)], "spec": {}})
        return serving(message)

    server.script = script
    exit_code, _out, err = dtdctl("fetch", "digits-1", str(tmp_path))
    assert (exit_code, len(asked)) == (0, 2)
    assert err.count("cannot be fetched") == 1


def test_fetch_says_at_last_that_nobody_is_there(dtdctl, server, result, monkeypatch):
    monkeypatch.setattr(command, "HOLDERS_BACK_S", 0.0)
    server.script = lambda _message: result({"checkpoints": [checkpoint(alive=False)], "spec": {}})
    exit_code, _out, err = dtdctl("fetch", "digits-1")
    assert exit_code == 1
    assert "no worker that holds the checkpoint of step 20 is connected: worker-0" in err


def test_fetch_goes_to_a_directory_named_after_the_job(dtdctl, cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exit_code, out, _err = dtdctl("fetch", "digits-1", "-o", "json")
    assert exit_code == 0
    assert json.loads(out)["path"] == "digits-1/model.safetensors"
    assert (tmp_path / "digits-1" / "model.safetensors").read_bytes() == WEIGHTS


def test_fetch_again_changes_nothing_and_overwrites_nothing(dtdctl, cluster, tmp_path):
    target = tmp_path / "model.safetensors"
    assert dtdctl("fetch", "digits-1", str(tmp_path))[0] == 0
    assert dtdctl("fetch", "digits-1", str(tmp_path))[0] == 0
    target.write_bytes(b"other")
    exit_code, _out, err = dtdctl("fetch", "digits-1", str(tmp_path))
    assert exit_code == 2
    assert "exists and holds other weights" in err
    assert target.read_bytes() == b"other"


def test_fetch_into_what_is_no_directory(dtdctl, cluster, tmp_path):
    (tmp_path / "file").write_text("")
    exit_code, _out, err = dtdctl("fetch", "digits-1", str(tmp_path / "file" / "deep"))
    assert exit_code == 2
    assert "cannot be created: Not a directory" in err


def test_fetch_fails_when_all_holders_do(
    dtdctl, server, result, free_address, tmp_path, monkeypatch
):
    monkeypatch.setattr(command, "HOLDERS_BACK_S", 0.0)
    ticket = {"ticket_key": server.secret, "ticket_expires_unix_s": 1 << 40}
    away = {"data_host": free_address.host, "data_port": free_address.port, **ticket}
    answer = {"checkpoints": [checkpoint(**away)], "spec": {}}
    server.script = lambda _message: result(answer)
    exit_code, out, err = dtdctl("fetch", "digits-1", str(tmp_path))
    assert (exit_code, out) == (1, "")
    assert "error: checkpoint/digits-1/step-20" in err
    assert list(tmp_path.iterdir()) == []
