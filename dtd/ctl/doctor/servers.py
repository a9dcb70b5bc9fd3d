"""Parameter servers as `dtdctl doctor` sees them: whether a job has them, and their links.  Pure.

A worker sends a whole bucket up before it gets one back, so the links with servers are reckoned
apart from the ring (docs/strategies.md, "Parameter servers").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dtd.ctl.doctor.checks import Finding
from dtd.doctor.travel import Star
from dtd.job import JobSpec
from dtd.job.strategy_table import SHARDED

Values = Mapping[str, Any]


def has_servers(spec: JobSpec) -> bool:
    """Whether a job wants parameter servers."""
    return spec.strategy.name in SHARDED and spec.strategy.owners == "servers"


def check_servers(spec: JobSpec, servers: int) -> Iterator[Finding]:
    """Check that there are enough parameter servers for a job that wants them.

    Args:
        spec: the job.
        servers: those that are connected.
    """
    if not has_servers(spec):
        return
    start = "start a dtd-worker@server (`dtd-worker --role server`), on a host with a fast link"
    if not servers:
        yield Finding(
            check="strategy",
            state="fail",
            message='[strategy] owners = "servers", and no parameter server is connected',
            remedy=f'{start}, or use owners = "workers"',
        )
    elif servers == 1 or spec.strategy.mirrors == 0:
        count = "one server" if servers == 1 else "strategy.mirrors = 0"
        yield Finding(
            check="strategy",
            state="warn",
            message=f"{count}: the loss of a server costs the steps since the newest checkpoint",
            remedy=f"{start}, and keep strategy.mirrors = 1: then a loss costs no step",
        )


def star_of(
    workers: Sequence[str], servers: Sequence[str], links: Sequence[Values], *, mirrors: int
) -> Star | None:
    """The star of these ranks; None if there is no server or a link is not known.

    A bucket's n bytes go up through each worker's link, and N n / S through that of each of S
    servers, and m n / S more to its m mirrors.  Down, each worker gets n again, and servers what
    they do not hold.  A rank's own link is as fast as the fastest way that was measured over it,
    one at a time: one server seems no faster than the fastest worker, so this is the worst case.
    """
    rates = {
        (link["from"], link["to"]): link["bytes_per_s"] for link in links if link["bytes_per_s"]
    }
    ways = [(one, other) for one in workers for other in servers]
    both = [*ways, *((other, one) for one, other in ways)]
    if not ways or not all(way in rates for way in both):
        return None
    trainers, owners = len(workers), len(servers)
    copies = min(mirrors, owners - 1)
    out, back = _own_rates(rates, 0), _own_rates(rates, 1)
    up = [(out[name], name) for name in workers]
    up += [(back[name] * owners / (trainers + copies), name) for name in servers]
    up += [(rates[way] * owners, way[1]) for way in ways]
    down = [(back[name], name) for name in workers]
    down += [(out[name] * owners / (trainers + owners - 1 - copies), name) for name in servers]
    down += [(rates[other, one] * owners, other) for one, other in ways]
    trips_s = {(link["from"], link["to"]): link["rtt_s"] for link in links}
    return Star(
        servers=owners,
        latency_s=max(trips_s[way] for way in both) / 2,
        up_bytes_per_s=min(up)[0],
        down_bytes_per_s=min(down)[0],
        narrowest=min(*up, *down)[1],
    )


def _own_rates(rates: Mapping[tuple[str, str], float], end: int) -> dict[str, float]:
    """The fastest that each sends (0) or receives (1)."""
    found: dict[str, float] = {}
    for way, rate in rates.items():
        found[way[end]] = max(rate, found.get(way[end], 0.0))
    return found
