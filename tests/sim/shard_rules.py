"""The oracle's rules for states that are sharded, and what counts as remembered of them.

* no generation begins with a hole: what its ranks bring covers the state;
* a rank drops no shard before all have agreed on the state;
* each rank has exactly its part once all have agreed, and all shards are of that state;
* owners and mirrors hold equal contents: those that belong to the step;
* of shards that were damaged in memory, ranks agree on none of which a rank of the generation has
  brought an undamaged copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dtd.engine.shards import ShardSet, united
from dtd.wire import messages as m
from tests.sim import shards
from tests.sim.lineage import Broken, Memory, require
from tests.sim.replica import State


class ShardRules:
    """The rules for all jobs.

    Attributes:
        regroups: how many ranks have obtained their part of a state.
        damaged: whether a shard has been damaged in memory.
    """

    def __init__(self) -> None:
        self.regroups = 0
        self.damaged = False
        self._kept: dict[str, State] = {}
        self._brought: dict[tuple[str, int], dict[str, State]] = {}
        self._passed: set[tuple[str, int]] = set()
        self._regrouping: set[str] = set()

    def hole(self, assign: m.Assign, why: str) -> None:
        """The ranks of a generation do not cover its starting state."""
        raise Broken(f"a generation begins with a hole: {assign.generation}: {why}")

    def adopted(self, name: str, state: State) -> None:
        """A rank has the starting state of a generation, or its part of it."""
        self._kept[name] = state

    def froze(self, name: str, state: State | None) -> None:
        """A rank leaves a generation with this state in memory."""
        self._regrouping.discard(name)
        kept = self._kept.get(name)
        if kept is not None and state is not None and kept.key == state.key:
            whole = state.part.covers(kept.part)
            require(whole, "a shard is dropped before all have agreed", name, kept.part, state.part)

    def regrouped(self, assign: m.Assign, state: State, part: ShardSet) -> None:
        """A rank has agreed with all others, and dropped all that is not its part."""
        self.regroups += 1
        name = assign.roster[assign.rank].name
        self._kept[name] = state
        require(state.part == part, "a rank has another part than its own", assign, state.part)
        self._regrouping.discard(name)
        self.honest(state)

    def compares(self, assign: m.Assign, state: State) -> None:
        """A rank has hashed its shards, before shards move."""
        name = assign.roster[assign.rank].name
        self._regrouping.add(name)
        self._brought.setdefault((assign.job, assign.generation), {})[name] = state

    def damages(self, name: str, before: State, after: State) -> None:
        """A shard has been damaged in memory: what had been hashed already cannot show it."""
        self.damaged = True
        if name in self._regrouping:
            self._passed |= {(after.job, at) for at in set(odd(after)) - set(odd(before))}

    def agreed(self, assign: m.Assign, state: State, part: ShardSet, *, alone: bool) -> None:
        """A rank has seen that its part of a state is the same on all ranks that hold it, if any.

        Damage passes only where no rank of the generation had a copy without it.
        """
        brought = self._brought[assign.job, assign.generation].values()
        for index in odd(replace(state, atoms=shards.cut(state.atoms, part))):
            known = (state.job, index) in self._passed
            whole = any(one.atoms[index] == one.content for one in brought)
            require(known or alone or not whole, "damage passes though a rank knew better", index)
            self._passed.add((state.job, index))

    def honest(self, state: State) -> None:
        """Check that every shard that a worker holds is of the state's step."""
        sound = state.corrupt or self.damaged or not odd(state)
        require(sound, "a shard is of another state", state.key)


def odd(state: State) -> list[int]:
    """The shards that are not of the state's step."""
    return [at for at, content in enumerate(state.atoms) if content not in ("", state.content)]


def known(memories: Iterable[Memory], *, most: int) -> int:
    """The newest step, up to `most`, of which these workers hold all shards; -1 for none.

    A step that has only been prepared counts as well; `most` is the last one that was committed.
    """
    parts: dict[tuple[int, str], list[ShardSet]] = {}
    for memory in memories:
        for state in (memory.state, memory.prepared):
            if state is not None and state.step <= most:
                parts.setdefault((state.step, state.lineage), []).append(state.part)
    return max((step for (step, _), held in parts.items() if united(held).is_whole), default=-1)
