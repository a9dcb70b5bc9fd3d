"""Copies of models, whatever comes, goes, fails, is registered and deleted."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dtd.engine.shards import WHOLE
from dtd.registry.pinning import LONGEST_RETRY_S, Pin, Pinning

WORKERS = tuple(f"worker-{number}" for number in range(5))
VERSIONS = ("a", "b", "c")

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("register"), st.sampled_from(VERSIONS), st.integers(1, 3)),
        st.tuples(st.just("delete"), st.sampled_from(VERSIONS), st.just(0)),
        st.tuples(st.just("come"), st.sampled_from(WORKERS), st.just(0)),
        st.tuples(st.just("go"), st.sampled_from(WORKERS), st.just(0)),
        st.tuples(st.just("wipe"), st.sampled_from(WORKERS), st.just(0)),
        st.tuples(st.just("answer"), st.sampled_from(WORKERS), st.integers(0, 1)),
        st.tuples(st.just("repair"), st.sampled_from(VERSIONS), st.just(0)),
        st.tuples(st.just("wait"), st.just(""), st.integers(1, 80)),
    ),
    max_size=60,
)


class World:
    """Workers with disks that do what they are told, and a history of what was told."""

    def __init__(self) -> None:
        self.pinning = Pinning()
        self.now = 0.0
        self.copies: dict[str, int] = {}
        self.disks: dict[str, set[str]] = {name: set() for name in WORKERS}
        self.connected: set[str] = set()
        self.ordered: dict[str, str] = {}

    def carry_out(self) -> None:
        """Give the orders, and hold what must never happen against them."""
        for order in self.pinning.decide(self.now):
            assert order.worker in self.connected
            if isinstance(order, Pin):
                assert order.version in self.copies
                assert order.worker not in self.ordered, "two orders at a time"
                assert order.version not in self.disks[order.worker]
                self.ordered[order.worker] = order.version
                continue
            alive = {name for name in self.connected if order.version in self.disks[name]}
            wanted = self.copies.get(order.version, 0)
            assert len(alive) > wanted, "a copy that is needed must not be dropped"
            self.disks[order.worker].discard(order.version)
        assert self.pinning.decide(self.now) == [], "each order is given once"

    def do(self, what: str, whom: str, number: int) -> None:
        if what == "register" and whom not in self.copies:
            self.copies[whom] = number
            origin = dict.fromkeys(WORKERS, WHOLE)
            self.pinning.wanted(whom, copies=number, origin=origin)
        elif what == "delete" and self.copies.pop(whom, None):
            self.pinning.forgotten(whom)
        elif what == "come":
            self.leave(whom)
            self.connected.add(whom)
            self.pinning.arrived(whom, whom[-1:] + "-host", sorted(self.disks[whom]))
        elif what == "go":
            self.leave(whom)
        elif what == "wipe" and whom not in self.connected:
            self.disks[whom].clear()
        elif what == "answer" and whom in self.ordered:
            self.answer(whom, succeeds=bool(number))
        elif what == "repair":
            self.pinning.repair(whom, self.now)
        elif what == "wait":
            self.now += number

    def leave(self, worker: str) -> None:
        self.ordered.pop(worker, None)
        self.connected.discard(worker)
        self.pinning.left(worker)

    def answer(self, worker: str, *, succeeds: bool) -> None:
        version = self.ordered.pop(worker)
        if succeeds:
            self.disks[worker].add(version)
            self.pinning.pinned(version, worker)
        else:
            self.pinning.failed(version, worker, "no", self.now)


@settings(max_examples=150, deadline=None)
@given(EVENTS)
def test_when_all_goes_well_in_the_end_there_are_as_many_copies_as_asked_for(
    events: list[tuple[str, str, int]],
) -> None:
    world = World()
    for event in events:
        world.do(*event)
        world.carry_out()
    for worker in WORKERS:
        if worker not in world.connected:
            world.do("come", worker, 0)
            world.carry_out()
    for _ in range(40):
        for worker in list(world.ordered):
            world.answer(worker, succeeds=True)
            world.carry_out()
        world.now += LONGEST_RETRY_S
        world.carry_out()
    for version in VERSIONS:
        there = [name for name in WORKERS if version in world.disks[name]]
        assert len(there) == world.copies.get(version, 0)
        assert tuple(there) == world.pinning.holders(version)
