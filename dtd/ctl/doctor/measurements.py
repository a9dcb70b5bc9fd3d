"""The measurements of `dtdctl doctor`, and the forecast from them for worlds of every size."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

from dtd.ctl import output
from dtd.ctl.doctor.servers import has_servers, star_of
from dtd.ctl.doctor.strategies import Choice, choices, exchanged, plain
from dtd.ctl.packages import ship
from dtd.ctl.settings import Settings
from dtd.doctor.forecast import Compute, Exchanged, Forecast, LinkSpeed, forecast
from dtd.doctor.travel import Coded, Star
from dtd.errors import CoordinatorUnreachable, RequestRefused
from dtd.job import JobSpec
from dtd.net.control_client import ControlClient
from dtd.packages.pack import Archive
from dtd.wire import messages as m

# ---
# A job's step in worlds of every size, from the steps and links that `dtdctl doctor` measured.
#
# Puts measurements in the form that `dtd.doctor.forecast` reckons with.  Pure.


Values = Mapping[str, Any]


def forecasts(
    steps: Mapping[str, Values],
    links: Sequence[Values],
    *,
    most: int,
    spec: JobSpec,
    servers: Sequence[str] = (),
) -> list[Forecast]:
    """One for each world of the first 1, 2, ... workers, as far as links are known.

    A job that wants parameter servers has none without them.

    Args:
        steps: each worker's measurements, by name, in the order of ranks.
        links: {"from", "to", "rtt_s", "bytes_per_s"} of each direction.
        most: the largest world.
        spec: the job.
        servers: the parameter servers, of use to a job that wants them.
    """
    made: list[Forecast] = []
    wants, says = has_servers(spec), _own_choice(steps, spec)
    servers = servers if wants else ()
    for size in range(1, min(len(steps), most) + 1):
        ranks = dict(list(steps.items())[:size])
        ring = _ring([*ranks, *servers], links)
        star = star_of(list(ranks), servers, links, mirrors=spec.strategy.mirrors)
        if ring is None or (wants and star is None):
            break
        if not all(str(size) in step["worlds"] for step in ranks.values()):
            continue  # the job does not train in so small a world
        own = exchanged(list(ranks.values()), says) if len(ring) > 1 else None
        # What the job's own steps took counts where a worker does not know its codec's costs.
        used = {
            name: step if own is None else {**step, **plain(step)} for name, step in ranks.items()
        }
        made.append(_forecast(used, ring, own or _as_measured(ranks), star))
    return made


def _own_choice(steps: Mapping[str, Values], spec: JobSpec) -> Values:
    """The candidate that the job names, as workers list it."""
    says: Values = {"codec": spec.codec, "every_steps": 1, "overlaps": False}
    for step in steps.values():
        for one in step.get("candidates", []):
            if (one["strategy"], one["codec"]) == (spec.strategy.name, spec.codec):
                says = one
    return says


def choices_of(
    steps: Mapping[str, Values],
    links: Sequence[Values],
    *,
    spec: JobSpec,
    servers: Sequence[str] = (),
) -> list[Choice]:
    """Every strategy and codec that the job could name, in the world of all who measured steps.

    A divided state goes over the parameter servers if the job wants them.
    """
    ranks, ring = list(steps.values()), _ring(list(steps), links)
    wants = has_servers(spec)
    star = star_of(list(steps), servers, links, mirrors=spec.strategy.mirrors) if wants else None
    longer = _ring([*steps, *servers], links)
    measured = all(str(len(ranks)) in step["worlds"] for step in ranks)
    if len(ranks) < 2 or ring is None or not measured:  # alone nothing is exchanged
        return []
    step_s: dict[tuple[str, str], float] = {}
    for one in ranks[0].get("candidates", []):
        what = exchanged(ranks, one)
        if what is None or one["reason"]:
            continue
        used = {name: {**step, **plain(step)} for name, step in steps.items()}
        if wants and one.get("stage"):
            if star is None or longer is None:
                continue
            found = _forecast(used, longer, what, star)
        else:
            found = _forecast(used, ring, what)
        step_s[one["strategy"], one["codec"]] = found.step_s
    return choices(spec, ranks, step_s, star)


def _as_measured(steps: Mapping[str, Values]) -> Exchanged:
    return Exchanged(coded=Coded.plain(next(iter(steps.values()))["buckets"]))


def _ring(names: Sequence[str], links: Sequence[Values]) -> list[LinkSpeed] | None:
    """The links from each to the next one; None if one is not known."""
    speeds = {
        (link["from"], link["to"]): LinkSpeed(
            sender=link["from"],
            receiver=link["to"],
            latency_s=link["rtt_s"] / 2,
            bytes_per_s=link["bytes_per_s"],
        )
        for link in links
        if link["bytes_per_s"]
    }
    size = len(names)
    ways = [(names[rank], names[(rank + 1) % size]) for rank in range(size)] if size > 1 else []
    return [speeds[way] for way in ways] if all(way in speeds for way in ways) else None


def _forecast(
    steps: Mapping[str, Values],
    ring: Sequence[LinkSpeed],
    what: Exchanged,
    star: Star | None = None,
) -> Forecast:
    first = next(iter(steps.values()))
    return forecast(
        [_compute(step, len(steps)) for step in steps.values()],
        ring,
        what=what,
        rows=first["rows"],
        overhead_s=max((link.latency_s for link in ring), default=0.0),
        star=star,
    )


def _compute(step: Values, world_size: int) -> Compute:
    world = step["worlds"][str(world_size)]
    return Compute(
        data_s=world["data_s"],
        compute_s=world["compute_s"],
        ready_s=tuple(world["ready_s"]),
        optimizer_s=world["optimizer_s"],
    )


# ---
# Have the coordinator measure what `dtdctl doctor` wants to know: one EXAMINE for each figure.


ANSWER_TIMEOUT_S: Final = 200.0
"""Beyond the coordinator's own patience with a worker."""


class Patient:
    """The cluster that is examined."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def ask(self, request: m.Examine) -> dict[str, Any]:
        """One measurement; a refusal ends its connection, so each has its own."""
        with self._settings.connect() as client:
            client.ask(request)
            return _answer(client)

    def ship(self, archive: Archive) -> str:
        """Upload a task's package to the coordinator; returns its digest."""
        with self._settings.connect() as client:
            ship(client, archive)
        return archive.digest

    def each(
        self, requests: dict[str, m.Examine]
    ) -> tuple[dict[str, dict[str, Any]], dict[str, RequestRefused]]:
        """Concurrent measurements, and those that failed."""
        answers: dict[str, dict[str, Any]] = {}
        refusals: dict[str, RequestRefused] = {}
        with ExitStack() as stack:
            clients = {name: stack.enter_context(self._settings.connect()) for name in requests}
            for name, client in clients.items():
                client.ask(requests[name])
            for name, client in clients.items():
                try:
                    answers[name] = _answer(client)
                except RequestRefused as error:
                    refusals[name] = error
        return answers, refusals


def _answer(client: ControlClient) -> dict[str, Any]:
    answer = client.answer(timeout_s=ANSWER_TIMEOUT_S)
    if answer is None:
        raise CoordinatorUnreachable(
            f"the coordinator did not answer within {ANSWER_TIMEOUT_S:g} s",
            remedy="read its log",
        )
    return answer


def measure_links(
    patient: Patient, names: Sequence[str], *, bandwidths: bool, force: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Both directions between every two workers, one at a time; and those that do not work."""
    links: list[dict[str, Any]] = []
    unreached: list[dict[str, Any]] = []
    what = "bandwidth" if bandwidths else "latency"
    ways = [(sender, receiver) for sender in names for receiver in names if sender != receiver]
    for number, (sender, receiver) in enumerate(ways, start=1):
        if sys.stderr.isatty():
            output.say(f"measuring {sender} -> {receiver} ({number}/{len(ways)})")
        request = m.Examine(what=what, worker=receiver, peer=sender, spec={}, force=force)
        way = {"from": sender, "to": receiver}
        try:
            measured = patient.ask(request)
        except RequestRefused as error:
            unreached.append({**way, "reason": error.message, "remedy": error.remedy})
        else:
            links.append(
                {**way, "rtt_s": measured["rtt_s"], "bytes_per_s": measured.get("bytes_per_s")}
            )
    return links, unreached
