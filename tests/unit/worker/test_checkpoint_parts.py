"""Parts of a checkpoint are fetched from other workers and assembled, or it is said why not."""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dtd.checkpoint.assemble import FoundPart
from dtd.checkpoint.format import verify
from dtd.errors import HolderUnreachable
from dtd.net.clients.blocking_link import connect_tcp
from dtd.wire import messages as m
from dtd.worker.control import Requests
from dtd.worker.files import checkpoint_parts as collecting
from dtd.worker.files.checkpoint_parts import ask_for_parts, collect
from tests.checkpoint_parts import random_state, write_part, write_whole
from tests.shards import held_shards

STATE = random_state(11)
NAME = "g000003-s000000040"


class Disks:
    """Workers' disks, in place of their data ports."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.down: set[str] = set()
        self.opened: list[str] = []

    def client(self, address: Any, resource: str, ticket: Any, *, connect: Any) -> DiskClient:
        assert connect is connect_tcp
        worker = resource.split("/")[1]
        assert ticket.scope == resource
        assert ticket.secret == worker.encode()
        self.opened.append(worker)
        if worker in self.down:
            raise HolderUnreachable(f"{worker} cannot be fetched from: it is down")
        return DiskClient(self.place / worker / NAME)


class DiskClient:
    """An open checkpoint."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.manifest = json.loads((path / "manifest.json").read_text())

    def __enter__(self) -> DiskClient:
        return self

    def __exit__(self, *raised: object) -> None:
        """Nothing is open."""

    def fetch(self, name: str, target: Path, *, on_bytes: Any) -> None:
        target.write_bytes((self._path / name).read_bytes())
        on_bytes(1, 1)


@pytest.fixture
def disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disks:
    """Four workers, each with its part; every shard is on two of them."""
    disks = Disks(tmp_path / "disks")
    for rank in range(4):
        write_part(disks.place / f"w{rank}", STATE, rank, world_size=4, mirrors=1)
    monkeypatch.setattr(collecting, "FetchClient", disks.client)
    return disks


def holder(rank: int) -> m.PartHolder:
    return m.PartHolder(
        name=f"w{rank}",
        host="10.0.0.1",
        port=7000,
        resource=f"checkpoint/w{rank}/{NAME}",
        part=tuple(held_shards(rank % 4, 4, 1).to_wire()),
        ticket_expires_s=99,
        ticket_key=f"w{rank}".encode(),
    )


def parts(*ranks: int, digest: str = "ab" * 16, missing: str = "") -> m.Parts:
    holders = tuple(map(holder, ranks))
    return m.Parts(job="parent", step=0, digest=digest, holders=holders, missing=missing)


def collected(disks: Disks, tmp_path: Path, answer: m.Parts) -> Path:
    own = FoundPart(holder="w0", path=disks.place / "w0" / NAME)
    target = tmp_path / "child" / "origin" / "parent"
    return collect(answer, own, target, connect=connect_tcp, progress=lambda: None)


def written_again(disks: Disks, rank: int, *, other: bool = False, **fields: Any) -> None:
    """Another part on a worker's disk, perhaps with another value in what all parts have."""
    shutil.rmtree(disks.place / f"w{rank}")
    seen = {"model.0.seen": torch.tensor(-1)} if other else {}
    state = replace(STATE, tensors={**STATE.tensors, **seen})
    write_part(disks.place / f"w{rank}", state, rank, world_size=4, mirrors=1, **fields)


@pytest.mark.parametrize("wrong", [0, 2])
def test_others_are_taken_for_the_one_of_two_that_differ(
    disks: Disks, tmp_path: Path, wrong: int
) -> None:
    """Nobody knows which one is wrong; it may be the own part."""
    written_again(disks, wrong, other=True)
    path = collected(disks, tmp_path, parts(0, 1, 2, 3))
    whole = write_whole(tmp_path / "whole", STATE)
    assert disks.opened == ["w2", "w1", "w3"]
    assert verify(path).digest == verify(whole).digest
    assert [*path.parent.iterdir()] == [path]


@pytest.mark.parametrize("ranks", [(0,), (2,), (0, 2), (0, 1, 2, 3)])
def test_parts_without_a_digest_complete_a_checkpoint(
    disks: Disks, tmp_path: Path, ranks: tuple[int, ...]
) -> None:
    """They were saved when no ring was left, and the coordinator lists them."""
    for rank in ranks:
        written_again(disks, rank, digest="")
    verify(
        collected(disks, tmp_path, parts(0, 1, 2, 3, digest="" if len(ranks) == 4 else "ab" * 16))
    )
    assert disks.opened == ["w2"]


# --- asking --------------------------------------------------------------------------------------


def test_a_question_is_asked_again_on_a_new_connection() -> None:
    sent: list[m.Message] = []
    asked = threading.Event()

    def post(function: Any, *arguments: Any) -> None:
        function(*arguments)
        asked.set()

    requests = Requests(send=sent.append, post=post)
    requests.ask_again()
    assert sent == []
    answers: list[m.Parts] = []
    thread = threading.Thread(target=lambda: answers.append(ask_for_parts(requests, "parent", 0)))
    thread.start()
    assert asked.wait(10.0)
    requests.ask_again()
    assert sent == [m.GetParts(job="parent", step=0)] * 2
    requests.received(m.Parts(job="other", step=0))
    requests.received(parts(0))
    requests.received(parts(1))  # the answer to the second question
    thread.join(10.0)
    assert answers == [parts(0)]
    requests.ask_again()
    assert len(sent) == 2


def test_workers_that_come_back_are_waited_for() -> None:
    now = [0.0]
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        now[0] += seconds

    def answered(after: int) -> m.Parts:
        """Ask a coordinator that lacks a worker until it was asked so often."""
        asked: list[m.Message] = []

        def send(message: m.Message) -> None:
            asked.append(message)
            missing = "" if len(asked) > after else "1/2 to 1, which were on w1"
            requests.received(parts(0, missing=missing))

        requests = Requests(send=send, post=lambda function, *a: function(*a))
        return ask_for_parts(requests, "parent", 0, clock=lambda: now[0], wait=wait)

    assert answered(3) == parts(0)
    assert waited == [collecting.ASK_EVERY_S] * 3
    assert answered(1000).missing
    assert now[0] == 3 + collecting.PARTS_BACK_S
