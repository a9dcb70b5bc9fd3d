"""Times of a job's step with every strategy and codec, in worlds of every size.  Pure.

Puts what workers have measured in the form that `dtd.doctor.forecast` reads.  Nothing here knows a
codec by name: a worker lists what the job could use, with the bytes that travel and the risk.  A
choice that keeps all numbers the same is recommended as it is.  Another one is recommended for a
trial, with its risk, and only if none of the first kind helps.

A worker sends a whole bucket up to parameter servers before it gets one back, so the links with
them are computed apart from the ring (docs/strategies.md, "Parameter servers").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from dtd.doctor.checks import Finding, fail, ok, warn
from dtd.doctor.forecast import Compute, Exchanged, Forecast, LinkSpeed, forecast
from dtd.doctor.transfer import Coded, Coder, Exchange, Star
from dtd.exchange.schedule.coding_choice import Mode
from dtd.job import JobSpec
from dtd.text import figures

LEAST_GAIN: Final = 0.05
"""A step that is shorter by less is not worth a change."""

LEAST_LOSSY_SPEEDUP: Final = 1.25
"""A choice that changes the numbers has to be worth the risk."""

STAGE_OF_PARAMETERS: Final = 3
SAME_NUMBERS: Final = "same numbers"

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A strategy with a codec.

    Attributes:
        bytes_per_step: that one worker sends, after coding; None if it cannot be said.
        step_s: expected, in the largest world; None likewise.
        speedup: the job's own step over this one; None likewise.
        risk: what a job may lose, or why the choice has no figures.
        lossless: whether it keeps all numbers the same.
        for_memory: whether it is chosen to save memory, never to save time.
    """

    strategy: str
    codec: str
    every_steps: int
    own: bool
    bytes_per_step: int | None
    step_s: float | None
    speedup: float | None
    risk: str
    lossless: bool
    coded: bool = False
    for_memory: bool = False


class Routes(NamedTuple):
    """The links of a ring, servers last, and the star besides."""

    ring: Sequence[LinkSpeed]
    star: Star | None


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A job in a world of some workers.

    Attributes:
        steps: each worker's measurements, in the order of ranks.
        routes: the links among them; None if one is not known.
        divided: the links that a divided state takes, which may lead to parameter servers.
    """

    spec: JobSpec
    steps: Sequence[Values]
    routes: Routes | None
    divided: Routes | None

    @property
    def is_measured(self) -> bool:
        """Whether all workers have measured steps of a world of this size."""
        return all(str(len(self.steps)) in step["worlds"] for step in self.steps)

    def workers(self) -> list[Compute]:
        return [compute_of(step["worlds"][str(len(self.steps))]) for step in self.steps]

    def own_exchanges(self) -> Exchanged:
        """Return those of the job; gradients of several updates in a step have no codec here."""
        first, own = self.steps[0], _own_candidate(self.steps, self.spec)
        plain = Exchanged(coded=Coded.plain(first["buckets"], _coder(self.steps, first)))
        return self.exchanges(own) or self._with_copies(plain)

    def exchanges(self, candidate: Values) -> Exchanged | None:
        """Return those of a candidate, as a worker lists it; None if its codec is not measured."""
        what = exchanged(self.steps, candidate)
        return what if what is None or candidate.get("stage") else self._with_copies(what)

    def _with_copies(self, what: Exchanged) -> Exchanged:
        """Add the state that is copied after each update, if the job does so."""
        if not self.spec.strategy.copies_updates:
            return what
        state = self.steps[0]["state"]
        parts = ("parameter_bytes", "common_bytes", "optimizer_bytes")
        return replace(what, copied_bytes=sum(state[part] for part in parts))


def world_of(
    steps: Mapping[str, Values],
    links: Sequence[Values],
    *,
    spec: JobSpec,
    servers: Sequence[str] = (),
) -> World:
    """The world of all these workers, by their measurements in the order of ranks.

    `links` has {"from", "to", "rtt_s", "bytes_per_s", "same_host"} of each direction, `servers`
    the connected parameter servers.
    """
    workers = list(steps)
    routes = divided = _routes(workers, (), links, spec)
    if spec.strategy.has_servers:
        divided = _routes(workers, servers, links, spec) if servers else None
    return World(spec=spec, steps=list(steps.values()), routes=routes, divided=divided)


def compute_of(world: Values) -> Compute:
    """Read what a worker has measured of one world."""
    return Compute(
        data_s=world["data_s"],
        compute_s=world["compute_s"],
        ready_s=tuple(world["ready_s"]),
        optimizer_s=world["optimizer_s"],
    )


def forecasts(
    steps: Mapping[str, Values],
    links: Sequence[Values],
    *,
    most: int,
    spec: JobSpec,
    servers: Sequence[str] = (),
) -> list[Forecast]:
    """One for each world of the first 1, 2, ... workers that is measured and has its links.

    A job over parameter servers has none without them.  Parameters are as in `world_of`.
    """
    ranks = list(steps.items())
    sizes = range(1, min(len(ranks), most) + 1)
    worlds = [world_of(dict(ranks[:size]), links, spec=spec, servers=servers) for size in sizes]
    return [made for made in map(forecast_of, worlds) if made is not None]


def forecast_of(world: World) -> Forecast | None:
    """Forecast the job as it is; None if a link or a step of this world is not known."""
    if world.divided is None or not world.is_measured:
        return None
    return _forecast(world, world.own_exchanges(), world.divided)


def _own_candidate(steps: Sequence[Values], spec: JobSpec) -> Values:
    """The candidate that the job names, as workers list it."""
    unlisted: Values = {"codec": spec.strategy.codec, "every_steps": 1, "overlaps": False}
    listed = (one for step in steps for one in step.get("candidates", ()))
    return next((one for one in listed if _is_own(one, spec)), unlisted)


def _is_own(candidate: Values, spec: JobSpec) -> bool:
    own = spec.strategy
    return bool((candidate["strategy"], candidate["codec"]) == (own.name, own.codec))


def choices_of(world: World) -> list[Choice]:
    """Every strategy and codec that the job could name, the fastest first."""
    steps = world.steps
    if len(steps) < 2 or world.routes is None or not world.is_measured:
        return []  # alone nothing is exchanged
    listed: list[Choice] = []
    for one in steps[0].get("candidates", []):
        what = world.exchanges(one)
        routes = world.divided if one.get("stage") else world.routes
        made = None
        if what is not None and routes is not None and not one["reason"]:
            made = _forecast(world, what, routes)
        listed.append(_choice(one, world.spec, made))
    own_s = next((one.step_s for one in listed if one.own), None)
    if own_s:
        listed = [replace(one, speedup=own_s / one.step_s) if one.step_s else one for one in listed]
    return sorted(listed, key=lambda one: (one.step_s is None, one.step_s or 0.0))


def _choice(candidate: Values, spec: JobSpec, made: Forecast | None) -> Choice:
    return Choice(
        strategy=candidate["strategy"],
        codec=candidate["codec"],
        every_steps=candidate["every_steps"],
        own=_is_own(candidate, spec),
        bytes_per_step=None if made is None else made.sent_bytes,
        step_s=None if made is None else made.step_s,
        speedup=None,
        risk=candidate["reason"] or candidate["risk"] or SAME_NUMBERS,
        lossless=not (candidate["risk"] or candidate["reason"]),
        coded=made is not None and made.coded,
        for_memory=bool(candidate.get("stage")),
    )


def _routes(
    workers: Sequence[str], servers: Sequence[str], links: Sequence[Values], spec: JobSpec
) -> Routes | None:
    """The links among these ranks; None if one is not known."""
    ring = _ring([*workers, *servers], links, spec)
    star = star_of(workers, servers, links, mirrors=spec.strategy.mirrors, world_size=len(workers))
    return None if ring is None or (servers and star is None) else Routes(ring, star)


def _ring(names: Sequence[str], links: Sequence[Values], spec: JobSpec) -> list[LinkSpeed] | None:
    """The links from each to the next one; None if one is not known."""
    speeds = link_speeds(links, spec)
    size = len(names)
    ways = [(names[rank], names[(rank + 1) % size]) for rank in range(size)] if size > 1 else []
    return [speeds[way] for way in ways] if all(way in speeds for way in ways) else None


def link_speeds(links: Sequence[Values], spec: JobSpec) -> dict[tuple[str, str], LinkSpeed]:
    """The links whose rate was measured, by sender and receiver; a process group codes nothing."""
    lossless: Mode = spec.sync.lossless if spec.sync.transport == "ring" else "off"
    return {
        (link["from"], link["to"]): LinkSpeed(
            sender=link["from"],
            receiver=link["to"],
            latency_s=link["rtt_s"] / 2,
            bytes_per_s=link["bytes_per_s"],
            lossless="off" if link.get("same_host") and lossless == "auto" else lossless,
        )
        for link in links
        if link["bytes_per_s"]
    }


def _forecast(world: World, what: Exchanged, routes: Routes) -> Forecast:
    return forecast(
        world.workers(),
        routes.ring,
        what=what,
        rows=world.steps[0]["rows"],
        star=routes.star,
    )


def exchanged(steps: Sequence[Values], candidate: Values) -> Exchanged | None:
    """Return the exchanges of a step of these workers; None if one cannot use the codec.

    What a codec takes follows from its passes over the memory of a bucket, and from the time of one
    pass, which each worker has measured: half of it for encoding, shared by the stages, and half
    for decoding.  Adding two wire buffers takes one pass over them, or all passes of the codec
    where it adds by itself.

    A candidate is what a worker lists: "codec", "every_steps", "overlaps", and of a state that is
    divided "stage" and "mirrors".
    """
    *sizes, scalars = steps[0]["buckets"]
    codec = candidate["codec"]
    own_coder = _coder(steps, steps[0])
    if codec == "none":
        coded = Coded.plain([*sizes, scalars], own_coder)
    else:
        known = [step.get("codecs", {}).get(codec) for step in steps]
        if not all(known):
            return None
        pass_s = max(step["pass_s_per_byte"] for step in steps)
        coder = _coder(steps, known[0])
        coded = _coded(known[0], sizes, scalars, pass_s, coder, world_size=len(steps))
    whole = Exchanged(
        coded=coded, every_steps=candidate["every_steps"], overlaps=candidate["overlaps"]
    )
    return _divided(whole, sizes, candidate, own_coder) if candidate.get("stage") else whole


def _coder(steps: Sequence[Values], travelling: Values) -> Coder | None:
    """The lossless coder of these payloads, as slow and as weak as in the worst worker."""
    known = [step.get("coding", {}).get(travelling.get("dtype")) for step in steps]
    if not all(known):
        return None
    return Coder(
        share=max(one["share"] for one in known),
        bytes_per_s=min(min(one["encode_bytes_per_s"], one["decode_bytes_per_s"]) for one in known),
    )


def _coded(
    codec: Values,
    sizes: Sequence[int],
    scalars: int,
    pass_s: float,
    coder: Coder | None,
    *,
    world_size: int,
) -> Coded:
    """Return the exchanges of buckets through a codec, and of the scalars without it."""
    half_s = [codec["passes"] * size * pass_s / 2 for size in sizes]
    stages = Counter(bucket for bucket, *_ in codec["wires"])
    exchanges = []
    for bucket, size, gathers, adds in codec["wires"]:
        exchanges.append(
            Exchange(
                bucket=bucket,
                size_bytes=size * world_size if gathers else size,
                gathers=gathers,
                encode_s=half_s[bucket] / stages[bucket],
                add_s=0.0 if gathers else 2 * half_s[bucket] if adds else size * pass_s,
                coder=coder,
            )
        )
    last = Exchange(bucket=len(sizes), size_bytes=scalars)
    return Coded(exchanges=(*exchanges, last), decode_s=(*half_s, 0.0))


def _divided(
    whole: Exchanged, sizes: Sequence[int], candidate: Values, coder: Coder | None
) -> Exchanged:
    """Return the halves of its sums: gradients are scattered, parameters gathered as they are.

    Parameters are taken to shrink as gradients do.
    """
    mirrors = candidate["mirrors"]
    gathers = [
        Exchange(bucket=bucket, size_bytes=size, gathers=True, copies=mirrors, coder=coder)
        for bucket, size in enumerate(sizes)
    ]
    *sums, scalars = whole.coded.exchanges
    travelling: list[Exchange] = []
    for one in sums:
        if candidate["stage"] == STAGE_OF_PARAMETERS:  # they are gathered for backward, too
            travelling.append(gathers[one.bucket])
        travelling.append(replace(one, scatters=True, copies=mirrors))
    ordered = [replace(one, bucket=at) for at, one in enumerate(reversed(gathers))]
    return replace(
        whole,
        coded=replace(whole.coded, exchanges=(*travelling, scalars)),
        parameters=Coded(exchanges=tuple(ordered), decode_s=(0.0,) * len(ordered)),
    )


def recommended(listed: Sequence[Choice]) -> Choice | None:
    """The choice that is worth a change of the job, if there is one."""
    better = [one for one in listed if one.speedup and 1 - 1 / one.speedup >= LEAST_GAIN]
    own = next((one for one in listed if one.own), None)
    # A division of the state is chosen for memory: it never saves time.
    better = [one for one in better if own is not None and one.for_memory == own.for_memory]
    better = [one for one in better if one.lossless] or [
        one for one in better if (one.speedup or 0.0) >= LEAST_LOSSY_SPEEDUP
    ]
    if not better:
        return None
    # Of those that are about as fast as the fastest, the one that leaves least out.
    fastest_s = min(one.step_s or 0.0 for one in better)
    near = [one for one in better if (one.step_s or 0.0) * (1 - LEAST_GAIN) <= fastest_s]
    return max(near, key=lambda one: one.bytes_per_step or 0)


def check_choice(listed: Sequence[Choice]) -> Iterator[Finding]:
    """One recommendation, or none if nothing helps much."""
    best = recommended(listed)
    if best is None:
        return
    write = f'under [strategy] write name = "{best.strategy}" and codec = "{best.codec}"'
    if not best.lossless:
        write = f"compare the loss of short runs first; {write}"
    own_s = (best.step_s or 0.0) * (best.speedup or 0.0)
    yield ok(
        "strategy",
        f"with strategy {best.strategy} and codec {best.codec} a step should take"
        f" {figures.span(best.step_s)} instead of {figures.span(own_s)}"
        f" ({best.speedup:.2f} times as fast): {best.risk}",
        write,
    )


def check_servers(spec: JobSpec, servers: int) -> Iterator[Finding]:
    """Check that there are enough parameter servers for a job that wants them."""
    if not spec.strategy.has_servers:
        return
    start = "start a dtd-worker@server (`dtd-worker --role server`), on a host with a fast link"
    if not servers:
        yield fail(
            "strategy",
            '[strategy] owners = "servers", and no parameter server is connected',
            f'{start}, or use owners = "workers"',
        )
    elif servers == 1 or spec.strategy.mirrors == 0:
        count = "one server" if servers == 1 else "strategy.mirrors = 0"
        yield warn(
            "strategy",
            f"{count}: the loss of a server costs the steps since the newest checkpoint",
            f"{start}, and keep strategy.mirrors = 1: then a loss costs no step",
        )


def star_of(
    workers: Sequence[str],
    servers: Sequence[str],
    links: Sequence[Values],
    *,
    mirrors: int,
    world_size: int,
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
    owners = len(servers)
    copies = min(mirrors, owners - 1)
    out, back = _own_rates(rates, 0), _own_rates(rates, 1)
    up = [(out[name], name) for name in workers]
    up += [(back[name] * owners / (world_size + copies), name) for name in servers]
    up += [(rates[way] * owners, way[1]) for way in ways]
    down = [(back[name], name) for name in workers]
    down += [(out[name] * owners / (world_size + owners - 1 - copies), name) for name in servers]
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
