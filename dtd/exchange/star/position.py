"""A rank's position in a star: its links, which frames each of them carries, and their headers.

The first T of N ranks are trainers, the last S = N - T are servers.  A trainer has a link with each
server, a server with each other rank.  A server pushes nothing: it trains no rows.  Every frame
passes here first (protocol.md, "Star"): its generation, source, phase and step are checked before
anything else in it is used.
"""

from __future__ import annotations

from dtd.engine.shards import Division
from dtd.errors import ErrorCode, LocalProtocolError, ProtocolError
from dtd.wire.messages import Chunk, Phase


class StarPosition:
    """The position of a rank.

    Args:
        rank: this rank.
        world_size: number of ranks.
        servers: number of servers, which are the last ranks.
        generation: carried by every frame; frames of others are rejected.
        first_step: the first step that will be opened.

    Attributes:
        trainers: number of trainers.
        own: the segment that this rank owns; None: it is a trainer.

    Raises:
        LocalProtocolError: there is no server, or no trainer.
    """

    def __init__(
        self, *, rank: int, world_size: int, servers: int, generation: int, first_step: int
    ) -> None:
        if not 0 < servers < world_size:
            raise LocalProtocolError(f"a star of {world_size} ranks has {servers} servers")
        self.rank = rank
        self.world_size = world_size
        self.servers = servers
        self.generation = generation
        self.first_step = first_step
        self.trainers = world_size - servers
        self.own = rank - self.trainers if rank >= self.trainers else None
        self._held: dict[int, list[int]] = {}

    def owner(self, segment: int) -> int:
        """Return the rank that owns a segment."""
        return self.trainers + segment

    def holders(self, segment: int, copies: int) -> list[int]:
        """Return the ranks that hold a segment: its owner, and then its mirrors.

        Args:
            segment: the segment.
            copies: as in `BucketShape`.
        """
        count = min(copies + 1, self.servers)
        return [self.owner((segment + after) % self.servers) for after in range(count)]

    def held(self, copies: int) -> list[int]:
        """Return the segments that this rank holds: its own one first, then those it mirrors."""
        if copies not in self._held:
            division = Division(world_size=self.world_size, mirrors=copies, servers=self.servers)
            self._held[copies] = division.held(self.rank)
        return self._held[copies]

    def carries(self, phase: int, source: int) -> bool:
        """Whether a rank may send chunks of this phase to this one."""
        if source == self.rank or source >= self.world_size:
            return False
        serves = source >= self.trainers
        if phase == Phase.PULL:
            return serves
        return self.own is not None and (
            (phase == Phase.PUSH and not serves) or (phase == Phase.SUMMED and serves)
        )

    def is_early(self, chunk: Chunk, *, link: int, step: int) -> bool:
        """Whether a chunk belongs to the step after the open one.

        Args:
            chunk: the chunk.
            link: the rank at the other end of its link.
            step: the open step.

        Raises:
            ProtocolError: it belongs to neither step, to another generation, or to another rank,
                or that rank has nothing of this phase to send here.
        """
        if chunk.generation != self.generation:
            raise ProtocolError(
                ErrorCode.STALE_GENERATION,
                f"frame of generation {chunk.generation}; this star is generation"
                f" {self.generation}",
            )
        if chunk.source != link or not self.carries(chunk.phase, link):
            raise ProtocolError(
                ErrorCode.WRONG_SOURCE,
                f"chunk of phase {chunk.phase} from rank {chunk.source} on the link of rank"
                f" {link}, which has none for rank {self.rank}",
            )
        if chunk.step not in (step, step + 1) or chunk.step < self.first_step:
            raise ProtocolError(
                ErrorCode.UNEXPECTED_CHUNK,
                f"frame of step {chunk.step}; this star is at step {max(step, self.first_step)}",
            )
        return chunk.step == step + 1

    def chunk(self, phase: Phase, *, step: int, bucket: int, chunk: int) -> Chunk:
        """The header of a chunk sent by this rank."""
        return Chunk(
            generation=self.generation,
            step=step,
            phase=phase,
            hop=0,
            bucket=bucket,
            chunk=chunk,
            source=self.rank,
        )
