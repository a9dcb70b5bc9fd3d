"""Checkpoints as a coordinator lists them."""

from __future__ import annotations

WEIGHTS = b"weights" * 1000


def checkpoint(**changes):
    return {
        "job": "digits-1",
        "generation": 1,
        "step": 20,
        "size_bytes": 7000,
        "worker": "worker-0",
        "data_host": "127.0.0.1",
        "data_port": 1,
        "alive": True,
        "name": "step-20",
        "directory": "/state/digits-1/step-20",
        "digest": "ab",
        "metrics": {"accuracy": 0.9, "loss": 0.3},
        "verified": True,
        "confirmation": "verified",
        **changes,
    }


KNOWN = [
    checkpoint(step=10, metrics={"accuracy": 0.95, "loss": 0.4}),
    checkpoint(),
    checkpoint(worker="worker-1"),
    checkpoint(worker="worker-2", alive=False),
    checkpoint(step=30, verified=False, confirmation="contradicted"),
    checkpoint(step=50, verified=False, confirmation="unconfirmed"),
    checkpoint(generation=0, step=40, metrics={}),
    checkpoint(step=5, metrics={"accuracy": None, "loss": None}),
]
