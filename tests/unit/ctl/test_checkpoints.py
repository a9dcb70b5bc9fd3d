"""Listing and fetching checkpoints; one scripted server plays coordinator and worker."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch

from dtd.ctl.checkpoints import holders_of, reachable
from dtd.errors import RequestRefused
from dtd.wire import messages as m
from tests.checkpoint_parts import random_state, write_part, write_whole
from tests.shards import held_shards
from tests.unit.ctl.known_checkpoints import KNOWN, checkpoint


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
def test_a_caller_that_holds_what_is_wanted(wanted, step, workers):
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
    """The coordinator's list of a worker's part; each shard is on two workers."""
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
    """A checkpoint saved in parts."""
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
    ticket = {"ticket_key": server.secret, "ticket_expires_s": 1 << 40}
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


def test_a_part_that_is_not_what_was_reported_is_not_taken(dtdctl, parted, state, tmp_path):
    shutil.rmtree(parted[0].parent)
    write_part(tmp_path / "disks" / "w0", state, 2, world_size=WORKERS, mirrors=1)
    exit_code, _out, err = dtdctl("fetch", "digits-1", str(tmp_path / "new"))
    assert exit_code == 0
    assert "has 1/2 to 1 of the shards, and was reported as 0 to 1/2" in err
    assert "merged from the parts of worker-1, worker-3" in err
