"""The oracle's rule for what happens to processes: a fault of the plan accounts for it.

* no worker is evicted or restarted, no ring breaks and no link is reported as bad unless a fault
  affects one of the processes concerned.
"""

from __future__ import annotations

from collections.abc import Collection

from dtd.wire import messages as m
from tests.sim import lineage

COORDINATOR = "coordinator"


class Causes:
    """Faults of a cluster, and requests of its operator.

    Attributes:
        touched: processes that a fault has affected.
        flipped: bits of a state have flipped: any worker may be taken for the faulty one.
        went_back: the coordinator's store was restored from a backup.
        discarded: jobs cancelled while their last state was being written: they end without it.
        cancels: how often the operator has cancelled a job; a second request ends the generation
            before its boundary.
    """

    def __init__(self) -> None:
        self.touched: set[str] = set()
        self.flipped = False
        self.went_back = False
        self.cancels = 0
        self.discarded: set[str] = set()
        self._task_failed = False

    def struck(self, names: Collection[str]) -> None:
        """A fault affects these processes."""
        self.touched.update(names)

    def task_failed(self, name: str, assign: m.Assign, *, step: int) -> None:
        """The job's own code has raised on a worker, and its ring ends.

        In the first step of a generation those that have joined may be put to blame.
        """
        self._task_failed = True
        first = step == assign.held_step
        self.struck([name, *(member.name for member in assign.roster if first)])

    def require(self, names: Collection[str], what: str, *details: object) -> None:
        """Check that a fault accounts for what happens to one of these processes."""
        guilty = self.flipped or not self.touched.isdisjoint(names)
        lineage.require(guilty, f"{what} without a cause", sorted(names), *details)

    def froze(self, assign: m.Assign, evidence: str, reason: str) -> None:
        """A rank's ring has broken."""
        names = {member.name for member in assign.roster}
        if self._task_failed or self.cancels > 1:
            return
        self.require(names, "a ring breaks", f"generation {assign.generation}", evidence, reason)
