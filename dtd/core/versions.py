"""Which versions of dtd may work together: those that are equal up to the patch level.

A patch can so be rolled out host by host.
It changes neither messages nor numbers; a minor release may change either.  Pure.
"""

from __future__ import annotations

from dtd import troubles
from dtd.core.records import Worker

_RELEASE_PARTS = 2


def refusal(worker: Worker, *, version: str, host: str) -> str:
    """Why a worker's dtd must not work with this coordinator's; empty when it may.

    Args:
        worker: with its version and host.
        version: this coordinator's; empty: any will do.
        host: where this coordinator runs.
    """
    if not version or _release(worker.registration.version) == _release(version):
        return ""
    return str(
        troubles.versions_differ(
            worker.name,
            worker.registration.host,
            worker.registration.version,
            coordinator_host=host,
            ours=version,
        )
    )


def note(theirs: str, ours: str) -> str:
    """What to say of a version that differs and is allowed; empty when it does not differ."""
    return f" with dtd {theirs}, the coordinator has {ours}" if ours and theirs != ours else ""


def _release(version: str) -> list[str]:
    """Major and minor number: "0.1.7" is of release 0.1."""
    return version.split(".")[:_RELEASE_PARTS]
