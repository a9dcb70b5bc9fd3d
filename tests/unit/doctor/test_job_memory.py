"""The doctor's report of the memory of hosts."""

from __future__ import annotations

from dtd.doctor.job_memory import check_memory
from dtd.job import parse_job

JOB = '[job]\nname = "a"\ntask = "digits"\nsteps = 3\nglobal_batch_size = 16\n'
GIB = 1 << 30
STATE = {"parameter_bytes": GIB, "common_bytes": 0, "optimizer_bytes": 2 * GIB}
PARTS = {"parameters": GIB, "buckets": GIB, "optimizer": 2 * GIB, "activations": 2 * GIB}


def findings(*available_gib, places="hh", overrides=()):
    names = [f"w{rank}" for rank in range(len(available_gib))]
    needs = [
        {"worker": name, "place": place, "parts": PARTS, "available_bytes": int(gib * GIB)}
        for name, place, gib in zip(names, places, available_gib, strict=False)
    ]
    steps = {name: {"state": STATE} for name in names}
    spec = parse_job(JOB, source="test", overrides=overrides)
    return list(check_memory(needs, steps, spec))


def test_workers_that_share_a_host_share_its_memory():
    (found,) = findings(11.5, 11)
    assert found.state == "warn"
    assert found.message == (
        "2 workers on h will need 12.0 GiB of 11.0 GiB: 1.0 GiB are missing, most is used by"
        " optimizer"
    )
    assert found.remedy.startswith("it fits with [train] grad_accumulation = 2 (5.0 GiB each); or ")
    assert [one.state for one in findings(12, 13)] == ["ok"]
    assert [one.state for one in findings(6, 6, places="hg")] == ["ok", "ok"]


def test_settings_of_other_strategies_are_not_named():
    local = ("strategy.name='local_sgd'", "strategy.inner_steps=2")
    (found,) = findings(9, 9, overrides=local)
    assert "stage" not in found.remedy
    (sharded,) = findings(9, 9, overrides=("strategy.name='sharded'", "strategy.mirrors=0"))
    assert "stage = 1" not in sharded.remedy, "the job's own"
    assert "stage = 2" in sharded.remedy


def test_nothing_reckoned_is_enough():
    (found,) = findings(1, 1)
    assert found.remedy.startswith("set train.activation_checkpointing and examine again, ")
    (found,) = findings(1, 1, overrides=("train.activation_checkpointing=true",))
    assert found.remedy.startswith("lower job.global_batch_size")
