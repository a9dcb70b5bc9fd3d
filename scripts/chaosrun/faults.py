"""The kinds of faults that a run can choose from.

An injector does one thing to one victim, writes it down with the moment at which it took effect,
and arranges for its end.  It neither waits for what comes of it nor judges that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from scripts.chaosrun import hurt_hosts, hurt_links, hurt_workers
from scripts.chaosrun.drill import Drill
from scripts.chaosrun.injection import Injection

Needs = Literal["", "cut", "proxies", "disks"]
Injector = Callable[[Drill, str], "Injection | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of fault.

    Attributes:
        inject: does it to a worker (or to nobody in particular); None when it could not be done.
        needs: what the run must offer.
        ends_generation: whether the ring must be formed again because of it.
        weight: how often it is chosen in a mix.
    """

    inject: Injector
    needs: Needs = ""
    ends_generation: bool = True
    weight: float = 1.0


KINDS: Final[dict[str, Kind]] = {
    "kill": Kind(inject=hurt_workers.kill, weight=4.0),
    "stop": Kind(inject=hurt_workers.stop, weight=2.0),
    "gil": Kind(inject=hurt_workers.gil),
    "stuck": Kind(inject=hurt_workers.stuck, weight=0.5),
    "term": Kind(inject=hurt_workers.term),
    "leave": Kind(inject=hurt_workers.leave),
    "join": Kind(inject=hurt_workers.join),
    "link": Kind(inject=hurt_links.link, needs="cut"),
    "oneway": Kind(inject=hurt_links.oneway, needs="cut"),
    "partition": Kind(inject=hurt_links.partition, needs="cut"),
    "flip": Kind(inject=hurt_links.flip, needs="proxies", weight=1.5),
    "flip_back": Kind(
        inject=hurt_links.flip_back,
        needs="proxies",
        ends_generation=False,
        weight=0.5,
    ),
    "slow": Kind(inject=hurt_links.slow, needs="proxies", ends_generation=False),
    "coordinator": Kind(inject=hurt_hosts.coordinator, ends_generation=False, weight=2.0),
    "coordinator_away": Kind(inject=hurt_hosts.coordinator_away, ends_generation=False, weight=0.3),
    "orphan": Kind(inject=hurt_hosts.orphan, weight=0.3),
    "disk": Kind(inject=hurt_hosts.disk, needs="disks", ends_generation=False),
    "rot": Kind(inject=hurt_hosts.rotten, ends_generation=False),
    "all": Kind(inject=hurt_hosts.everything, weight=0.3),
}
