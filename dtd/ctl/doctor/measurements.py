"""What `dtdctl doctor` has measured, and what that forecasts for worlds of every size."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

from dtd.core.observe.forecast import Compute, Forecast, LinkSpeed, forecast
from dtd.ctl import output
from dtd.ctl.packages import ship
from dtd.ctl.settings import Settings
from dtd.errors import CoordinatorUnreachable, RequestRefused
from dtd.net.control_client import ControlClient
from dtd.packages.pack import Archive
from dtd.wire import messages as m

# ---
# A job's step in worlds of every size, from the steps and links that `dtdctl doctor` measured.
#
# Puts measurements in the form that `dtd.core.observe.forecast` reckons with.  Pure.


Values = Mapping[str, Any]


def forecasts(steps: Mapping[str, Values], links: Sequence[Values], *, most: int) -> list[Forecast]:
    """One for each world of the first 1, 2, ... workers, as far as links are known.

    Args:
        steps: what each worker measured, by name, in the order of ranks.
        links: {"from", "to", "rtt_s", "bytes_per_s"} of each direction.
        most: the largest world.
    """
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
    names = list(steps)
    made: list[Forecast] = []
    for size in range(1, min(len(names), most) + 1):
        ring = [(names[rank], names[(rank + 1) % size]) for rank in range(size)] if size > 1 else []
        if not all(way in speeds for way in ring):
            break
        first = steps[names[0]]
        made.append(
            forecast(
                [_compute(steps[name], size) for name in names[:size]],
                [speeds[way] for way in ring],
                bucket_bytes=first["buckets"],
                rows=first["rows"],
                overhead_s=max((speeds[way].latency_s for way in ring), default=0.0),
            )
        )
    return made


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
        """Bring a task's package to the coordinator; its digest."""
        with self._settings.connect() as client:
            ship(client, archive)
        return archive.digest

    def each(
        self, requests: dict[str, m.Examine]
    ) -> tuple[dict[str, dict[str, Any]], dict[str, RequestRefused]]:
        """Measurements at the same time, and those that came to nothing."""
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
