"""A member that really trains sends all messages as it should, but for one field now and then.

`scripts.fuzz_authenticated` says anything; most of it is refused at the door, so what a member may
say while its generation runs, freezes or forms is seldom reached.  Here three workers train, and
one of them changes one field of one message that it would have said, at a moment that chance picks:
the message fits the state that it comes in.  Meanwhile processes, connections and the coordinator
end and come back.  The two honest ones must train on together, never be put out, and never copy
anything; what is shown of the job must be what they did.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields as fields_of
from dataclasses import replace
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from dtd.cluster import member
from dtd.wire import messages as m
from scripts.fuzz_cluster import TICK_S, Cluster, Honest

LIAR: Final = "liar"
PATIENCE_S: Final = 60.0
EVIDENCE: Final = ("diverged", "ended", "diverged", "ended", "reset", "silent", "")
SAID: Final = (m.Heartbeat, m.Frozen, m.Running, m.Warmed, m.Register)
KEPT: Final = frozenset({"name", "incarnation", "instance", "version", "proof", "pid"})
"""Fields of its identity, which `scripts.fuzz_authenticated` covers."""


class Liar(Honest):
    """It trains as the others do, and its messages can be changed on the way."""

    change: Callable[[m.Message], m.Message | None] | None = None

    def _connect(self) -> None:
        super()._connect()
        plain = self.caller.say

        def say(message: m.Message, payload: bytes = b"") -> None:
            changed = self.change(message) if self.change is not None else None
            if changed is not None:
                self.change = None
            plain(changed or message, payload)

        self.caller.say = say  # type: ignore[method-assign]


def near(value: Any, by: int, text: str) -> Any:
    """Something else of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return max(0, value + by)
    if isinstance(value, float):
        return max(0.0, value + by)
    if isinstance(value, str):
        return text
    if isinstance(value, tuple) and value and isinstance(value[0], m.Held):
        return (replace(value[0], generation=max(0, value[0].generation + by)),)
    return value


def with_held(message: m.Frozen, by: int) -> m.Frozen:
    """It holds another step, and says so throughout."""
    held = tuple(replace(one, step=max(0, one.step + by)) for one in message.held)
    step = held[0].step if held else 0
    return replace(message, held=held, prepared_step=step)


class OneFieldOff(RuleBasedStateMachine):
    """Two honest members, and one of which a field is off now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster: Cluster
        self.liar: Liar

    @initialize()
    def start(self) -> None:
        """All three train."""
        self.cluster = Cluster(workers=3)
        self.two = list(self.cluster.honest)
        self.liar = self.cluster.call(Liar, self.cluster, LIAR)
        self.cluster.honest.append(self.liar)
        self.cluster.pass_time(2.0)
        assert LIAR in self.cluster_state.run.roster
        self.begun = [one.begun for one in self.two]
        self.lost = self.connections_lost()
        self.newest = 0

    def connections_lost(self) -> list[int]:
        """Return the number of reconnections of each of the two."""
        return [one.lost_connections for one in self.two]

    @property
    def cluster_state(self) -> Any:
        """The coordinator's state of the cluster."""
        return self.cluster.coordinator.membership.cluster

    @rule(
        kind=st.sampled_from(SAID),
        choice=st.integers(0, 30),
        by=st.sampled_from((-3, -1, 1, 2, 40, 10**6)),
        text=st.sampled_from(("", "honest-0", "honest-1", "none", "memory", "frozen", "x")),
    )
    def a_field_is_off(self, kind: type[Any], choice: int, by: int, text: str) -> None:
        """In the next message of a kind."""
        names = [one.name for one in fields_of(kind) if one.name not in KEPT]
        name = names[choice % len(names)]

        def change(message: Any) -> m.Message | None:
            if type(message) is not kind:
                return None
            changed: m.Message = replace(message, **{name: near(getattr(message, name), by, text)})
            return changed

        self.liar.change = change
        if kind is m.Warmed:
            self.the_liar_begins_again()
        elif kind is m.Register:
            self.cluster.call(self.liar.caller.wire.close)
        elif kind is not m.Heartbeat:
            self.cluster.call(self.liar.freeze, "it says so")
        self.cluster.pass_time(0.5)

    @rule(
        suspect=st.sampled_from(("honest-0", "honest-1", "")),
        evidence=st.sampled_from(EVIDENCE),
        digest=st.sampled_from(("", "d", "other")),
        by=st.sampled_from((0, 0, -1, 1, 50)),
    )
    def it_accuses(self, suspect: str, evidence: str, digest: str, by: int) -> None:
        """It leaves its generation, and blames another member."""

        def change(message: m.Message) -> m.Message | None:
            if not isinstance(message, m.Frozen):
                return None
            said = with_held(message, by)
            return replace(said, suspect=suspect, evidence=evidence, compared_digest=digest)

        self.liar.change = change
        self.cluster.call(self.liar.freeze, "it says so")
        self.cluster.pass_time(0.5)

    @rule(who=st.integers(0, 2))
    def a_connection_ends(self, who: int) -> None:
        """And is made again."""
        self.cluster.call(self.cluster.honest[who].caller.wire.close)
        self.cluster.settle()
        self.lost = self.connections_lost()

    @rule()
    def the_liar_begins_again(self) -> None:
        """Start the liar again, as a new process."""
        self.cluster.call(self.liar.caller.wire.close)
        self.cluster.call(self.liar.begin_again)
        self.cluster.pass_time(1.0)  # a step that ends a process again and again fails the job

    @rule()
    def the_coordinator_begins_again(self) -> None:
        """The coordinator restarts, with its store."""
        self.cluster.restart()
        self.cluster.settle()
        self.lost = self.connections_lost()

    @rule(seconds=st.sampled_from((0.25, 1.0, 3.0)))
    def time_passes(self, seconds: float) -> None:
        """All train on."""
        self.cluster.pass_time(seconds)

    @invariant()
    def it_is_sound(self) -> None:
        """It answers, nothing failed within, and what it knows of the job is what the two did."""
        self.cluster.ask(m.GetStatus())
        self.cluster.coordinator.membership.check_invariants()
        assert self.cluster.coordinator.containment.errors == 0
        job, newest = self.cluster_state.job, max(one.held.step for one in self.two)
        assert job is not None
        assert job.step <= newest
        assert job.steps_lost == 0
        assert job.divergences == ()
        assert job.total_steps == 1_000_000
        assert self.newest <= newest <= (self.cluster.loop.now - self.cluster.begun_s) / TICK_S
        self.newest = newest
        for worker in self.cluster_state.workers.values():
            beat, held = worker.liveness.heartbeat, worker.holdings.held
            assert beat is None or beat.job != job.id or beat.step <= job.total_steps
            assert held is None or held.where != "memory" or held.step <= job.total_steps
        assert [one.begun for one in self.two] == self.begun
        assert self.connections_lost() == self.lost

    def teardown(self) -> None:
        """Nobody lies any more: all three train together."""
        if not hasattr(self, "cluster"):
            return
        try:
            self.liar.change = None
            before, waited_s = self.two[0].held.step, 0.0
            while waited_s < PATIENCE_S and not (self.all_train() and self.advanced(before)):
                self.cluster.pass_time(2.0)
                waited_s += 2.0
            assert self.advanced(before), self.cluster.ask(m.GetStatus())["explain"]
            self.it_is_sound()
        finally:
            self.cluster.close()

    def all_train(self) -> bool:
        """The two, together."""
        return {one.core.state for one in self.two} == {member.MemberState.RUNNING}

    def advanced(self, before: int) -> bool:
        """The two have committed something since."""
        return all(one.held.step > before for one in self.two)
