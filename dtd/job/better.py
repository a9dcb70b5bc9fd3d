"""Whether a smaller or a greater value of a metric is better."""

from __future__ import annotations


def lower_is_better(metric: str, mode: str) -> bool:
    """Whether the checkpoint with the smallest value is the best.

    Args:
        metric: its name.
        mode: "min" or "max"; empty: lower is better if the name contains "loss".
    """
    return mode == "min" if mode else "loss" in metric
