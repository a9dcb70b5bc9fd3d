"""The launcher's cluster on this machine, and the job that it follows to its end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from dtd.address import Address
from dtd.ctl.answers import pages
from dtd.errors import CoordinatorUnreachable
from dtd.wire import messages as m
from scripts.cluster.cluster import START_S, Cluster, with_log
from scripts.cluster.networks import COORDINATOR
from scripts.cluster.processes import EX_CONFIG, Child, RestartPolicy, exit_words

TEND_S: Final = 0.05
STATUS_S: Final = 0.2

Say = Callable[[str], None]
Answer = dict[str, Any]


class LocalCluster(Cluster):
    """The daemons of one local run, which call each other at the coordinator's socket."""

    def __init__(
        self,
        *,
        directory: Path,
        workers: int,
        device: str,
        say: Say,
        listen: Address | None = None,
        servers: int = 0,
        web: Address | None = None,
    ) -> None:
        super().__init__(directory)
        self._say = say
        self._device = device
        self._workers = [f"worker-{index}" for index in range(workers)]
        self._servers = [f"server-{index}" for index in range(servers)]
        self._listen = listen
        self._web = web
        self._policies: dict[str, RestartPolicy] = {}
        self._given_up: set[str] = set()

    def state_dir(self, name: str) -> Path:
        """The coordinator's is the run's directory itself."""
        return self.directory if name == COORDINATOR else super().state_dir(name)

    def start_all(self) -> None:
        """Start all daemons and wait until every worker is registered.

        Raises:
            DtdError: one of them died or was too slow; the end of its log is in the message.
        """
        deadline_s = time.monotonic() + START_S
        at = self.address
        listen = ("--listen", str(self._listen)) if self._listen is not None else ()
        web = ("--web", str(self._web)) if self._web is not None else ()
        coordinator = self.start_coordinator(*listen, *web)
        self.address, self.operator = at, None  # from here the socket is enough
        for name in self._workers:
            self.start_worker(name, "--device", self._device)
        for name in self._servers:
            self.start_worker(name, "--role", "server")
        try:
            self.await_registered([*self._workers, *self._servers], deadline_s - time.monotonic())
        except CoordinatorUnreachable as error:
            raise with_log(coordinator, error.message) from None

    def restart_after_s(self, child: Child, exit_code: int, lived_s: float) -> float:
        """Return the delay of the restart policy.

        Raises:
            DtdError: the coordinator or the last worker is gone for good.
        """
        policy = self._policies.setdefault(child.name, RestartPolicy())
        now_s = time.monotonic()
        due_s = policy.next_start_s(exit_code, now_s, lived_s=lived_s)
        if due_s is not None:
            self._say(f"{child.name} {exit_words(exit_code)}; it is started again")
            return due_s - now_s
        self._given_up.add(child.name)
        why = {0: "left in good order", EX_CONFIG: "is configured wrongly"}
        self._say(f"{child.name} {why.get(exit_code, 'died too often')}; it is not started again")
        if child.name == COORDINATOR or self._given_up >= set(self._workers):
            raise with_log(child, f"{child.name} {exit_words(exit_code)} and is the last one")
        return math.inf

    def web_page(self) -> tuple[str, str]:
        """Return the web page's URL, and the same with a code to log in once; empty without one."""
        if self._web is None:
            return "", ""
        answer = self.ask(m.OpenWeb())
        return answer["url"], f"{answer['url']}#login={answer['code']}"

    # --- the job, followed over connections that break when the coordinator restarts ----------

    def submit(self, spec: dict[str, Any]) -> str:
        return str(self.ask(m.SubmitJob(spec=spec))["job"])

    def unfinished(self, spec: dict[str, Any]) -> str:
        """Id of a job with exactly these settings that has not ended; empty if there is none."""
        with self.client() as client:
            status = client.request(m.GetStatus())
            active = [status["job"]["id"]] if status["job"] is not None else []
            for job in [*active, *status["queue"]]:
                if client.request(m.ShowJob(job=job))["spec"] == spec:
                    return str(job)
        return ""

    def identity(self, job: str) -> str:
        return str(self.ask(m.ShowJob(job=job))["identity"])

    def follow(self, job: str, on_status: Callable[[Answer], None]) -> Answer:
        """Stay until the job ended, start again what dies, and return the answer to WAIT_JOB.

        Raises:
            DtdError: as `tend`.
        """
        next_s = 0.0
        while True:
            self.tend()
            try:
                with self.client() as waiting, self.client() as asking:
                    waiting.ask(m.WaitJob(job=job))
                    while (answer := waiting.answer(timeout_s=TEND_S)) is None:
                        self.tend()
                        if time.monotonic() >= next_s:
                            on_status(asking.request(m.GetStatus()))
                            next_s = time.monotonic() + STATUS_S
                    return answer
            except CoordinatorUnreachable:
                time.sleep(TEND_S)

    def printed_lines(self, job: str) -> list[str]:
        """Return the lines that the job's own code printed, each with its rank."""
        with self.client() as client:
            answers = pages(client.request, lambda after: m.ReadLogs(job=job, after=after), "lines")
            lines = [line for answer in answers for line in answer["lines"]]
        return [f"[{line['rank']} {line['worker']}] {line['text']}" for line in lines]
