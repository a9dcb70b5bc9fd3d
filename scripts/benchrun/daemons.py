"""One job of real daemons, in blocks of steps that begin on command, and its hosts.

The job is held between two blocks by a gate in its task (`scripts.benchrun.tasks`), so that the
other sides have the machine meanwhile.  Times are from the workers' logs: from one commit of rank 0
to the next, so that all work between two steps counts.

There is one host for all ranks, or one each behind a link of known rate.  `own_network` puts this
process into a network namespace of its own first.  There it chooses the congestion control of all
that it starts, and neither touches the machine's settings nor meets its traffic; the namespace ends
with the last process inside.
"""

from __future__ import annotations

import contextlib
import fcntl
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_interface
from pathlib import Path
from typing import IO, Any, Final, TypeAlias

from dtd.errors import DtdError
from dtd.wire import messages as m
from scripts.benchrun.results import CONGESTION_FILE
from scripts.benchrun.tasks import Workload, job_of
from scripts.cluster.cluster import with_log
from scripts.cluster.log_timeline import ENDS, Line
from scripts.cluster.namespaces import PORT, Namespace, may_make
from scripts.cluster.networked import NetworkedCluster
from scripts.cluster.networks import Hosts, Network
from scripts.cluster.processes import proc_bytes

_TURN_S: Final = 0.05
_START_S: Final = 120.0
_BLOCK_S: Final = 1800.0
# Daemons stand still between blocks, and the machine may be full: no worker is evicted for that.
SETTINGS: Final = "heartbeat_timeout_s = 3600.0\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Some steps in a row, the first left out; of local steps whole rounds, unless it is one.

    Attributes:
        step_s: the mean step; a log's times are too coarse for one step.
        sent_bytes: what rank 0 gave its neighbour, the mean of a step.
    """

    step_s: float
    sent_bytes: float


class DaemonRun:
    """A coordinator, its workers and one job that waits at its first gate.

    Raises:
        DtdError: a daemon did not start, or the job failed.
    """

    def __init__(
        self,
        workload: Workload,
        workers: Sequence[str],
        network: Network,
        blocks: int,
        strategy: Mapping[str, Any] | None = None,
        servers: Sequence[str] = (),
        lossless: str = "auto",
        shares: str = "equal",
    ) -> None:
        self._workers = workers
        self._servers = servers
        self._steps = workload.block_steps
        self._next = 0
        self._commits: list[Line] = []
        self.blocks: list[Block] = []
        self._stack = contextlib.ExitStack()
        try:
            name = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="dtd-bench-"))
            directory = Path(name)
            # The last gate keeps the job from ending, and its workers from starting afresh.
            self._gates = [self._shut(directory / str(index)) for index in range(blocks + 1)]
            self._cluster = self._started(directory, network)
            spec = job_of(
                workload,
                steps=blocks * self._steps + 1,
                gates=str(directory),
                holds=[self._steps * block for block in range(blocks + 1)],
                strategy=strategy,
            )
            spec["elastic"] |= {"min_workers": len(workers), "shares": shares}
            spec["sync"] = {**spec.get("sync", {}), "lossless": lossless}
            self._cluster.try_ask(m.SubmitJob(spec=spec))
        except BaseException:
            self._stack.close()
            raise

    def block(self) -> Block:
        """Let the next block run and wait for its last commit."""
        before = len(self._commits)
        begun_s = time.time()
        self._gates[self._next].close()
        self._next += 1
        self._await_commit(self._next * self._steps)
        block = _summed(self._commits[before:], begun_s)
        self.blocks.append(block)
        return block

    def first_rows(self) -> list[int]:
        """Rows of rank 0 in each step so far."""
        return [int(line.fields["own_rows"]) for line in self._commits]

    def peak_bytes(self) -> list[int]:
        """The most memory that each worker has had so far."""
        return [proc_bytes(self._cluster.pid(name), "VmHWM") for name in self._workers]

    def held_bytes(self) -> list[int]:
        """The memory that each worker has now; what is shared counts in equal parts."""
        pids = [self._cluster.pid(name) for name in self._workers]
        return [proc_bytes(pid, "Pss", file="smaps_rollup") for pid in pids]

    def close(self) -> None:
        self._stack.close()

    def _shut(self, path: Path) -> IO[str]:
        gate = self._stack.enter_context(path.open("w"))
        fcntl.flock(gate, fcntl.LOCK_EX)
        return gate

    def _started(self, directory: Path, network: Network) -> NetworkedCluster:
        settings = directory / "coordinator.toml"
        settings.write_text(SETTINGS)
        cluster = NetworkedCluster(
            directory,
            workers=[*self._workers, *self._servers],
            servers=self._servers,
            network=network,
            settings=("--config", str(settings)),
        )
        # Workers stand at a gate and would not hear a request to end; nothing of theirs is kept.
        self._stack.callback(cluster.stop, grace_s=0.0)
        cluster.start_all(_START_S)
        self._tail = self._stack.enter_context(contextlib.closing(cluster.log_tail()))
        return cluster

    def _await_commit(self, step: int) -> None:
        deadline_s = time.monotonic() + _BLOCK_S
        while not self._commits or int(self._commits[-1].fields["step"]) < step:
            for line in self._tail.poll():
                if line.event == "step_committed" and line.fields["rank"] == 0:
                    self._commits.append(line)
                elif line.event in ENDS and line.event != "job_done":
                    why = line.fields.get("message", line.event)
                    raise DtdError(f"the job has ended: {why}")
            if time.monotonic() > deadline_s:
                raise with_log(
                    self._cluster.children[self._workers[0]], f"no commit of step {step}"
                )
            time.sleep(_TURN_S)


def _summed(commits: Sequence[Line], begun_s: float) -> Block:
    """The block that these commits end; the first says when the others began, if there are any."""
    if len(commits) > 1:
        begun_s, commits = commits[0].at_s, commits[1:]
    steps = [int(line.fields["steps"]) for line in commits]
    return Block(
        step_s=(commits[-1].at_s - begun_s) / sum(steps),
        sent_bytes=sum(int(line.fields["sent_bytes"]) for line in commits) / sum(steps),
    )


RENO: Final = "reno"
_BURST: Final = "128kb"
_QUEUE: Final = "1mb"
LOOPBACK_HOST: Final = "127.0.0.1"
_PUBLIC: Final = ip_interface("10.77.0.1/24")
"""On the own loopback interface, but none of 127.0.0.0/8: as fast, and keyed."""


class OneHost:
    """All ranks here, and they know it: the interface, the address and the command of a rank."""

    interface = "lo"

    def host(self, rank: int) -> str:
        del rank
        return LOOPBACK_HOST

    def wrapped(self, rank: int, command: Sequence[str]) -> list[str]:
        return [*command]


class OtherHosts(OneHost):
    """All ranks here, but as far as addresses tell, each is on a host of its own."""

    def host(self, rank: int) -> str:
        return str(_PUBLIC.ip + rank)


def own_network() -> bool:
    """Move this process, which has one thread yet, into a network of its own; False: it may not."""
    if not may_make("net"):
        return False
    Namespace("net").enter()
    subprocess.run(["ip", "link", "set", "dev", "lo", "up"], check=True)
    subprocess.run(["ip", "address", "add", str(_PUBLIC), "dev", "lo"], check=True)
    choose_congestion_control()
    return True


def choose_congestion_control() -> None:
    """The same for all connections in the network namespace of the calling thread."""
    CONGESTION_FILE.write_text(RENO)


class ShapedHosts(Hosts):
    """`Place` for ranks and `Network` for daemons: a host each behind a link of a known rate.

    The kernel shapes each cable (tbf) in both directions, like a full-duplex link.

    Args:
        workers: names of the workers; worker number i shares a host with rank i.
        rate: of each link in each direction, as `tc` writes it.
        rates: of the links of some workers, by name, instead.
        proxied: with a proxy before each data port, which can add a delay.
    """

    interface = PORT

    def __init__(
        self,
        workers: Sequence[str],
        rate: str,
        rates: Mapping[str, str] | None = None,
        *,
        proxied: bool = False,
    ) -> None:
        shapes = {name: _shape(one) for name, one in (rates or {}).items()}
        super().__init__(workers, proxied=proxied, shape=_shape(rate), shapes=shapes)
        self._names = [*workers]
        for name in workers:
            self.ethernet.spaces[name].inside(choose_congestion_control)

    def host(self, rank: int) -> str:
        return self.ethernet.ip(self._names[rank])

    def wrapped(self, who: int | str, command: Sequence[str]) -> list[str]:
        return super().wrapped(who if isinstance(who, str) else self._names[who], command)


def _shape(rate: str) -> tuple[str, ...]:
    return ("tbf", "rate", rate, "burst", _BURST, "limit", _QUEUE)


Place: TypeAlias = OneHost | ShapedHosts
