"""dtd, the Distributed Training Daemon: data-parallel PyTorch training as a Linux service.

Importing this package never imports torch.  `docs/how-a-step-flows.md` follows a gradient through
the folders below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dtd.datasets.local import data_path
    from dtd.own_loop.run import Run, join

__version__ = "0.1.0"
__all__ = ["Run", "__version__", "data_path", "join"]


def __getattr__(name: str) -> Any:
    """Import `join` and `Run`, and with them torch, when they are used; `data_path` without it."""
    if name == "data_path":
        from dtd.datasets.local import data_path

        return data_path
    if name not in ("Run", "join"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dtd.own_loop import run

    run.look_for_cluster(_find_cluster)
    return getattr(run, name)


def _find_cluster(job: str) -> Any:
    """Return the host of a script's job on a cluster, if this user's scripts take part in one."""
    import os

    from dtd.worker.cluster_access import is_in_cluster

    if not is_in_cluster(os.environ):
        return None
    from dtd.worker.job.by_hand import ByHand

    return ByHand(job)
