"""What every simulated process shares: the clock, the network, chance, the oracle, the story.

Processes are given this one object and reach nothing else of each other.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from dtd.wire import messages as m
from tests.sim.network import Network
from tests.sim.oracle import Oracle
from tests.sim.phases import Ambushes
from tests.sim.scheduler import Scheduler

COORDINATOR = "coordinator"
Range = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long things take, and how large they are: each time between least and most.

    Attributes:
        state_bytes: size of a state, which takes its time on the network.
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
        lifeline_rng: chance of lifelines and of deaths: without a death it changes nothing else.
        restarted: called with the name of a worker whose process ended and shall come again.
        ambushes: what waits for a worker to reach a phase.
        heartbeat_interval_s: how often workers, and neighbours on a ring, say that they live.
        heartbeat_timeout_s: silence after which somebody is suspected.
        story: what happened, a line each.
        said: what coordinators have told each worker.
    """

    scheduler: Scheduler
    network: Network
    rng: random.Random
    lifeline_rng: random.Random
    oracle: Oracle
    pace: Pace
    restarted: Callable[[str], None]
    ambushes: Ambushes = field(default_factory=Ambushes)
    heartbeat_interval_s: float = 0.25
    heartbeat_timeout_s: float = 1.5
    story: list[str] = field(default_factory=list)
    said: dict[str, list[m.Message]] = field(default_factory=dict)

    def draw(self, limits: Range) -> float:
        """A duration between the limits."""
        return self.rng.uniform(*limits)

    def tell(self, text: str) -> None:
        """Add a line to the story."""
        self.story.append(f"{self.scheduler.now:9.3f}  {text}")
