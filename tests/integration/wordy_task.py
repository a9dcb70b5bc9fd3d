"""A task that ends its job for a long reason, and one that breaks the worker that trains it."""

from __future__ import annotations

from typing import Any

from gated_task import Gated

from dtd.wire import messages as m
from dtd.worker.control import ControlConnection

LONG = 100_000


class Wordy(Gated):
    def on_step(self, at: Any) -> str:
        return "y\udcff" * LONG if at.step > 1 else ""


class Breaking(Gated):
    """As if sending the report of the job's end had an error in it."""

    def on_start(self, at: Any) -> None:
        del at
        send = ControlConnection.send

        def broken(self: ControlConnection, message: m.Message, payload: bytes = b"") -> None:
            if isinstance(message, m.Finished):
                raise LookupError("planted")  # noqa: TRY004 - not its type is wrong
            send(self, message, payload)

        ControlConnection.send = broken  # type: ignore[method-assign]
