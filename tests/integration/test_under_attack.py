"""The attackers of scripts/under_attack, all at once, at a coordinator whose job waits."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pytest

from dtd.job import parse_job, to_mapping
from dtd.wire import messages as m
from scripts.cluster.cluster import Cluster
from scripts.cluster.processes import Child, stop_all
from scripts.underattack.__main__ import GROWTH_BYTES, JOB, MEMBER, VIEWER

pytestmark = pytest.mark.integration

PROMPT_S = 15.0
"""It takes some tenths of a second, on a busy machine some seconds; whoever is not protected from
these attackers waits for as long as they go on."""

LOOKS = 20
LOOK_EVERY_S = 0.05


@pytest.fixture
def coordinator(tmp_path) -> Iterator[Cluster]:
    callers = [("worker", MEMBER), ("viewer", VIEWER), ("viewer", "victim")]
    made = Cluster(tmp_path, environment={"HOME": str(tmp_path)})
    made.enrol(callers)
    try:
        made.start_coordinator()
        yield made
    finally:
        made.stop()


@pytest.fixture
def attackers(coordinator, tmp_path) -> Iterator[list[Child]]:
    at, path = str(coordinator.address), coordinator.credential_path
    made = [
        Child(words[0], [sys.executable, "-m", "scripts.underattack.attackers", *words], log)
        for words, log in (
            (["half-open", at], tmp_path / "half-open.log"),
            (["member", at, str(path(MEMBER)), MEMBER], tmp_path / "member.log"),
            (["viewer", at, str(path(VIEWER))], tmp_path / "viewer.log"),
        )
    ]
    yield made
    stop_all(made, grace_s=0.0)


def test_an_operator_works_while_all_attack_at_once(coordinator, attackers):
    with coordinator.client() as standing:
        standing.request(m.SubmitJob(spec=to_mapping(parse_job(JOB, source="test"))))
        before = coordinator.resident_bytes()
        for attacker in attackers:
            attacker.start()
        seen, refused, flooded = 0, False, False
        while not (refused and flooded):
            page = standing.request(m.ReadEvents(after=seen, follow=True))
            seen = page["next"]
            flooded = flooded or any(one["kind"] == "share_exceeded" for one in page["events"])
            diagnostics = standing.request(m.GetStatus())["troubles"]
            refused = refused or any(
                "had not authenticated" in one["message"] for one in diagnostics
            )
        for _ in range(LOOKS):
            begun_s = time.monotonic()
            coordinator.ask(m.GetStatus())
            assert time.monotonic() - begun_s < PROMPT_S
            assert coordinator.children["coordinator"].wait(LOOK_EVERY_S) is None
        begun_s = time.monotonic()
        coordinator.ask(m.RevokeCredential(name="victim"))
        assert time.monotonic() - begun_s < PROMPT_S
    assert coordinator.resident_bytes() - before < GROWTH_BYTES
    for attacker in attackers:
        assert attacker.exit_code() is None, attacker.log_tail()
