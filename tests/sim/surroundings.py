"""The objects shared by all simulated processes: clock, network, random generators, oracle, story.

Every process receives this object and has no other access to other processes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from dtd.wire import messages as m
from tests.sim.network import Network
from tests.sim.oracle import Oracle
from tests.sim.phases import Triggers
from tests.sim.scheduler import Scheduler

COORDINATOR = "coordinator"
Range = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Durations, each as (least, most), and sizes.

    Attributes:
        state_bytes: size of a state, which determines its transfer time on the network.
    """

    start_s: Range = (0.05, 0.3)
    reconnect_s: Range = (0.05, 0.5)
    warm_up_s: Range = (0.5, 2.0)
    load_s: Range = (0.01, 0.1)
    compute_s: Range = (0.02, 0.2)
    optimizer_s: Range = (0.001, 0.01)
    evaluate_s: Range = (0.02, 0.1)
    checkpoint_s: Range = (0.05, 0.4)
    store_s: Range = (0.001, 0.02)
    digest_s: Range = (0.0, 0.0)
    state_bytes: Range = (400_000.0, 400_000.0)


@dataclass(slots=True, kw_only=True)
class Surroundings:
    """The world of one simulation.

    Attributes:
        lifeline_rng: random generator for lifelines and deaths; it affects no plan without deaths.
        restarted: called with the name of a worker whose process ended and is to be restarted.
        triggers: faults that wait for a worker to reach a phase.
        heartbeat_interval_s: interval of heartbeats to the coordinator and between ring neighbours.
        heartbeat_timeout_s: silence after which a process is suspected.
        story: the events of the simulation, one line each.
        said: the messages that coordinators have sent to each worker.
        servers: names of the workers that are parameter servers.
        joined: the only job of each process that was started by hand, by its name.
        unwelcome: a worker in whose presence the task raises on all others.
        hop_bytes: what the links of a worker, by name and incarnation, carry in the time of a hop.
    """

    scheduler: Scheduler
    network: Network
    rng: random.Random
    lifeline_rng: random.Random
    oracle: Oracle
    pace: Pace
    restarted: Callable[[str], None]
    triggers: Triggers = field(default_factory=Triggers)
    heartbeat_interval_s: float = 0.25
    heartbeat_timeout_s: float = 1.5
    story: list[str] = field(default_factory=list)
    said: dict[str, list[m.Message]] = field(default_factory=dict)
    servers: frozenset[str] = frozenset()
    joined: dict[str, str] = field(default_factory=dict)
    unwelcome: str = ""
    hop_bytes: Callable[[str, int], int] = lambda _name, _incarnation: 0

    def draw(self, limits: Range) -> float:
        """A random duration between the limits."""
        return self.rng.uniform(*limits)

    def tell(self, text: str) -> None:
        """Add a line to the story."""
        self.story.append(f"{self.scheduler.now:9.3f}  {text}")
