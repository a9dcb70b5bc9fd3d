"""Has workers keep copies of registered versions, as `dtd.registry.pinning` decides.

The coordinator holds no weights: it tells a worker which version to keep and which others have its
files, with tickets for those.  Who keeps a copy is written down, so it is known after a restart.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

import structlog

from dtd.checkpoint.choice import part_of
from dtd.cluster.vouching import CONTRADICTED
from dtd.coordinator.handlers.api import CoordinatorApi
from dtd.coordinator.store.thread import StoreThread
from dtd.coordinator.worker_links import WorkerLinks
from dtd.registry.pinning import Pin, Pinning, Unpin
from dtd.wire import messages as m

log = structlog.get_logger()

Version = Mapping[str, Any]
MOST_NAMED: Final = 8
"""Most versions in one event."""


class Copies:
    """The copies of all versions; belongs to the event loop.

    Args:
        coordinator: the daemon.
        links: the workers' connections.
        thread: the store's.
    """

    def __init__(
        self, coordinator: CoordinatorApi, links: WorkerLinks, thread: StoreThread
    ) -> None:
        self._coordinator = coordinator
        self._links = links
        self._thread = thread
        self.pinning = Pinning()
        self._known: dict[str, Version] = {}
        self._expected: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Read from the store what is registered; blocking, before the first connection."""
        store = self._coordinator.store
        holders = store.models.copies()
        for version in store.models.all():
            listed = store.checkpoints(version["record"]["job"])
            self.add(version, listed, holders.get(version["id"], ()))
        for one in store.models.deleted():
            self.pinning.forgotten(one)

    def close(self) -> None:
        """Give no further orders."""
        if self._timer is not None:
            self._timer.cancel()

    def add(self, version: Version, listed: Any, holders: Any = ()) -> None:
        """A version is registered.

        Args:
            version: as it is in the store.
            listed: the known checkpoints of its job.
            holders: workers that keep a copy.
        """
        self._known[version["id"]] = version
        origin = {one["worker"]: part_of(one) for one in listed if _is_origin(version, one)}
        self.pinning.wanted(
            version["id"],
            copies=version["copies"],
            origin=origin,
            holders=holders,
        )

    def forget(self, version: str) -> None:
        """A version was deleted."""
        self._known.pop(version, None)
        self.pinning.forgotten(version)

    def repair(self, version: str) -> None:
        """Have the copies of disconnected workers made elsewhere; `act` gives the orders."""
        for worker in self.pinning.repair(version, time.monotonic()):
            self._write_copies(worker)

    def depends_on(self, job: str, step: int) -> str:
        """A version that has to be copied from this job, or from its step; empty: none."""
        for version in self._known.values():
            record = version["record"]
            needed = record["job"] == job and step in (0, record["step"])
            if needed and not self.pinning.is_settled(version["id"]):
                return f"{version['name']}@{version['number']}"
        return ""

    # --- workers -----------------------------------------------------------------------------

    def registered(self, worker: str) -> None:
        """A worker has connected; it tells next what it keeps."""
        self.pinning.left(worker)
        self._expected.add(worker)

    def lost(self, worker: str) -> None:
        """A worker's connection has ended."""
        self._expected.discard(worker)
        self.pinning.left(worker)
        self.act()

    def heard(self, worker: str, message: m.ModelsHeld | m.ModelPinned) -> None:
        """A worker tells what it keeps, or how an order went; only where it was asked."""
        if isinstance(message, m.ModelPinned):
            self._answered(worker, message)
        elif worker in self._expected:
            self._expected.discard(worker)
            known = self._coordinator.membership.cluster_of(worker).workers.get(worker)
            host = known.registration.host if known is not None else ""
            before = self.pinning.held_by(worker)
            unknown = self.pinning.arrived(worker, host, message.versions)
            self._write_down(worker, before)
            if unknown:
                self._tell_of(worker, unknown)
        self.act()

    def _tell_of(self, worker: str, unknown: Sequence[str]) -> None:
        named = ", ".join(unknown[:MOST_NAMED]) + (", ..." if unknown[MOST_NAMED:] else "")
        what = f"{worker} keeps models that are not registered here, and goes on keeping them in"
        self._coordinator.incident(
            "models_unknown", f"{what} models/ of its state directory: {named}", worker=worker
        )

    def _answered(self, worker: str, message: m.ModelPinned) -> None:
        now, version = time.monotonic(), self._known.get(message.version)
        if message.reason or not message.files:
            reason = message.reason or "it has told of no files"
            self.pinning.failed(message.version, worker, reason, now)
            return
        files = [dataclasses.asdict(one) for one in message.files]
        if version is not None and version["files"] not in ([], files):
            self.pinning.failed(message.version, worker, "it has other files", now)
            return
        before = self.pinning.held_by(worker)
        if self.pinning.pinned(message.version, worker) and version is not None:
            if not version["files"]:
                self._known[message.version] = {**version, "files": files}
                models = self._coordinator.store.models
                self._thread.later(models.set_files, message.version, files)
            self._write_down(worker, before)
            what = f"{worker} keeps a copy of {version['name']}@{version['number']}"
            self._coordinator.incident("model_copied", what, worker=worker)

    def _write_down(self, worker: str, before: tuple[str, ...]) -> None:
        if self.pinning.held_by(worker) != before:
            self._write_copies(worker)

    def _write_copies(self, worker: str) -> None:
        held = self.pinning.held_by(worker)
        self._thread.later(self._coordinator.store.models.set_copies, worker, held)

    # --- orders ------------------------------------------------------------------------------

    def act(self) -> None:
        """Give the orders that follow from what has happened, and wake when others may."""
        now = time.monotonic()
        for order in self.pinning.decide(now):
            if isinstance(order, Unpin):
                self._unpin(order)
            else:
                task = asyncio.create_task(self._contained(order))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        self.close()
        moment = self.pinning.next_deadline(now)
        if moment is not None:
            self._timer = asyncio.get_running_loop().call_later(moment - now, self.act)

    def _unpin(self, order: Unpin) -> None:
        link = self._links.link_to(order.worker)
        if link is not None:
            link.send(m.UnpinModel(version=order.version))
        self._write_copies(order.worker)

    async def _contained(self, order: Pin) -> None:
        with self._coordinator.containment.around("having a worker keep a model"):
            await self._pin(order)

    async def _pin(self, order: Pin) -> None:
        version = self._known[order.version]
        record = version["record"]
        store = self._coordinator.store
        listed = await self._coordinator.in_store(store.checkpoints, record["job"])
        link = self._links.link_to(order.worker)
        if link is None or order.version not in self._known:
            return
        sources = [*self.sources(version)]
        for one in listed:
            if _is_origin(version, one) and one["worker"] in self._links.names():
                path = PurePosixPath(one["directory"])
                resource = f"checkpoint/{path.parent.name}/{path.name}"
                sources.append(self._source(one["worker"], resource, one["digest"], one["part"]))
        link.send(
            m.PinModel(
                version=order.version,
                files=tuple(m.ModelFile(**one) for one in self._known[order.version]["files"]),
                sources=tuple(sources[: m.MAX_PART_HOLDERS]),
                encrypted=record["spec"].get("sync", {}).get("encryption") == "tls",
            )
        )

    def sources(self, version: Version) -> list[m.ModelSource]:
        """The connected workers that keep a copy of a version, each with a ticket."""
        connected = self.pinning.explain(version["id"])["connected"]
        return [self._source(name, f"model/{version['id']}") for name in connected]

    def _source(self, name: str, resource: str, digest: str = "", part: Any = ()) -> m.ModelSource:
        worker = self._coordinator.membership.cluster_of(name).workers[name].registration
        expires_s, key = self._coordinator.ticket(name, resource)
        return m.ModelSource(
            name=name,
            host=worker.data_host,
            port=worker.data_port,
            resource=resource,
            digest=digest,
            part=tuple(part),
            ticket_expires_s=expires_s,
            ticket_key=key,
        )


def _is_origin(version: Version, checkpoint: Mapping[str, Any]) -> bool:
    """Whether a known checkpoint, or part of one, is what the version was registered from."""
    record = version["record"]
    keys = ("job", "generation", "step", "digest")
    alike = all(record[key] == checkpoint[key] for key in keys)
    return alike and checkpoint["confirmation"] != CONTRADICTED
