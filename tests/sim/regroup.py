"""The ranks of a simulated generation exchange shards until each has its part of the state.

They say what they hold, compare what is to move and has several holders, follow the product's plan
(`dtd.engine.regroup`) window by window, and agree on the state; only then each drops what is
not its part any more.  Whenever the ring breaks, a rank still holds what it held before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from dataclasses import replace

from dtd.engine.digests import ShardDigests, compared
from dtd.engine.regroup import RegroupWindow, plan_regroup
from dtd.engine.shards import Division, ShardSet
from dtd.errors import RingBroken, ShardsMissing
from tests.sim import shards
from tests.sim.phases import Phase
from tests.sim.replica import State
from tests.sim.ring_endpoint import RingEndpoint
from tests.sim.session import JobSession
from tests.sim.thread import Reach, Request

Exchange = Callable[[RingEndpoint, bytes], Generator[Request, None, list[bytes]]]


def common(session: JobSession, state: State) -> State:
    """Return a joiner's copy of a donor's state: of a sharded one only the common part."""
    if session.mirrors is None:
        return state
    session.lacks_part = True
    return replace(state, atoms=shards.none())


def leave(session: JobSession) -> None:
    """Leave a generation: a state in memory without the part of this rank is worth nothing."""
    if session.engine.live is not None and session.lacks_part:
        session.forget()
    session.lacks_part = False


def gather(
    session: JobSession, ring: RingEndpoint, exchange: Exchange
) -> Generator[Request, None, list[bytes]]:
    """Obtain this rank's part of the state, beside its own shards.

    Returns:
        the digests of all ranks, if holders of a shard differ: then nothing moves.

    Raises:
        RingBroken: the generation is over.
    """
    state, rank, division = session.live, ring.assign.rank, division_of(session, ring)
    words = yield from exchange(ring, json.dumps(state.part.to_wire()).encode())
    held = [ShardSet.from_wire(json.loads(word)) for word in words]
    try:
        plan = plan_regroup(held, [division.shards(one) for one in range(len(words))])
    except ShardsMissing as error:
        session.shell.surroundings.oracle.shards.hole(ring.assign, error.message)
        ring.end(error.message)
        raise RingBroken(error.message) from error
    session.shell.surroundings.oracle.shards.compares(ring.assign, state)
    mine = (one.part for one in plan.shared if rank in one.holders)
    hashes = [shards.digest(state.atoms, part) for part in mine]
    words = [b""] * len(held)
    if plan.shared:
        words = yield from exchange(ring, b"".join(hashes))
    tally = compared(plan.shared, words)
    if tally.disputed is not None:
        return shards.said(tally, [state.content] * len(held))
    atoms = list(state.atoms)
    for window in plan.windows:
        yield Reach(Phase.REGROUP, state.step)
        given = [
            state.atoms[index]
            for piece in window.gives(rank, shards.ATOMS)
            for index in range(piece.start, piece.stop)
        ]
        words = yield from exchange(ring, shards.sent(given))
        _take(atoms, window, rank, words)
    session.state = replace(state, atoms=tuple(atoms))
    return []


def _take(atoms: list[str], window: RegroupWindow, rank: int, words: list[bytes]) -> None:
    """Take from all ranks' contributions to a window; rank r contributes segment r + 1."""
    buffer = [atom for index in range(len(words)) for atom in shards.received(words[index - 1])]
    for piece in window.takes(rank, shards.ATOMS):
        atoms[piece.start : piece.stop] = buffer[piece.at : piece.at + piece.stop - piece.start]


def hashed(session: JobSession, ring: RingEndpoint, state: State) -> ShardDigests:
    """Return the digests of this rank's part of a state in this division."""
    division = division_of(session, ring)
    mine = shards.cut(state.atoms, division.shards(ring.assign.rank))
    return shards.digests(mine, state.content, division.segments)


def agreed(session: JobSession, ring: RingEndpoint, state: State) -> None:
    """All ranks have the same digest of a state, or of their former parts of it."""
    division = division_of(session, ring)
    session.shell.surroundings.oracle.shards.agreed(
        ring.assign,
        state,
        division.shards(ring.assign.rank),
        alone=division.segments == 1 or not session.mirrors,
    )


def drop(session: JobSession, ring: RingEndpoint) -> None:
    """All ranks have agreed, so each has its part: drop everything else."""
    state = session.live
    part = division_of(session, ring).shards(ring.assign.rank)
    session.lacks_part = False
    session.state = session.agreed = replace(state, atoms=shards.cut(state.atoms, part))
    session.shell.surroundings.oracle.shards.regrouped(ring.assign, session.live, part)


def division_of(session: JobSession, ring: RingEndpoint) -> Division:
    assert session.mirrors is not None
    roster = ring.assign.roster
    servers = sum(member.serves for member in roster)
    return Division(world_size=len(roster), mirrors=session.mirrors, servers=servers)
