"""Operators' requests: the handler of each, and the answers of those that change nothing.

Requests on one connection are answered in order, one RESULT (or ERROR) each.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

import msgpack

from dtd import diagnostics
from dtd.cluster.generation.checkpoints import VERIFIED
from dtd.cluster.status import standing
from dtd.coordinator.coordinator import Coordinator
from dtd.coordinator.core import Core, checkpoint_resource
from dtd.coordinator.handlers import credentials
from dtd.coordinator.handlers import jobs as job_requests
from dtd.coordinator.services.audit import Caller
from dtd.errors import RequestRefused
from dtd.net.link import Link
from dtd.observe.comparison import MOST_POINTS, MOST_RUNS, Run, compare
from dtd.observe.metrics.worker import next_in_ring
from dtd.wire import messages as m

STEP_TIMES: Final = ("step_s", "data_s", "compute_s", "exposed_s", "optimizer_s", "own_s")


async def status(core: Core, _caller: Caller, _request: m.GetStatus) -> dict[str, Any]:
    """Answer GET_STATUS."""
    membership, now = core.membership, time.monotonic()
    found = [one for cluster in membership.clusters() for one in standing(cluster)]
    failures = [failure for one in core.complaints if (failure := one())]
    found += [diagnostics.disk("the coordinator", failure) for failure in failures[:1]]
    core.diagnostics.stand(found, now)
    return core.status(
        membership.clusters(),
        explain=membership.explain(),
        last_job=core.last_job,
        diagnostics=core.diagnostics.listing(now),
        explanations=membership.explanations(),
        explain_queue=membership.explain_queue(),
        allotments=membership.allotments(),
    )


async def figures(core: Core, _caller: Caller, request: m.GetFigures) -> dict[str, Any]:
    """Answer GET_FIGURES: the last heartbeats of the workers of a job."""
    pools = core.membership
    cluster = pools.cluster_with(request.job) if request.job else pools.cluster
    known = request.job or (cluster.job.id if cluster.job is not None else "")
    beats = {worker.name: worker.liveness.heartbeat for worker in cluster.workers.values()}
    heard = {name: beat for name, beat in beats.items() if beat is not None}
    return {
        "job": known,
        "workers": [
            {"name": name, **{key: getattr(beat, key) for key in STEP_TIMES}}
            for name, beat in heard.items()
            if beat.step_s > 0
        ],
        "links": _links(heard, cluster.run.roster),
    }


def _links(beats: Mapping[str, m.Heartbeat], roster: Sequence[str]) -> list[dict[str, Any]]:
    """Return each rank's figures of the link to the next one."""
    return [
        {
            "from": name,
            "to": to,
            "rtt_s": beats[name].rtt_s,
            "bytes_per_s": beats[name].link_bytes_per_s,
            "sent_bytes": beats[name].sent_bytes,
            "plain_bytes": beats[name].plain_bytes,
        }
        for name in roster
        if (to := next_in_ring(roster, name)) and name in beats
    ]


async def metrics(
    coordinator: Coordinator, _caller: Caller, request: m.GetMetrics
) -> dict[str, Any]:
    """Answer GET_METRICS."""
    await coordinator.known_job(request.job)
    return await coordinator.history.answer(request)


async def jobs(core: Core, _caller: Caller, request: m.ListJobs) -> dict[str, Any]:
    """Answer LIST_JOBS."""
    return {"jobs": await core.in_store(core.store.jobs, request.tag)}


async def job(core: Core, _caller: Caller, request: m.ShowJob) -> dict[str, Any]:
    """Answer SHOW_JOB: stored details, with those that only memory has while the job is active."""
    details = await _details(core, request.job)
    found = await core.in_store(core.store.checkpoints, request.job)
    active = core.membership.cluster_with(request.job).job
    if active is not None and active.id == request.job:
        details |= {
            "step": active.step,
            "epoch": active.epoch,
            "metrics": dict(active.metrics),
            "skipped_steps": active.skipped_steps,
        }
    return {**details, "checkpoints": [_checkpoint(core, one, ticket=False) for one in found]}


async def compare_jobs(
    coordinator: Coordinator, _caller: Caller, request: m.CompareJobs
) -> dict[str, Any]:
    """Answer COMPARE_JOBS; made in a thread, since there may be thousands of points."""
    ids = tuple(dict.fromkeys(request.jobs))
    if not 2 <= len(ids) <= MOST_RUNS:
        raise RequestRefused(
            f"a comparison is of 2 to {MOST_RUNS} different jobs, not {len(ids)}",
            remedy="name them by their ids: dtdctl compare JOB JOB; see `dtdctl jobs`",
        )
    points = max(2, min(request.points, MOST_POINTS))
    runs = []
    for job_id in ids:
        details = await _details(coordinator, job_id)
        found = await coordinator.history.answer(m.GetMetrics(job=job_id, points=points))
        runs.append(Run(details=details, series=found["series"]))
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(None, compare, runs, request.names)


async def submit(coordinator: Coordinator, _caller: Caller, request: m.SubmitJob) -> dict[str, Any]:
    """Answer SUBMIT_JOB; with the job's place on the web page, if one is served."""
    answer = await job_requests.submit(coordinator, request)
    return {**answer, "page": coordinator.web.job_url(answer["job"])}


async def logs(core: Core, _caller: Caller, request: m.ReadLogs) -> dict[str, Any]:
    """Answer READ_LOGS: a page of a job's output."""
    await core.known_job(request.job)
    lines = await core.after_lines(core.store.lines, request.job, request.after)
    return {"lines": lines, "next": lines[-1]["seq"] if lines else request.after}


async def events(core: Core, _caller: Caller, request: m.ReadEvents) -> dict[str, Any]:
    """Answer READ_EVENTS: a page of incidents, or the next one when it happens."""
    while True:
        news = core.news
        found = await core.in_store(core.store.events, request.after)
        if found or not request.follow:
            return {"events": found, "next": found[-1]["seq"] if found else request.after}
        await news.wait()


async def audit(core: Core, _caller: Caller, request: m.ReadAudit) -> dict[str, Any]:
    """Answer READ_AUDIT."""
    return await core.audit.read(request)


async def checkpoints(core: Core, _caller: Caller, request: m.ListCheckpoints) -> dict[str, Any]:
    """Answer LIST_CHECKPOINTS."""
    found = await core.in_store(core.store.checkpoints, request.job)
    listed = [_checkpoint(core, one, ticket=request.tickets) for one in found]
    answer: dict[str, Any] = {"checkpoints": listed}
    if request.job:
        answer["spec"] = (await core.known_job(request.job))["spec"]
    return answer


async def _details(core: Core, job_id: str) -> dict[str, Any]:
    """Everything that is written down about one job; raises RequestRefused if there is none."""
    await core.known_job(job_id)
    details = await core.after_lines(core.store.job_details, job_id)
    assert details is not None, "it was there a moment ago, and only this loop deletes jobs"
    return details


def _checkpoint(core: Core, found: dict[str, Any], *, ticket: bool) -> dict[str, Any]:
    holder, resource = found["worker"], checkpoint_resource(found["directory"])
    worker = core.membership.cluster_of(holder).workers.get(holder)
    alive = holder in core.links.names()
    _, folder, name = resource.split("/")
    shown: dict[str, Any] = {}
    if ticket and alive:
        source = core.source(holder, resource)
        shown = {"ticket_expires_s": source.ticket_expires_s, "ticket_key": source.ticket_key}
    return {
        **found,
        **shown,
        "name": name,
        "folder": folder,
        "verified": found["confirmation"] == VERIFIED,
        "alive": alive,
        "data_host": worker.registration.data_host if worker is not None else "",
        "data_port": worker.registration.data_port if worker is not None else 0,
        "data_others": list(worker.registration.others) if worker is not None else [],
    }


# --- all requests --------------------------------------------------------------------------------


Handler = Callable[[Coordinator, Caller, Any], Coroutine[Any, Any, dict[str, Any]]]

HANDLERS: Final[Mapping[type[m.Message], Handler]] = {
    m.GetStatus: status,
    m.GetFigures: figures,
    m.GetMetrics: metrics,
    m.ListJobs: jobs,
    m.ShowJob: job,
    m.CompareJobs: compare_jobs,
    m.ReadLogs: logs,
    m.ReadEvents: events,
    m.ReadAudit: audit,
    m.ListCheckpoints: checkpoints,
    m.SubmitJob: submit,
    m.WaitJob: job_requests.wait,
    m.CancelJob: job_requests.cancel,
    m.ResumeJob: job_requests.resume,
    m.KillWorker: job_requests.kill,
    m.DrainWorker: job_requests.drain,
    m.AnnotateJob: job_requests.annotate,
    m.Delete: lambda coordinator, _, request: coordinator.deletions.delete(request),
    m.Examine: lambda coordinator, _, request: coordinator.broker.examine(request),
    m.Profile: lambda coordinator, _, request: coordinator.profiles.profile(request),
    m.OpenWeb: lambda coordinator, caller, _: coordinator.web.open(caller),
    m.ListModels: lambda coordinator, _, request: coordinator.models.listed(request),
    m.RegisterModel: lambda coordinator, caller, request: coordinator.models.register(
        request, _named(caller)
    ),
    m.AliasModel: lambda coordinator, _, request: coordinator.models.alias(request),
    m.DescribeModel: lambda coordinator, _, request: coordinator.models.describe(request),
    m.CopyModel: lambda coordinator, _, request: coordinator.models.copy(request),
    m.DeleteModel: lambda coordinator, _, request: coordinator.models.delete(request),
    m.BeginSweep: lambda coordinator, _, request: coordinator.sweeps.begin(request),
    m.CancelSweep: lambda coordinator, _, request: coordinator.sweeps.cancel(request.sweep),
    m.ShowSweep: lambda coordinator, _, request: coordinator.sweeps.show(request.sweep),
    m.ListSweeps: lambda coordinator, _caller, _request: coordinator.sweeps.listing(),
    m.CreateToken: credentials.create_token,
    m.ListTokens: credentials.list_tokens,
    m.RevokeToken: credentials.revoke_token,
    m.ListCredentials: credentials.list_credentials,
    m.RevokeCredential: credentials.revoke,
    m.ShowAuthority: credentials.show_authority,
}
"""The handler of each request; PUT_PACKAGE alone has a payload.

What a handler refuses it raises as a DtdError, mostly RequestRefused; the caller is told the reason
and the remedy.
"""

CTL_REQUESTS: Final[tuple[type[m.Message], ...]] = (m.PutPackage, *HANDLERS)


def ask(coordinator: Coordinator, link: Link, request: m.Message, payload: memoryview) -> None:
    """Answer a request in its turn; the payload is copied."""
    coordinator.check_request(link, request)
    content = bytes(payload)

    async def answer() -> None:
        result = await carry_out(coordinator, link, request, content)
        due = coordinator.renewals.is_due(link)
        link.send(m.Result(renew=due), msgpack.packb(result, use_bin_type=True))

    coordinator.answers.begin(link, request, answer)


async def carry_out(
    coordinator: Coordinator, caller: Caller, request: m.Message, payload: bytes = b""
) -> dict[str, Any]:
    """Perform a permitted request, and enter it if it changes something."""
    if isinstance(request, m.PutPackage):
        work = functools.partial(coordinator.transfer_of(request).put, request, payload)
    else:
        work = functools.partial(HANDLERS[type(request)], coordinator, caller, request)
    return await coordinator.audit.around(
        caller, request, work, payload_bytes=len(payload), told=dict
    )


def _named(caller: Caller) -> str:
    """Return the caller's name in the audit log."""
    who = caller.identity
    return f"{who.role}/{who.name}" if who is not None else ""
