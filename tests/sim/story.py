"""Stories: a script of a cluster and its faults, and below a rule the events that follow.

    # Why the story is worth telling.
    cluster seed=7 workers=3 evaluate_s=600 store_s=3,6
    submit steps=12 buckets=40,7 min_workers=2
    misfit worker-3
    failing worker-2 step=5
    broken worker-1 until_s=9.0
    at 3.0 crash worker-2
    at 5.0 restart worker-2
    when rank=1 step=9 phase=all_gather crash
    --------
        0.020  job job-1 begins to warm up
        ...

Running a story again must reproduce its text exactly.
"""

from __future__ import annotations

from typing import Any, Final

from dtd.errors import UsageError
from tests.sim.cluster import Cluster
from tests.sim.faults import VERBS
from tests.sim.phases import Phase
from tests.sim.surroundings import Pace

RULE: Final = "-" * 8
PATIENCE_S: Final = 10_000.0
"""Limit in the story's virtual time; some stories take long."""


def tell(text: str) -> str:
    """Run a story: returns its script and the events; the text below the rule is ignored.

    Raises:
        UsageError: a line of the script is not understood.
    """
    script = text.partition(f"{RULE}\n")[0]
    cluster = _cluster(script).run(patience_s=PATIENCE_S)
    return "\n".join([script + RULE, *cluster.story, _ending(cluster), ""])


def _ending(cluster: Cluster) -> str:
    jobs = [
        f"{job.id} is {job.state.value} at step {job.step}, {job.steps_lost} steps lost"
        for job in cluster.oracle.ended_jobs.values()
    ]
    workers = [f"{name} is {state}" for name, state in cluster.workers_state().items()]
    return f"{cluster.now_s:9.3f}  {'; '.join(jobs)}; {', '.join(workers) or 'no worker is left'}"


def _cluster(script: str) -> Cluster:
    cluster: Cluster | None = None
    for number, line in enumerate(script.splitlines(), 1):
        words = line.partition("#")[0].split()
        try:
            if words and cluster is None:
                cluster = _begin(words)
            elif words and cluster is not None:
                _plan(cluster, words)
        except (KeyError, ValueError, IndexError, TypeError) as error:
            raise UsageError(f"line {number} of the story is not understood: {line}") from error
    if cluster is None:
        raise UsageError("the story has no cluster", remedy="begin with: cluster seed=1 workers=2")
    return cluster


def _begin(words: list[str]) -> Cluster:
    """Parse the cluster line; a duration is one number, or the least and the most."""
    values = dict(word.split("=") for word in words[1:])
    seed, workers = int(values.pop("seed")), int(values.pop("workers"))
    limits = {what: [float(value) for value in one.split(",")] for what, one in values.items()}
    pace = Pace(**{what: (some[0], some[-1]) for what, some in limits.items()})
    return Cluster(seed, workers=workers, pace=pace)


def _plan(cluster: Cluster, words: list[str]) -> None:
    if words[0] == "submit":
        cluster.submit(**_values(words[1:]))
    elif words[0] == "misfit":
        cluster.misfit(words[1])
    elif words[0] in ("failing", "broken"):
        getattr(cluster, words[0])(words[1], **_values(words[2:]))
    elif words[0] == "at" and words[2] in VERBS:
        cluster.do(words[2], *words[3:], at_s=float(words[1]))
    elif words[0] == "when":
        _lay(cluster, words[1:])
    else:
        raise KeyError(words[0])


def _lay(cluster: Cluster, words: list[str]) -> None:
    conditions = [word for word in words if "=" in word]
    verb, *whom = words[len(conditions) :]
    values = _values(conditions)
    phase, step = values.pop("phase"), values.pop("step", None)
    if verb not in VERBS:
        raise KeyError(verb)
    cluster.when(verb, *whom, **values).at(phase=phase, step=step)


def _values(words: list[str]) -> dict[str, Any]:
    return {key: _value(key, value) for key, _, value in (word.partition("=") for word in words)}


def _value(key: str, value: str) -> Any:
    if key == "buckets":
        return [int(elements) for elements in value.split(",")]
    if key in ("phase", "name") or (key == "workers" and "-" in value):
        return Phase(value) if key == "phase" else value
    return float(value) if key.endswith("_s") else int(value)
