"""Follow one job to its end over connections that may break when the coordinator restarts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from dtd.address import SocketPath
from dtd.ctl.pages import pages
from dtd.errors import CoordinatorUnreachable
from dtd.net.control_client import ControlClient
from dtd.wire import messages as m

TEND_S: Final = 0.05
STATUS_S: Final = 0.2

Answer = dict[str, Any]


def submit(address: SocketPath, spec: dict[str, Any]) -> str:
    """Submit a job and return its id."""
    with ControlClient(address) as client:
        job: str = client.request(m.SubmitJob(spec=spec))["job"]
    return job


def unfinished(address: SocketPath, spec: dict[str, Any]) -> str:
    """Id of a job with exactly these settings that has not ended; empty when there is none."""
    with ControlClient(address) as client:
        status = client.request(m.GetStatus())
        active = [status["job"]["id"]] if status["job"] is not None else []
        for job in [*active, *status["queue"]]:
            if client.request(m.ShowJob(job=job))["spec"] == spec:
                return str(job)
    return ""


def identity(address: SocketPath, job: str) -> str:
    """The job's identity."""
    with ControlClient(address) as client:
        return str(client.request(m.ShowJob(job=job))["identity"])


def follow(
    address: SocketPath, job: str, *, on_status: Callable[[Answer], None], tend: Callable[[], None]
) -> Answer:
    """Stay until the job ended and return the answer to WAIT_JOB.

    Args:
        address: the coordinator's socket.
        job: its id.
        on_status: told the status several times a second.
        tend: called more often, also while the coordinator is away; it brings that back.
    """
    next_s = 0.0
    while True:
        tend()
        try:
            with ControlClient(address) as waiting, ControlClient(address) as asking:
                waiting.ask(m.WaitJob(job=job))
                while (answer := waiting.answer(timeout_s=TEND_S)) is None:
                    tend()
                    if time.monotonic() >= next_s:
                        on_status(asking.request(m.GetStatus()))
                        next_s = time.monotonic() + STATUS_S
                return answer
        except CoordinatorUnreachable:
            time.sleep(TEND_S)


def printed_lines(address: SocketPath, job: str) -> list[str]:
    """What the job's own code printed, each line with its rank."""
    with ControlClient(address) as client:
        answers = pages(client.request, lambda after: m.ReadLogs(job=job, after=after), "lines")
        lines = [line for answer in answers for line in answer["lines"]]
    return [f"[{line['rank']} {line['worker']}] {line['text']}" for line in lines]
