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


def test_a_kill_is_detected_and_recovered_from_in_a_newer_generation():
    commits = [
        commit(9.9, step=5),
        commit(10.05, step=6),
        commit(10.3, "worker-1", step=7, generation=2),
        commit(10.4, step=7, generation=2),
    ]
    decisions = [
        line("coordinator", 9.0, "worker_lost", worker="worker-1"),
        line("coordinator", 10.01, "generation_ending"),
        line("coordinator", 10.02, "worker_lost", worker="worker-2"),
        line("coordinator", 10.03, "worker_lost", worker="worker-1", message="it is gone"),
    ]
    outcome = judged(injected(), commits, decisions)
    assert outcome.detected_s == pytest.approx(0.01)
    assert outcome.evicted_s == pytest.approx(0.03)
    assert outcome.reason == "it is gone"
    assert outcome.recovered_s == pytest.approx(0.4 - STEP_S)
    assert outcome.steps_lost == 0


def test_a_generation_that_ends_for_other_reasons_is_no_detection():
    joins = [line("coordinator", 11.0, "generation_ending", message="ends: worker-9 joins")]
    assert judged(injected(), [], joins).detected_s is None
    ending = [line("coordinator", 11.0, "generation_ending")]
    assert judged(injected("slow"), [], ending, quiet={"slow"}).detected_s is None
    two = [injected(), injected("kill", "worker-2", at_s=10.5)]
    first, second = outcomes(two, [], ending, quiet=())
    assert first.detected_s is None
    assert second.detected_s == pytest.approx(0.5)


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


def test_a_step_may_differ_only_across_a_total_outage():
    again = [commit(1.0, step=1), commit(3.0, step=1, generation=2, loss=0.6)]
    assert not judge.replicas_equal([job()], again, []).holds
    outage = injected("all", "worker-0", at_s=2.0)
    assert judge.replicas_equal([job()], again, [outage]).holds
    assert not judge.steps_kept(again, [], []).holds
    assert judge.steps_kept(again, [], [outage]).holds


def test_stalls_are_seen_between_steps_of_one_job_and_at_the_end():
    steady = [commit(0.0, step=1), commit(9.0, step=2), commit(30.0, step=1, job="chaos-2")]
    assert judge.no_long_stall(steady, [], until_s=31.0).holds
    assert judge.longest_stall_s(steady, []) == 9.0
    assert not judge.no_long_stall(steady, [], until_s=50.0).holds
    slow = [commit(0.0, step=1), commit(11.0, step=2)]
    assert not judge.no_long_stall(slow, [], until_s=11.0).holds
    assert judge.no_long_stall(slow, [injected("all", at_s=1.0)], until_s=11.0).holds


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
