"""Chaos runs' reading of logs: outcomes and checks."""

from __future__ import annotations

import pytest

from scripts.chaosrun import judge
from scripts.chaosrun.judge import Injection, outcomes
from scripts.cluster.log_timeline import Commit, Line
from scripts.cluster.networked import Death

STEP_S = 0.1


def line(daemon, at_s, event, **fields):
    return Line(daemon=daemon, at_s=at_s, event=event, fields=fields)


def commit(at_s, worker="worker-0", *, step, generation=1, loss=0.5, job="chaos-1"):
    return Commit(
        at_s=at_s,
        worker=worker,
        job=job,
        generation=generation,
        step=step,
        loss=loss,
        grad_norm=1.0,
        step_s=STEP_S,
    )


def injected(kind="kill", *victims, at_s=10.0, **fields):
    values = {"generation": 1, "over_s": at_s, "back_s": at_s + 5.0, **fields}
    return Injection(kind=kind, victims=victims or ("worker-1",), at_s=at_s, **values)


# --- outcomes ----------------------------------------------------------------------------------


def judged(injection, commits, decisions, quiet=()):
    (outcome,) = outcomes([injection], commits, decisions, quiet=quiet)
    return outcome


def test_a_bad_link_names_both_ends_and_lost_steps_are_counted():
    decisions = [
        line("coordinator", 11.0, "link_bad", message="worker-0 and worker-1 live and cannot"),
        line("coordinator", 11.1, "steps_lost", steps_lost=3),
    ]
    outcome = judged(injected("link", "worker-0", "worker-1"), [], decisions)
    assert outcome.evicted_s == pytest.approx(1.0)
    assert outcome.steps_lost == 3
    assert outcome.recovered_s is None


# --- checks ------------------------------------------------------------------------------------


def job(**changes):
    result = {
        "replica_digests": {"worker-0": "a", "worker-1": "a"},
        "rows_missing": 0,
        "rows_repeated": 0,
    }
    values = {"id": "chaos-1", "state": "done", "reason": "", "result": result | changes}
    return values | {key: changes[key] for key in ("state", "reason") if key in changes}


def test_digests_and_every_steps_loss_are_compared():
    twins = [commit(1.0, step=1), commit(1.0, "worker-1", step=1)]
    assert judge.replicas_equal([job()], twins, []).holds
    other = job(replica_digests={"worker-0": "a", "worker-1": "b"})
    assert not judge.replicas_equal([other], twins, []).holds
    odd = [*twins, commit(1.0, "worker-2", step=1, loss=0.6)]
    (failure,) = judge.replicas_equal([job()], odd, []).failures
    assert "worker-2" in failure


def test_a_peer_that_is_innocent_must_not_suffer():
    def verdict(**what):
        values = {"deaths": [], "decisions": [], "lives": []} | what
        return judge.only_victims_suffer([injected(pids={17})], **values)

    death = Death(name="worker-1", pid=17, at_s=10.0, exit_code=-9)
    assert verdict(deaths=[death]).holds
    assert not verdict(deaths=[Death(name="worker-1", pid=18, at_s=10.0, exit_code=1)]).holds
    lost = [line("coordinator", 10.1, "worker_lost", worker="worker-1")]
    assert verdict(decisions=lost).holds
    innocent = [line("coordinator", 10.1, "worker_lost", worker="worker-2")]
    assert not verdict(decisions=innocent).holds
    late = [line("coordinator", 99.0, "worker_lost", worker="worker-1")]
    assert not verdict(decisions=late).holds


@pytest.mark.parametrize(
    ("daemon", "fields", "holds"),
    [
        ("worker-2", {"how": "restart", "reason": "job chaos-1 is done"}, True),
        ("worker-2", {"how": "exit", "reason": "SIGTERM"}, True),
        ("worker-1", {"how": "restart", "reason": "job chaos-1 is evicted"}, True),
        ("worker-2", {"how": "restart", "reason": "job chaos-1 is evicted"}, False),
    ],
)
def test_only_victims_start_afresh_in_the_middle_of_a_job(daemon, fields, holds):
    lives = [line(daemon, 11.0, "worker_ends", **fields)]
    assert judge.only_victims_suffer([injected()], [], [], lives).holds is holds
