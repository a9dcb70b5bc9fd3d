"""This worker's copies of registered models: the coordinator's orders, one after the other.

The work is done in a thread of its own (`dtd.worker.model_files`), which nobody waits for when the
process ends: what it has half made is removed by the next one.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import structlog

from dtd.errors import DtdError
from dtd.net.blocking_link import Connect
from dtd.net.data_server import Resource
from dtd.shown import one_line
from dtd.wire import messages as m
from dtd.worker.model_files import drop_model, held, open_model, pin_model, remove_drafts

log = structlog.get_logger()

MAX_ORDERS: Final = 256
"""Orders that wait; the coordinator gives one copy at a time."""


class PinnedModels:
    """Carries out PIN_MODEL and UNPIN_MODEL.

    Args:
        place: the directory of all copies.
        worker: this worker's name.
        checkpoints: tells the directories of this worker's checkpoints.
        connect: tells how to reach other workers, encrypted or not.
        send: sends to the coordinator, on the event loop; lost while there is no connection.
        post: runs a function on the event loop, from any thread.
    """

    def __init__(
        self,
        place: Path,
        *,
        worker: str,
        checkpoints: Callable[[], Sequence[Path]],
        connect: Callable[[bool], Connect],
        send: Callable[[m.Message], None],
        post: Callable[..., None],
    ) -> None:
        self._place = place
        self._worker = worker
        self._checkpoints = checkpoints
        self._connect = connect
        self._send = send
        self._post = post
        self._orders: queue.Queue[m.Message] = queue.Queue(MAX_ORDERS)
        self._thread: threading.Thread | None = None

    def order(self, message: m.Registered | m.PinModel | m.UnpinModel) -> None:
        """Carry out the coordinator's order, soon; after REGISTERED report the copies here."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="models", daemon=True)
            self._thread.start()
        try:
            self._orders.put_nowait(message)
        except queue.Full:
            log.warning("model_order_dropped", waiting=MAX_ORDERS)

    def open(self, resource: str) -> Resource:
        """The files of a version, for others to fetch.

        Raises:
            CheckpointError: there is no copy here.
        """
        return open_model(self._place, resource)

    def _work(self) -> None:
        remove_drafts(self._place)
        while True:
            message = self._orders.get()
            try:
                answer = self._carried_out(message)
            except OSError as error:
                log.warning("model_not_deleted", error=str(error))
                answer = m.ModelsHeld(versions=held(self._place))
            self._post(self._send, answer)

    def _carried_out(self, message: m.Message) -> m.Message:
        if isinstance(message, m.PinModel):
            return self._pinned(message)
        if isinstance(message, m.UnpinModel):
            drop_model(self._place, message.version)
            log.info("model_dropped", version=message.version)
        return m.ModelsHeld(versions=held(self._place))

    def _pinned(self, order: m.PinModel) -> m.ModelPinned:
        try:
            files = pin_model(
                order,
                self._place,
                worker=self._worker,
                checkpoints=self._checkpoints(),
                connect=self._connect(order.encrypted),
            )
        except DtdError as error:
            log.warning("model_not_pinned", version=order.version, reason=error.message)
            return m.ModelPinned(version=order.version, reason=one_line(error.message))
        log.info("model_pinned", version=order.version)
        return m.ModelPinned(version=order.version, files=files)
