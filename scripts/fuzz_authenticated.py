"""Authenticated callers send anything at any time: a state machine against a real coordinator.

What is said is made of the messages' own declarations, so a new message or field is tried without a
line here.  The cluster (`scripts.fuzz_cluster`) trains meanwhile.  Where nobody who lies is a
member, the generation of the honest must not change; where one is, the job may fail with a reason,
or go on without it.  Run as tests/property/test_authenticated.py does, or for long with
`scripts/fuzz coordinator`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from dtd.cluster import member
from dtd.cluster.transitions import JobState
from dtd.errors import LocalProtocolError
from dtd.event_names import NOTICES
from dtd.security.identity import OPERATOR, VIEWER, Identity
from dtd.wire import fields
from dtd.wire import messages as m
from scripts.fuzz_cluster import Caller, Cluster, Honest, registration, warmed, worker_identity

EDGES: Final = (0, 1, 2, 3, 7, 255, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1)
PATIENCE_S: Final = 120.0
"""So long after the last lie the job trains again, or has ended."""

HINTED: Final = 7
"""So much more often a field is what means something now than anything else."""

LIAR: Final = "liar"
DESTRUCTIVE: Final = frozenset({m.CancelJob, m.KillWorker, m.DrainWorker, m.ResumeJob, m.Delete})
"""Requests by which an operator may rightly end honest workers: here they name others."""


def integers(limit: int, *more: int) -> st.SearchStrategy[int]:
    """Edges, and what means something at this moment."""
    return st.sampled_from([one for one in (*EDGES, *more) if one <= limit])


TEXTS: Final = st.sampled_from(
    ["", "x", "\x1b[2J\n", "\U0001f600" * 1000, "a\0b", "/", "//", "/x/y", "\u202e", "w" * 4096]
)
LINES: Final = st.sampled_from(
    [
        *("", "x", LIAR, "honest-0", "honest-1", "digits", "running", "frozen", "finished", "none"),
        *("forming", "memory", "checkpoint", "diverged", "reset", "silent", "ended", "unreachable"),
        *("host", "latency", "bandwidth", "step", "KILL", "operator", "weights", "resume"),
        *("0" * 64, "\U0001f600" * 255, "../..", "a b"),
    ]
)
MAPS: Final[Sequence[dict[str, Any]]] = (
    {},
    {"a": 1},
    {"loss": float("nan"), "steps": 2**63 - 1, "ended_early": "x" * 5000},
    {"job": {"name": "x", "task": "digits"}},
    {"deep": [[[[[{}]]]]]},
    {f"k{number}": -1.5 for number in range(300)},
    {"time_s": "now", "names": 5},
)


def values(kind: str, hints: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Return values that fit a field of this kind."""
    if kind.startswith("list<="):
        limit, _, record = kind.removeprefix("list<=").partition(" of ")
        items = built(getattr(m, record), hints)
        return st.lists(items, max_size=min(3, int(limit))).map(tuple)
    number = hints["generation"]
    plain: dict[str, st.SearchStrategy[Any]] = {
        "u8": integers(2**8 - 1),
        "u16": integers(2**16 - 1),
        "u32": integers(2**32 - 1),
        "u64": integers(2**63 - 1, hints["step"], hints["step"] + 1, hints["roster_id"]),
        "generation": integers(2**63 - 1, number, number + 1, 10**6),
        "f64": st.sampled_from([0.0, -1.0, 5e-324, 1e308]),
        "figure": st.sampled_from([0.0, -1.0, 1e308, float("nan"), float("inf")]),
        "seconds": st.sampled_from([0.0, 1e-9, 0.25, 60.0, 1e9]),
        "bool": st.booleans(),
        "line<=255": LINES,
        "name": st.sampled_from([LIAR, "honest-0", "nobody"]),
        "notice": st.sampled_from(sorted(NOTICES)),
        "text<=16384": TEXTS,
        "words<=4096": TEXTS,
        "host": st.sampled_from(["", "h", "::1", "h" * 253]),
        "octets<=16384": st.sampled_from([b"", b"\xff" * 128, bytes(256)]),
        "octets<=64": st.sampled_from([b"", b"x" * 32, b"y" * 64]),
        "names<=2048": st.lists(LINES, max_size=3).map(tuple),
        "shards<=256": st.sampled_from([(), (0, 1, 1, 1), (0, 1, 1, 2), (1, 0), (3, 2, 1, 1)]),
        "map": st.sampled_from(MAPS),
        "map of figure": st.dictionaries(
            st.sampled_from(["loss", "a b", "x" * 100]), st.sampled_from([1.0, float("nan")])
        ),
    }
    if kind not in plain and "<=" in kind:  # a shorter or a longer one of those
        return next(
            made for name, made in plain.items() if name.startswith(kind.split("<=", maxsplit=1)[0])
        )
    return plain[kind]


def built(record: type[Any], hints: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Messages and records with any values that fit, mostly such as mean something now."""
    made: dict[str, st.SearchStrategy[Any]] = {}
    for name, kind, _check, _required in fields.layout(record):
        any_one = values(kind, hints)
        made[name] = any_one
        if name in hints:
            made[name] = st.one_of(*[st.just(hints[name])] * HINTED, any_one)
    return st.builds(record, **made)


class Authenticated(RuleBasedStateMachine):
    """A worker with a credential, an operator, a viewer and a stranger beside an honest cluster."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster: Cluster
        self.callers: dict[str, Caller] = {}
        self.lies_as_member = False
        self.liar: Honest | None = None
        self.asked = 0

    @initialize(lies_as_member=st.booleans())
    def start(self, lies_as_member: bool) -> None:
        """Two train, and a third one is a member and lies from then on."""
        self.lies_as_member = lies_as_member
        self.cluster = Cluster(workers=3 if lies_as_member else 2)
        if lies_as_member:
            liar = self.cluster.call(Honest, self.cluster, LIAR)
            self.cluster.honest.append(liar)
            self.cluster.pass_time(2.0)
            assert LIAR in self.cluster_state.run.roster
            self.cluster.honest.remove(liar)
            self.callers["worker"] = liar.caller
            self.liar = liar
        self.generation = self.cluster_state.run.generation
        self.step_before = self.step

    @property
    def cluster_state(self) -> Any:
        """The coordinator's state of the cluster."""
        return self.cluster.coordinator.membership.cluster

    @property
    def step(self) -> int:
        """The job's committed steps."""
        job = self.cluster_state.job
        return job.step if job is not None else 0

    @property
    def hints(self) -> dict[str, Any]:
        """Values that mean something at this moment."""
        job, cluster = self.cluster_state.job, self.cluster_state
        return {
            "job": self.cluster.job,
            "identity": job.identity if job is not None else "",
            "generation": cluster.run.generation,
            "roster_id": cluster.run.roster_id,
            "step": min(self.step, 2**63 - 2),
            "held_generation": cluster.run.generation,
            "prepared_generation": cluster.run.generation,
            "prepared_step": self.step,
            "suspect": "honest-0",
            "spec": self.cluster.spec,
        }

    # --- messages of callers -----------------------------------------------------------------

    @rule(data=st.data())
    def a_worker_registers(self, data: Any) -> None:
        """Under its own name, as a new process, now and then with a story."""
        register = registration(LIAR)
        if data.draw(st.booleans()):
            said = data.draw(built(m.Register, self.hints))
            register = replace(said, name=LIAR)
        self.say("worker", register)

    @rule(data=st.data(), times=st.integers(4, 16))
    @precondition(lambda self: self.lies_as_member)
    def a_member_says(self, data: Any, times: int) -> None:
        """The same, by one that was made a member, and comes back as such."""
        assert self.liar is not None
        for _ in range(times):
            if not self.is_registered():
                self.say("worker", self.cluster.call(self.liar.returning))
            self.anything("worker", m.Role.WORKER, data)

    @rule(data=st.data(), times=st.integers(1, 8), unannounced=st.integers(0, 9))
    def a_worker_says(self, data: Any, times: int, unannounced: int) -> None:
        """Send anything that a worker may ever send, now and then before it has registered."""
        for _ in range(times):
            if unannounced and not self.is_registered():
                self.say("worker", registration(LIAR))
            self.anything("worker", m.Role.WORKER, data)

    @rule()
    def a_worker_warms_up(self) -> None:
        """Register a worker and report WARMED."""
        if not self.is_registered():
            self.say("worker", registration(LIAR))
        nothing = m.Held(job=self.cluster.job, generation=0, step=0, digest="", where="none")
        self.say("worker", warmed(self.cluster.job, nothing))

    def is_registered(self) -> bool:
        """The liar's connection stands, and it may report."""
        caller = self.callers.get("worker")
        links = self.cluster.coordinator._links  # noqa: SLF001 - what it believes
        return caller is not None and caller.is_open and bool(links.name_of(caller.link))

    @rule(data=st.data(), who=st.sampled_from(["operator", "viewer", "stranger"]))
    def somebody_asks(self, data: Any, who: str) -> None:
        """Send anything that an operator, a viewer or a joining caller can ask."""
        self.anything(who, m.Role.JOIN if who == "stranger" else m.Role.CTL, data)

    @rule(who=st.sampled_from(["worker", "operator", "viewer", "stranger"]))
    def somebody_hangs_up(self, who: str) -> None:
        """Close the connection without GOODBYE."""
        caller = self.callers.pop(who, None)
        if caller is not None:
            self.cluster.call(caller.wire.close)

    @rule(seconds=st.sampled_from([0.25, 1.0, 3.0]))
    def time_passes(self, seconds: float) -> None:
        """The others train on."""
        self.cluster.pass_time(seconds)

    def anything(self, who: str, role: m.Role, data: Any) -> None:
        """Draw a message and send it."""
        kinds = sorted(m.from_opener(role), key=m.message_name)
        kind = data.draw(st.sampled_from(kinds), label=who)
        hints = self.hints
        if kind in DESTRUCTIVE:
            hints |= {"job": "digits-0", "name": LIAR}
        message = data.draw(built(kind, hints))
        if kind in DESTRUCTIVE and self.is_about_the_honest(message):
            return
        limit = m.kind_of(kind).max_payload_bytes
        payload = data.draw(st.sampled_from([b"", b"\xff\n" * 20])) if limit else b""
        self.say(who, message, payload)

    def is_about_the_honest(self, message: Any) -> bool:
        """An operator may do that to them; it would prove nothing."""
        named = {getattr(message, "job", ""), getattr(message, "name", "")}
        return bool(named & {self.cluster.job, "honest-0", "honest-1"})

    def say(self, who: str, message: m.Message, payload: bytes = b"") -> None:
        """Send on the caller's connection, or on a new one."""
        caller = self.callers.get(who)
        if caller is None or not caller.is_open:
            role = {"worker": m.Role.WORKER, "stranger": m.Role.JOIN}.get(who, m.Role.CTL)
            caller = self.callers[who] = self.cluster.call(
                Caller, self.cluster, IDENTITIES[who], role
            )
        with contextlib.suppress(LocalProtocolError):  # it does not fit into a frame
            self.cluster.call(caller.say, message, payload)
        self.cluster.settle()

    # --- invariants --------------------------------------------------------------------------

    @invariant()
    def it_answers(self) -> None:
        """An operator, with what any JSON reader takes; and nothing has failed within."""
        status = self.cluster.ask(m.GetStatus())
        assert status["schema"] == 1
        json.dumps(status, allow_nan=False)
        self.cluster.coordinator.membership.check_invariants()
        assert self.cluster.coordinator.containment.errors == 0, self.errors()

    @invariant()
    def it_can_be_asked_anything(self) -> None:
        """Ask all of an operator's questions, none of which may fail."""
        job = self.cluster.job
        questions = (
            m.GetFigures(),
            m.GetMetrics(job="digits-1"),
            m.ListJobs(),
            m.ShowJob(job=job),
            m.ListCheckpoints(job=job, tickets=True),
            m.ReadLogs(job=job),
            m.ReadEvents(),
        )
        self.asked += 1
        assert self.cluster.ask(questions[self.asked % len(questions)])

    @invariant()
    @precondition(lambda self: not self.lies_as_member)
    def the_honest_are_not_disturbed(self) -> None:
        """Their generation is the same, their connections stand, and they make progress."""
        assert self.cluster_state.run.generation == self.generation
        assert [one.lost_connections for one in self.cluster.honest] == [0, 0]
        assert self.cluster_state.job is not None
        assert self.cluster_state.job.state is JobState.RUNNING
        before = self.step
        self.cluster.pass_time(0.25)
        assert self.step == before + 1

    def errors(self) -> list[str]:
        """Return the internal errors that the coordinator reported."""
        events = self.cluster.ask(m.ReadEvents())["events"]
        return [one["message"] for one in events if one["kind"] == "internal_error"]

    def teardown(self) -> None:
        """Nobody lies any more: the job trains again, or has ended; so it does after a restart."""
        if not hasattr(self, "cluster"):
            return
        try:
            for who in list(self.callers):
                self.somebody_hangs_up(who)
            self.it_goes_on()
            self.it_answers()
            for _ in range(6):
                self.it_can_be_asked_anything()
            self.cluster.restart()
            self.it_goes_on()
            self.it_answers()
        finally:
            self.cluster.close()

    def it_goes_on(self) -> None:
        """Within bounded time the job commits steps, or it has ended with a reason."""
        waited_s = 0.0
        while waited_s < PATIENCE_S:
            job = self.cluster_state.job
            if job is None or job.id != self.cluster.job:
                ended = self.cluster.ask(m.ShowJob(job=self.cluster.job))
                assert self.lies_as_member, ended
                assert ended["state"] in ("failed", "done"), ended
                assert ended["reason"] or ended["state"] == "done"
                return
            before = min(one.held.step for one in self.cluster.honest)
            self.cluster.pass_time(2.0)
            waited_s += 2.0
            after = min(one.held.step for one in self.cluster.honest)
            states = {one.core.state for one in self.cluster.honest}
            if after > before and states == {member.MemberState.RUNNING}:
                return
        explain = self.cluster.ask(m.GetStatus())["explain"]
        raise AssertionError(f"the job does not go on: {explain}")


IDENTITIES: Final = {
    "worker": worker_identity(LIAR),
    "operator": Identity(role=OPERATOR, name="olga", where="socket"),
    "viewer": Identity(role=VIEWER, name="victor", where="socket"),
    "stranger": Identity(role="stranger", name="a stranger", where="socket"),
}
