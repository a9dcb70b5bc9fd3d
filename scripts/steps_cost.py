"""Cost of recording and showing figures, for a step of 10 ms: wall time, side by side.

    python -m scripts.steps_cost [BLOCKS]

Two clusters train the same job, whose computation sleeps, with two workers each, and take turns in
blocks of steps (ABBA).  One keeps its figures, serves the web page to a viewer, and writes for W&B;
the coordinator of the other is `scripts.bare_coordinator`, which does nothing of that.  Medians of
the ratios of neighbouring blocks are told.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
from typing import Any, Final

from dtd.wire import messages as m
from scripts.benchrun.daemons import DaemonRun
from scripts.benchrun.workloads import Workload
from scripts.cluster.networks import Loopback
from scripts.web_viewer import Viewer

BLOCKS: Final = 20
WORKERS: Final = ("worker-0", "worker-1")
STEP: Final = Workload(
    what="four linear layers, 20,000 parameters, that wait 8 ms",
    model="layers",
    rows=16,
    block_steps=301,
    options={"parameters": 20_000, "layers": 4, "rows": 2048, "compute_ms": 8.0},
)
FULL: Final = 'web = "127.0.0.1:0"\nwandb = "offline"\n'


def measure(blocks: int, step: Workload = STEP) -> dict[str, Any]:
    """Seconds of a step with and without, and the ratio.

    Args:
        blocks: of each, besides a first one that does not count.
        step: the trained workload.
    """
    with contextlib.ExitStack() as stack:

        def made(coordinator: str, settings: str) -> DaemonRun:
            network = stack.enter_context(contextlib.closing(Loopback()))
            run = DaemonRun(
                step, WORKERS, network, blocks + 1, coordinator=coordinator, settings=settings
            )
            return stack.enter_context(contextlib.closing(run))

        full = made("dtd.coordinator.main", FULL)
        bare = made("scripts.bare_coordinator", "")
        viewer = Viewer(full.ask(m.OpenWeb()))
        for run in (full, bare):
            run.block()
        pairs = []
        for number in range(blocks):
            order = (full, bare) if number % 2 else (bare, full)
            step_s = {run: run.block().step_s for run in order}
            pairs.append((step_s[full], step_s[bare]))
        assert viewer.read_bytes, "the viewer saw nothing"
        kept = full.ask(m.GetMetrics(job="bench-1", names=("loss",)))
        assert kept["steps"], "nothing was kept"
    ratios = sorted(one / other for one, other in pairs)
    return {
        "with_s": statistics.median(one for one, _ in pairs),
        "without_s": statistics.median(other for _, other in pairs),
        "ratio": statistics.median(ratios),
        "quartiles": statistics.quantiles(ratios, n=4)[::2],
        "viewer_bytes": viewer.read_bytes,
        "blocks": blocks,
    }


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]) if len(sys.argv) > 1 else BLOCKS)))
