"""Tables of docs/metrics.md and docs/operations.md: from the catalogues of metrics and troubles."""

from __future__ import annotations

from typing import Final

from dtd import troubles
from dtd.metrics.catalogue import METRICS
from dtd.troubles import Trouble
from scripts import markdown

_AT: Final = "HOST:PORT"
_HERE: Final = "unix:/PATH"


def metrics() -> str:
    """All metrics."""
    return markdown.table(
        ["metric", "type", "labels", "served by", "meaning"],
        (
            [
                f"`{metric.name}`",
                metric.kind,
                ", ".join(f"`{label}`" for label in metric.labels),
                " and ".join(metric.served_by),
                metric.meaning,
            ]
            for metric in METRICS
        ),
    )


def troubles_table() -> str:
    """All troubles, with what to do."""
    rows = ([f"`{one.kind}`", one.message, one.remedy] for one in samples())
    return markdown.table(["kind", "says", "do"], rows)


def samples() -> list[Trouble]:
    """Every trouble once, with placeholders for what varies."""
    calling = [troubles.no_tls(_AT, cause) for cause in troubles.TLS_CAUSES_WHEN_CALLING]
    called = [troubles.turned_away("HOST", cause) for cause in troubles.TLS_CAUSES_WHEN_CALLED]
    return [
        troubles.no_answer(_AT, 5.0),
        troubles.nobody_listens(_AT),
        troubles.cannot_call(_AT, "WHY"),
        *calling,
        troubles.hung_up(_AT),
        troubles.hung_up(_HERE),
        troubles.may_not_open(_HERE, 1000),
        troubles.not_followed(_HERE, "WHY", "what the sentence is about"),
        troubles.refused(_AT, "WHY", "what the coordinator proposes"),
        *called,
        troubles.turned_away("HOST", "WHY", "what the sentence is about"),
        troubles.versions_differ("NAME", "HOST", "0.2.0", coordinator_host="HOST2", ours="0.1.0"),
        troubles.protocol_differs("HOST", "NAME speaks protocol 2..2 (dtd 0.2.0), this side 1"),
        troubles.unfit(
            "NAME",
            "HOST",
            "NAME has other code of the task: have `dtdctl submit` ship"
            " it, or install the same version on both",
        ),
        troubles.unfit("NAME", "HOST", "its dataset has 10 rows, not 12"),
        troubles.set_aside("NAME", "HOST", "WHY"),
        troubles.name_taken("NAME", "HOST (pid 1)", "HOST2 (pid 2)"),
        troubles.no_way("NAME", _AT, "NAME2", "HOST2:PORT"),
        troubles.narrow_way("NAME", _AT, "NAME2", "HOST2:PORT"),
        troubles.data_port_closed("NAME", _AT, "WHY"),
        troubles.data_port_narrow("NAME", _AT, "WHY"),
        troubles.cannot_listen(_AT, "is in use"),
        troubles.stands_still(
            "NAME",
            "HOST",
            "its training thread has been stuck in task.py:12 in loss for 9.0 s (nothing has moved"
            " for 9.0 s; elastic.stall_timeout_s allows 5 s)",
            "nobody else that gets on remembers step 40",
        ),
        troubles.disk("NAME", "WHY"),
    ]
