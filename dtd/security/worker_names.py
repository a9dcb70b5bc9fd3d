"""The names that a host's credential is good for: a list that is settled when it joins.  Pure.

A host with several devices has one credential and several workers.  Each of their names stands in
the certificate; no rule makes further ones of them, so that `host7` reaches nobody of `host7-b`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dtd.errors import RequestRefused
from dtd.names import is_name

MAX_NAMES: Final = 64
"""So many workers can one credential be good for."""
USUAL_GPUS: Final = 16
USUAL_INSTANCES: Final = ("cpu", *(f"cuda{number}" for number in range(USUAL_GPUS)))
"""What is asked for when nobody says otherwise: dtd-worker@cpu, @cuda0 to @cuda15."""


def worker_names(host: str, instances: Sequence[str] = USUAL_INSTANCES) -> tuple[str, ...]:
    """The names of a host's workers: its own, and one for each instance of the unit that fits."""
    names = (host, *(f"{host}-{instance}" for instance in instances))
    return tuple(dict.fromkeys(name for name in names if is_name(name)))


def split_names(text: str) -> tuple[str, ...]:
    """Names with commas between, each once."""
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def check_names(host: str, names: Sequence[str]) -> None:
    """Whether a host may ask for these names: its own, or its own with an ending.

    Raises:
        RequestRefused: one of them is no name or not this host's, or they are too many.
    """
    if len(names) > MAX_NAMES:
        raise RequestRefused(
            f"{host[:80]} asks for {len(names)} names, and a credential has {MAX_NAMES} at most",
            remedy="name fewer with --instances",
        )
    for name in names:
        own = name == host or (name.startswith(f"{host}-") and name != f"{host}-")
        if not own or not is_name(name):
            raise RequestRefused(
                f"{host[:80]} cannot be given the name {name[:80]!r}",
                remedy=f"its workers are called {host[:80]} or {host[:80]}-INSTANCE, 64 characters"
                " at most",
            )
