"""What the daemons themselves say of the incidents, beside what the logs show."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import Any

from dtd.wire import messages as m
from scripts.chaosrun.drill import Drill

_COMPARED = ("worker_lost", "generation_ending", "generation_running", "recovered", "steps_lost")


def compare_events(drill: Drill) -> dict[str, Any]:
    """Counts of incidents in the coordinator's store and in its log, and its own recovery times.

    The two counts differ by at most what the coordinator had not yet written when it was killed.
    """
    stored = Counter[str]()
    recovered_s: list[float] = []
    after = 0
    while page := (drill.cluster.ask(m.ReadEvents(after=after)) or {"events": []})["events"]:
        for event in page:
            stored[event["kind"]] += 1
            details = event.get("details") or {}
            if event["kind"] == "recovered" and "recovered_after_s" in details:
                recovered_s.append(float(details["recovered_after_s"]))
        after = page[-1]["seq"]
    logged = Counter(line.event for line in drill.scene.decisions)
    return {
        "stored": {kind: stored[kind] for kind in _COMPARED},
        "logged": {kind: logged[kind] for kind in _COMPARED},
        "recovered_after_s": statistics.median(recovered_s) if recovered_s else None,
    }
