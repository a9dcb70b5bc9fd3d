"""The oracle's rules for replicas that are compared.

* replicas that differ commit nothing more, in a generation or in one after the other;
* a majority is one, and who differs from it does not bring its state into a generation;
* all ranks of a generation divide the rows of a step alike;
* a state is forgotten only if no majority holds one, and kept only if it does not differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from dtd.wire import messages as m
from tests.sim.lineage import require
from tests.sim.replica import State


class Agreements:
    """The rules for all jobs."""

    def __init__(self) -> None:
        self._contents: dict[tuple[str, int, int], dict[int, set[str]]] = defaultdict(dict)
        self._brought: dict[tuple[str, int], list[State]] = defaultdict(list)
        self._condemned: dict[tuple[str, int, int], int] = {}
        self._divided: dict[tuple[str, int, int], tuple[int, ...]] = {}

    def adopted(self, assign: m.Assign, state: State) -> None:
        """A rank has the starting state of its generation, which it has brought or copied."""
        own = assign.roster[assign.rank]
        if not own.holds:
            return
        self._brought[assign.job, assign.generation].append(state)
        wrong = self._condemned.get((own.name, own.incarnation, state.generation))
        kept = wrong is not None and state.step >= wrong
        require(not kept, "a state is trained on that differs from the majority's", own.name)

    def agreed(self, assign: m.Assign, state: State) -> None:
        """A rank has seen that all ranks have the same digest of this state, and continues.

        It may differ from the one that an earlier generation agreed on only if no rank can know:
        bits have flipped in the memory of all that brought it, or of the only one, and all others
        have copied it.
        """
        by = self._contents[state.job, *state.key]
        here = by.setdefault(assign.generation, set())
        here.add(state.content)
        brought = self._brought[assign.job, assign.generation]
        unknown = len(brought) == 1 or all(one.corrupt for one in brought)
        before = set[str]().union(*by.values())
        alike = len(before) == 1 or (len(here) == 1 and state.corrupt and unknown)
        require(alike, "replicas that differ go on", state)

    def divided(self, assign: m.Assign, step: int, costs: tuple[int, ...]) -> None:
        """A rank computes the rows after so many steps, which it has divided by these costs."""
        first = self._divided.setdefault((assign.job, assign.generation, step), costs)
        require(first == costs, "ranks divide a step's rows differently", step, first, costs)

    def unequal(self) -> int:
        """Steps whose rows were divided by speed."""
        return sum(costs != () for costs in self._divided.values())

    def contents(self, job: str, step: int) -> set[str]:
        """The contents on which ranks have agreed after so many steps of a job."""
        known = (
            by.values() for (of, _, at), by in self._contents.items() if (of, at) == (job, step)
        )
        return {content for by in known for here in by for content in here}

    def differ(
        self,
        assign: m.Assign,
        step: int,
        said: Sequence[bytes],
        voters: Collection[int] | None,
        *,
        majority: bool,
    ) -> None:
        """A rank has seen that digests of a step differ, and knows the majority's."""
        votes = [one for rank, one in enumerate(said) if voters is None or rank in voters]
        if len(votes) == 1 and any(2 * said.count(one) > len(said) for one in said):
            votes = list(said)
        most = max(votes.count(one) for one in votes)
        require(majority == (2 * most > len(votes)), "a majority is none", len(votes), most)
        right = max(votes, key=votes.count) if majority else None
        for one, word in zip(assign.roster, said, strict=True):
            if word != right:
                self._condemned[one.name, one.incarnation, assign.generation] = step

    def forgets(self, name: str, *, majority: bool) -> None:
        """A rank discards its state because the replicas differ."""
        require(not majority, "a state is forgotten although a majority holds one", name)

    def keeps(self, name: str, *, differs: bool) -> None:
        """A rank keeps its state because a majority has the same."""
        require(not differs, "a state is kept that differs from the majority's", name)
