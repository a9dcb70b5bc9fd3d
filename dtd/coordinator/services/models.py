"""Registered models: operators' requests, and the orders to workers that keep their files.

A version is what was registered: a job's checkpoint with its metrics, settings, data, code, and who
registered it when.  That record never changes; aliases, the text of the card and the number of
copies that are there do.  The coordinator holds no weights: it tells a worker which version to keep
and which others have its files, with tickets for those.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dtd.checkpoint.choice import confirmation_of, holders_of, part_of
from dtd.cluster.generation.checkpoints import CONTRADICTED
from dtd.coordinator.core import Core, checkpoint_resource
from dtd.coordinator.services.model_copies import Copies, Order
from dtd.coordinator.store.tables import page
from dtd.errors import RequestRefused
from dtd.registry import (
    MAX_CARD_CHARACTERS,
    MAX_COPIES,
    check_alias,
    check_name,
    resolved,
    version_id,
)
from dtd.rules import did_you_mean
from dtd.wire import messages as m

Version = Mapping[str, Any]
LIST_BYTES: Final = 1024 * 1024
MOST_NAMED: Final = 8
"""Most versions in one event."""
_OF_THE_JOB: Final = (
    *("task", "spec", "package", "weights", "dataset_rows", "dataset_fingerprint"),
    *("task_digest", "environment", "from_job", "from_step", "from_mode", "world_size"),
)


class ModelRegistry:
    """The registry of models; belongs to the event loop."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._copies = Copies()
        self._known: dict[str, Version] = {}

    def start(self) -> None:
        """Read from the store what is registered; blocking, before the first connection."""
        store = self._core.store
        holders = store.models.copies()
        for version in store.models.all():
            listed = store.checkpoints(version["record"]["job"])
            self._add(version, listed, holders.get(version["id"], ()))
        for one in store.models.deleted():
            self._copies.delete(one)

    def _add(self, version: Version, listed: Any, holders: Any = ()) -> None:
        self._known[version["id"]] = version
        origin = {one["worker"]: part_of(one) for one in listed if _is_origin(version, one)}
        self._copies.add(version["id"], copies=version["copies"], origin=origin, holders=holders)

    def depends_on(self, job: str, step: int) -> str:
        """A version that has to be copied from this job, or from its step; empty: none."""
        for version in self._known.values():
            record = version["record"]
            needed = record["job"] == job and step in (0, record["step"])
            if needed and not self._copies.holders(version["id"]):
                return f"{version['name']}@{version['number']}"
        return ""

    # --- requests ----------------------------------------------------------------------------

    async def listed(self, request: m.ListModels) -> dict[str, Any]:
        """The answer to LIST_MODELS: versions, the newest of each model first."""
        store, in_store = self._core.store, self._core.in_store
        if not request.name:
            found = await in_store(store.models.all)
            return {"models": page(map(self._shown, found), most_bytes=LIST_BYTES)}
        versions = await self._versions(request.name)
        if request.version or request.tickets:
            versions = [_one(versions, request.version)]
        shown = [self._shown(one) for one in versions]
        if request.tickets:
            shown[0]["sources"] = [
                {"worker": name, "resource": resource, **self._core.source(name, resource).shown()}
                for name, resource in self._sources(versions[0])
            ]
        return {"models": page(shown, most_bytes=LIST_BYTES)}

    async def _versions(self, name: str, number: int = 0) -> list[dict[str, Any]]:
        """A model's versions, or the one of this number."""
        models, in_store = self._core.store.models, self._core.in_store
        found = await in_store(models.all, name)
        if not found:
            near = did_you_mean(name, await in_store(models.names))
            raise RequestRefused(
                f"model {name!r} does not exist{near}", remedy="see `dtdctl models list`"
            )
        return [_one(found, str(number))] if number else found

    def _shown(self, version: Version) -> dict[str, Any]:
        where = self._copies.explain(version["id"])
        state = "ready" if where["holders"] else "pending"
        return {**version, **where, "state": state}

    # --- changes -------------------------------------------------------------------------------

    async def register(self, request: m.RegisterModel, by: str) -> dict[str, Any]:
        """Answer REGISTER_MODEL."""
        check_name(request.name, "a model")
        _check_card(request.card)
        if not 1 <= request.copies <= MAX_COPIES:
            raise RequestRefused(f"copies: must be 1 to {MAX_COPIES}, not {request.copies}")
        store, in_store = self._core.store, self._core.in_store
        await self._core.known_job(request.job)
        details = await self._core.after_lines(store.job_details, request.job)
        assert details is not None, "it was there a moment ago, and only this loop deletes jobs"
        listed = await in_store(store.checkpoints, request.job)
        table = details["spec"].get("checkpoint", {})
        own = table.get("best_mode", "") if table.get("best_metric") == request.best else ""
        group = holders_of(
            listed,
            job=request.job,
            step=request.step,
            best_metric=request.best,
            mode=request.mode or own,
        )
        record = _record(details, group) | {"registered_by": by, "registered_s": time.time()}
        store_id = self._core.store_id
        make_id = functools.partial(version_id, store_id, time.time_ns(), request.name)
        add = functools.partial(
            store.models.add,
            request.name,
            record,
            copies=request.copies,
            card=request.card,
            make_id=make_id,
        )
        number, _id = await in_store(add)
        (version,) = await self._versions(request.name, number)
        self._add(version, listed)
        what = f"step {record['step']} of {request.job} is {request.name}@{number}"
        self._core.incident("model_registered", f"{what}, says {by}")
        self._give_orders()
        return {"models": [self._shown(version)]}

    async def alias(self, request: m.AliasModel) -> dict[str, Any]:
        check_alias(request.alias)
        versions = await self._versions(request.name, request.version)
        if not request.version:
            _one(versions, request.alias)
        models = self._core.store.models
        change = (request.name, request.alias, request.version)
        await self._core.in_store(models.alias, *change)
        return await self.listed(m.ListModels(name=request.name))

    async def describe(self, request: m.DescribeModel) -> dict[str, Any]:
        _check_card(request.card)
        await self._versions(request.name, request.version)
        models = self._core.store.models
        change = (request.name, request.version, request.card)
        await self._core.in_store(models.describe, *change)
        return await self.listed(m.ListModels(name=request.name, version=str(request.version)))

    async def copy(self, request: m.CopyModel) -> dict[str, Any]:
        """Answer COPY_MODEL: have missing copies made."""
        versions = await self._versions(request.name, request.version)
        for one in versions:
            for worker in self._copies.request(one["id"]):
                self._write_copies(worker)
        self._give_orders()
        shown = [self._shown(one) for one in versions]
        gone = [one for one in shown if one["holders"] and not one["connected"]]
        if gone:
            named = ", ".join(f"{one['name']}@{one['number']}" for one in gone)
            raise RequestRefused(
                f"no connected worker keeps a copy of {named}",
                remedy=f"start one that does: dtdctl models show {named.split(', ')[0]}",
            )
        return {"models": page(shown, most_bytes=LIST_BYTES)}

    async def delete(self, request: m.DeleteModel) -> dict[str, Any]:
        versions = await self._versions(request.name, request.version)
        shown = [self._shown(one) for one in versions]
        numbers = [one["number"] for one in versions]
        models = self._core.store.models
        await self._core.in_store(models.delete, request.name, numbers)
        for one in versions:
            self._known.pop(one["id"], None)
            for worker in self._copies.delete(one["id"]):
                self._unpin(one["id"], worker)
            what = f"{one['name']}@{one['number']} is deleted"
            self._core.incident("model_deleted", what)
        self._give_orders()
        return {"models": shown}

    # --- workers -----------------------------------------------------------------------------

    def registered(self, worker: str) -> None:
        """A worker has connected; it tells next what it keeps."""
        self._copies.left(worker)

    def lost(self, worker: str) -> None:
        self._copies.left(worker)
        self._give_orders()

    def heard(self, worker: str, message: m.ModelsHeld | m.ModelPinned) -> None:
        """A worker tells what it keeps, or how an order went."""
        before = self._copies.held_by(worker)
        if isinstance(message, m.ModelPinned):
            self._answered(worker, message)
        else:
            self._arrived(worker, message)
        if self._copies.held_by(worker) != before:
            self._write_copies(worker)
        self._give_orders()

    def _arrived(self, worker: str, message: m.ModelsHeld) -> None:
        known = self._core.membership.cluster_of(worker).workers.get(worker)
        host = known.registration.host if known is not None else ""
        to_drop, unknown = self._copies.arrived(worker, host, message.versions)
        for version in to_drop:
            self._unpin(version, worker)
        if unknown:
            named = ", ".join(unknown[:MOST_NAMED]) + (", ..." if unknown[MOST_NAMED:] else "")
            self._core.incident(
                "models_unknown",
                f"{worker} keeps models that are not registered here, and goes on keeping them in"
                f" models/ of its state directory: {named}",
                worker=worker,
            )

    def _answered(self, worker: str, message: m.ModelPinned) -> None:
        version = self._known.get(message.version)
        if version is None:  # it was deleted meanwhile
            self._unpin(message.version, worker)
            return
        files = [dataclasses.asdict(one) for one in message.files]
        reason = message.reason or ("" if files else "it has told of no files")
        if not reason and version["files"] not in ([], files):
            reason = "it has other files"
        if reason:
            self._copies.failed(message.version, worker, reason)
        elif self._copies.made(message.version, worker):
            if not version["files"]:
                self._known[message.version] = {**version, "files": files}
                models = self._core.store.models
                self._core.store_thread.later(models.set_files, message.version, files)
            what = f"{worker} keeps a copy of {version['name']}@{version['number']}"
            self._core.incident("model_copied", what, worker=worker)

    def _write_copies(self, worker: str) -> None:
        held = self._copies.held_by(worker)
        self._core.store_thread.later(self._core.store.models.set_copies, worker, held)

    def _give_orders(self) -> None:
        for order in self._copies.decide():
            self._core.begin("having a worker keep a model", functools.partial(self._pin, order))

    def _unpin(self, version: str, worker: str) -> None:
        link = self._core.links.link_to(worker)
        if link is not None:
            link.send(m.UnpinModel(version=version))

    async def _pin(self, order: Order) -> None:
        record = self._known[order.version]["record"]
        listed = await self._core.in_store(self._core.store.checkpoints, record["job"])
        link, version = self._core.links.link_to(order.worker), self._known.get(order.version)
        if link is not None and version is not None:
            link.send(self._order(version, listed))

    def _order(self, version: Version, listed: Sequence[Mapping[str, Any]]) -> m.PinModel:
        sources = [
            m.ModelSource(name=name, **self._core.source(name, resource)._asdict())
            for name, resource in self._sources(version)
        ]
        for one in listed:
            name = one["worker"]
            if _is_origin(version, one) and name in self._core.links.names():
                source = self._core.source(name, checkpoint_resource(one["directory"]))
                about = {"digest": one["digest"], "part": tuple(one["part"])}
                sources.append(m.ModelSource(name=name, **about, **source._asdict()))
        return m.PinModel(
            version=version["id"],
            files=tuple(m.ModelFile(**one) for one in version["files"]),
            sources=tuple(sources[: m.MAX_PART_HOLDERS]),
            encrypted=version["record"]["spec"].get("sync", {}).get("encryption") == "tls",
        )

    def _sources(self, version: Version) -> list[tuple[str, str]]:
        """The connected workers that keep a copy of a version, and the resource there."""
        connected = self._copies.explain(version["id"])["connected"]
        return [(name, f"model/{version['id']}") for name in connected]


def _is_origin(version: Version, checkpoint: Mapping[str, Any]) -> bool:
    """Whether a known checkpoint, or part of one, is what the version was registered from."""
    record = version["record"]
    keys = ("job", "generation", "step", "digest")
    alike = all(record[key] == checkpoint[key] for key in keys)
    return alike and checkpoint["confirmation"] != CONTRADICTED


def _check_card(card: str) -> None:
    if len(card) > MAX_CARD_CHARACTERS:
        raise RequestRefused(
            f"a card's text may have {MAX_CARD_CHARACTERS} characters, not {len(card)}"
        )


def _record(details: Mapping[str, Any], group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a version's record of its job and of the checkpoint that this group holds."""
    return {
        **{key: details[key] for key in _OF_THE_JOB},
        **{key: group[0][key] for key in ("job", "generation", "step", "digest", "metrics")},
        "confirmation": confirmation_of(group),
        "identity": details["identity"],
    }


def _one(versions: list[dict[str, Any]], which: str) -> dict[str, Any]:
    """The version of a model that a number, an alias, or nothing stands for."""
    aliases = {alias: one["number"] for one in versions for alias in one["aliases"]}
    numbers = [one["number"] for one in versions]
    number = resolved(versions[0]["name"], which, numbers, aliases)
    return next(one for one in versions if one["number"] == number)
