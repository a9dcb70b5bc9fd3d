"""The oracle's rules for workers that move from one job to another.

* no move leaves a job with fewer workers than its least;
* without a cause from outside no worker moves twice: what has been moved stays, until a job begins
  or ends, or a worker comes or goes;
* a worker does not idle while the queue is empty and a job that takes more could use it.
"""

from __future__ import annotations

from dtd.cluster.several_jobs.giving import fits, has, idle, is_short, sharing
from dtd.cluster.several_jobs.pools import Pools
from dtd.cluster.transitions import GOES_ON, GONE
from tests.sim.lineage import require

USED_S = 20.0
"""Time within which an idle worker is given to a job that takes more."""


class Allotments:
    """The rules, over the lives of all coordinator processes.

    Attributes:
        moves: how many workers have moved.
    """

    def __init__(self) -> None:
        self.moves = 0
        self._ordered: set[tuple[str, float]] = set()
        self._moved: set[str] = set()
        self._around: object = None
        self._idle_since: dict[str, float] = {}

    def check(self, pools: Pools, now: float) -> None:
        """The coordinator has handled an event."""
        self._note_surroundings(pools)
        for pool in sharing(pools.all_clusters()):
            moving = [one for one in pool.workers.values() if one.moving_since is not None]
            new = [one for one in moving if (one.name, one.moving_since) not in self._ordered]
            if not new or pool.job is None:
                continue
            self.moves += len(new)
            least = pool.job.terms.least
            require(has(pool) >= least, "a move takes a job below its least", pool.job.id)
            twice = [one.name for one in new if one.name in self._moved]
            require(not twice, "a worker moves again, and nothing has happened", twice)
            self._moved |= {one.name for one in new}
            self._ordered |= {(one.name, one.moving_since or 0.0) for one in new}
        self._nobody_idles(pools, now)

    def _note_surroundings(self, pools: Pools) -> None:
        """Forget the moves when a job has begun or ended, or a worker has come or gone."""
        there = {name for name, one in pools.workers().items() if one.state not in GONE}
        going_on = [(one.id, one.state in GOES_ON) for one in pools.active()]
        around = (going_on, [one.id for one in pools.home.queue], there | self._moved)
        if around != self._around:
            self._moved.clear()
            around = (*around[:2], there)
        self._around = around

    def _nobody_idles(self, pools: Pools, now: float) -> None:
        wanting = [
            (pool, pool.job)
            for pool in sharing(pools.all_clusters())
            if pool.job is not None and pool.job.state in GOES_ON and is_short(pool)
        ]
        unused = [
            one.name
            for one in ([] if pools.home.queue or pools.home.job else idle(pools.home))
            if any(fits(pool, job, one, now) for pool, job in wanting)
        ]
        self._idle_since = {name: self._idle_since.get(name, now) for name in unused}
        for name, since in self._idle_since.items():
            require(now - since < USED_S, "a worker idles and a job takes more", name)
