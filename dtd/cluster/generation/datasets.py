"""The data of a job on their way to its workers: which data they are, and which workers have them.

A job file names paths.  The first worker that has something at such a path determines the digest of
these data, which the job keeps.  A worker with other data there is set aside, and one without any
fetches them from workers that have all or some.

Part of the membership machine.
"""

from __future__ import annotations

from typing import NamedTuple

from dtd.cluster.events import SaveJob
from dtd.cluster.records import Job, Worker
from dtd.cluster.state import ClusterState
from dtd.cluster.transitions import GONE
from dtd.text.names import natural_key
from dtd.text.shown import shown_bytes
from dtd.wire import messages as m


class Sources(NamedTuple):
    """Answer to a worker's GET_DATA.

    Attributes:
        digest: of the data; empty while no worker has had them.
        share, shares: the part that it fetches first.
        workers: those that have all of the data, then those that have some.
    """

    digest: str
    share: int
    shares: int
    workers: tuple[Worker, ...]


NOTHING = Sources("", 0, 1, ())


def reported(cluster: ClusterState, job: Job, worker: Worker, message: m.GetData) -> None:
    """A worker says what it has of some data; the first one that has all determines them."""
    name = message.name
    if name not in job.spec.get("data", {}):
        return
    worker.data[name] = message
    if is_complete(message) and name not in job.data:
        job.data = {**job.data, name: message.digest}
        cluster.emit(SaveJob(job=job))


def sources(cluster: ClusterState, asks: str, name: str) -> Sources:
    """Return the workers that one may ask for data of its job."""
    job = cluster.job
    if job is None:
        return NOTHING
    here = [one for one in _present(cluster) if name in one.data]
    fetching = [one.name for one in here if not is_complete(one.data[name])]
    digest = job.data.get(name, "")
    have = [one for one in here if digest and one.data[name].digest == digest and one.name != asks]
    share = fetching.index(asks) if asks in fetching else 0
    have.sort(key=lambda one: not is_complete(one.data[name]))
    return Sources(digest, share, max(1, len(fetching)), tuple(have))


def is_complete(message: m.GetData) -> bool:
    """Whether a worker has all of these data; one that fetches names no digest before the size."""
    return bool(message.digest) and message.have_bytes == message.size_bytes


def explain(cluster: ClusterState, job: Job) -> str:
    """Return what workers wait for that have not got all data, in words; empty without any."""
    said = []
    for name, path in job.spec.get("data", {}).items():
        waits = [one for one in _present(cluster) if name in one.data]
        waits = [one for one in waits if not is_complete(one.data[name])]
        if not waits:
            continue
        if name not in job.data:
            said.append(f"data {name}: no worker has reported anything at {path} yet")
            continue
        said.append(f"data {name}: {', '.join(_progress(one, name) for one in waits)}")
    return "; ".join(said)


def _progress(worker: Worker, name: str) -> str:
    told = worker.data[name]
    if not told.digest:
        return f"{worker.name} begins"
    return f"{worker.name} has {shown_bytes(told.have_bytes)} of {shown_bytes(told.size_bytes)}"


def _present(cluster: ClusterState) -> list[Worker]:
    here = [one for one in cluster.workers.values() if one.state not in GONE]
    return sorted(here, key=lambda one: natural_key(one.name))
