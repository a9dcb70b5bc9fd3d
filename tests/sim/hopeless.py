"""Plans that leave nobody who could continue: then a job rightly waits for people.

After the last fault every worker is started again, but some can never train: their data or their
task's code is faulty, or an administrator has stopped them for good.  What the coordinator says
must then name what is lacking, and each worker that is present and cannot train.
"""

from __future__ import annotations

from dtd.cluster.records import Job
from tests.sim.machines import Machines


def rightly_waits(machines: Machines, job: Job) -> bool:
    """Whether those that are left cannot train a job, and the coordinator names the lack."""
    if machines.coordinator is None:
        return False
    said = machines.coordinator.membership.explanations().get(job.id, "")
    servers, joined = machines.surroundings.servers, machines.surroundings.joined
    whose = job.id if job.terms.by_hand else ""
    running = {name for name in machines.running() if joined.get(name, "") == whose}
    unfit = (machines.datasets.keys() | machines.failing.keys()) & running - servers
    least = int(job.spec["elastic"]["min_workers"])
    if len(running - servers - unfit) < least:
        named = all(f"{name} is refused: " in said for name in unfit)
        return named and f"ready, {least} needed" in said
    lacks_server = job.terms.has_servers and not running & servers
    return lacks_server and "start one with `dtd-worker --role server`" in said
