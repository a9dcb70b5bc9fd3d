"""Requests to the coordinator by URL; the page can make no others.

Queries become the messages that `dtdctl` sends, and fields are checked as those are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from dtd.errors import RequestRefused
from dtd.rules import did_you_mean
from dtd.wire import messages as m

MOST_POINTS: Final = 1000
MOST_NAMES: Final = 32
_LARGEST: Final = 2**53
"""The largest integer that a browser's numbers can count to."""

_MOST_VERSIONS: Final = 2**32

Query = Mapping[str, str]


def metrics(job: str, query: Query) -> m.GetMetrics:
    """Curves of a job.

    Raises:
        RequestRefused: a number is none, or too large.
    """
    names = tuple(name for name in query.get("names", "").split(",") if name)
    if len(names) > MOST_NAMES:
        raise RequestRefused(f"names: {len(names)} figures are more than {MOST_NAMES}")
    return m.GetMetrics(
        job=job,
        names=names,
        workers=query.get("workers", "") == "1",
        from_step=number(query, "from", 0),
        to_step=number(query, "to", 0),
        points=min(MOST_POINTS, max(1, number(query, "points", 400))),
        after=number(query, "after", 0),
    )


def comparison(query: Query) -> m.CompareJobs:
    """Return the request for the differences between jobs."""
    return m.CompareJobs(jobs=tuple(job for job in query.get("jobs", "").split(",") if job))


def number(query: Query, name: str, otherwise: int, most: int = _LARGEST) -> int:
    """A whole number of a query.

    Raises:
        RequestRefused: it is none, or too large.
    """
    text = query.get(name, "")
    if not text:
        return otherwise
    if not (text.isascii() and text.isdigit() and len(text) <= 16 and int(text) <= most):
        raise RequestRefused(f"{name}: must be a whole number from 0 to {most}")
    return int(text)


ACTIONS: Final[Mapping[str, Callable[[Mapping[str, Any]], m.Message]]] = {
    "cancel": lambda given: m.CancelJob(job=_text(given, "job")),
    "cancel-sweep": lambda given: m.CancelSweep(sweep=_text(given, "sweep")),
    "drain": lambda given: m.DrainWorker(name=_text(given, "worker")),
    "alias": lambda given: m.AliasModel(
        name=_text(given, "model"), alias=_text(given, "alias"), version=_version(given)
    ),
    "kill": lambda given: m.KillWorker(name=_text(given, "worker"), signal="KILL"),
}


def action(given: Any) -> m.Message:
    """Read the action that a browser requests.

    Raises:
        RequestRefused: it is none of the actions, or lacks a field.
    """
    if not isinstance(given, dict):
        raise RequestRefused("an action is a JSON object")
    what = _text(given, "what")
    if what not in ACTIONS:
        raise RequestRefused(f"{what[:40]!r} is no action{did_you_mean(what, sorted(ACTIONS))}")
    return ACTIONS[what](given)


def _text(given: Mapping[str, Any], name: str) -> str:
    found = given.get(name)
    if not isinstance(found, str) or not found:
        raise RequestRefused(f"{name}: must be a text")
    return found


def _version(given: Mapping[str, Any]) -> int:
    found = given.get("version")
    if not isinstance(found, int) or isinstance(found, bool) or not 0 < found < _MOST_VERSIONS:
        raise RequestRefused("version: must be a number")
    return found
