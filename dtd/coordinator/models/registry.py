"""Answers operators' requests about registered models.

A version is what was registered: a job's checkpoint with its metrics, settings, data, code, and who
registered it when.  That record never changes; aliases, the text of the card and the number of
copies that are there do.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dtd.checkpoint.choice import confirmation_of, holders_of
from dtd.cluster.figures import page
from dtd.coordinator.handlers.api import CoordinatorApi, known_job
from dtd.coordinator.models.copies import Copies, Version
from dtd.errors import RequestRefused
from dtd.registry.card import MAX_CARD_CHARACTERS
from dtd.registry.names import MAX_COPIES, check_alias, check_name, resolved, version_id
from dtd.rules import did_you_mean
from dtd.wire import messages as m

ModelRequest = m.RegisterModel | m.AliasModel | m.DescribeModel | m.CopyModel | m.DeleteModel
LIST_BYTES: Final = 1024 * 1024
_OF_THE_JOB: Final = (
    *("task", "spec", "package", "weights", "dataset_rows", "dataset_fingerprint"),
    *("task_digest", "environment", "from_job", "from_step", "from_mode", "world_size"),
)


class ModelRegistry:
    """The registry of models.

    Args:
        coordinator: the daemon.
        copies: has workers keep the files.
    """

    def __init__(self, coordinator: CoordinatorApi, copies: Copies) -> None:
        self._coordinator = coordinator
        self._copies = copies

    async def carry_out(self, request: ModelRequest, by: str) -> dict[str, Any]:
        """Perform a request; return the version or versions that it is about.

        Args:
            request: the request.
            by: its sender, ROLE/NAME.

        Raises:
            RequestRefused: it cannot be done, with the reason.
        """
        if isinstance(request, m.RegisterModel):
            return await self._register(request, by)
        if isinstance(request, m.AliasModel):
            return await self._alias(request)
        if isinstance(request, m.DescribeModel):
            return await self._describe(request)
        if isinstance(request, m.CopyModel):
            return await self._copy(request)
        return await self._delete(request)

    async def listed(self, request: m.ListModels) -> dict[str, Any]:
        """The answer to LIST_MODELS: versions, the newest of each model first.

        Raises:
            RequestRefused: there is no such model, version or alias.
        """
        store, in_store = self._coordinator.store, self._coordinator.in_store
        if not request.name:
            found = await in_store(store.models.all)
            return {"models": page(map(self._shown, found), most_bytes=LIST_BYTES)}
        versions = await self._versions(request.name)
        if request.version or request.tickets:
            versions = [_one(versions, request.version)]
        shown = [self._shown(one) for one in versions]
        if request.tickets:
            shown[0]["sources"] = [
                {
                    "worker": one.name,
                    "data_host": one.host,
                    "data_port": one.port,
                    "resource": one.resource,
                    "ticket_expires_s": one.ticket_expires_s,
                    "ticket_key": one.ticket_key,
                }
                for one in self._copies.sources(versions[0])
            ]
        return {"models": page(shown, most_bytes=LIST_BYTES)}

    async def _versions(self, name: str) -> list[dict[str, Any]]:
        models, in_store = self._coordinator.store.models, self._coordinator.in_store
        found = await in_store(models.all, name)
        if not found:
            near = did_you_mean(name, await in_store(models.names))
            raise RequestRefused(
                f"model {name!r} does not exist{near}", remedy="see `dtdctl models list`"
            )
        return found

    def _shown(self, version: Version) -> dict[str, Any]:
        where = self._copies.pinning.explain(version["id"])
        state = "ready" if where["holders"] else "pending"
        return {**version, **where, "state": state}

    # --- changes -------------------------------------------------------------------------------

    async def _register(self, request: m.RegisterModel, by: str) -> dict[str, Any]:
        check_name(request.name, "a model")
        _check_card(request.card)
        if not 1 <= request.copies <= MAX_COPIES:
            raise RequestRefused(f"copies: must be 1 to {MAX_COPIES}, not {request.copies}")
        store, in_store = self._coordinator.store, self._coordinator.in_store
        await known_job(self._coordinator, request.job)
        details = await self._coordinator.after_lines(store.job_details, request.job)
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
        here = self._coordinator.membership.home.cluster.identity
        make_id = functools.partial(version_id, here.store_id, here.epoch, request.name)
        add = functools.partial(
            store.models.add,
            request.name,
            record,
            copies=request.copies,
            card=request.card,
            make_id=make_id,
        )
        number, _id = await in_store(add)
        version = _one(await self._versions(request.name), str(number))
        self._copies.add(version, listed)
        what = f"step {record['step']} of {request.job} is {request.name}@{number}"
        self._coordinator.incident("model_registered", f"{what}, says {by}")
        self._copies.act()
        return {"models": [self._shown(version)]}

    async def _alias(self, request: m.AliasModel) -> dict[str, Any]:
        check_alias(request.alias)
        versions = await self._versions(request.name)
        if request.version:
            _one(versions, str(request.version))
        else:
            _one(versions, request.alias)
        models = self._coordinator.store.models
        change = (request.name, request.alias, request.version)
        await self._coordinator.in_store(models.alias, *change)
        return await self.listed(m.ListModels(name=request.name))

    async def _describe(self, request: m.DescribeModel) -> dict[str, Any]:
        _check_card(request.card)
        which = str(request.version)
        _one(await self._versions(request.name), which)
        models = self._coordinator.store.models
        change = (request.name, request.version, request.card)
        await self._coordinator.in_store(models.describe, *change)
        return await self.listed(m.ListModels(name=request.name, version=which))

    async def _copy(self, request: m.CopyModel) -> dict[str, Any]:
        versions = await self._versions(request.name)
        if request.version:
            versions = [_one(versions, str(request.version))]
        for one in versions:
            self._copies.repair(one["id"])
        self._copies.act()
        shown = [self._shown(one) for one in versions]
        gone = [one for one in shown if one["holders"] and not one["connected"]]
        if gone:
            named = ", ".join(f"{one['name']}@{one['number']}" for one in gone)
            raise RequestRefused(
                f"no connected worker keeps a copy of {named}",
                remedy=f"start one that does: dtdctl models show {named.split(', ')[0]}",
            )
        return {"models": page(shown, most_bytes=LIST_BYTES)}

    async def _delete(self, request: m.DeleteModel) -> dict[str, Any]:
        versions = await self._versions(request.name)
        if request.version:
            versions = [_one(versions, str(request.version))]
        shown = [self._shown(one) for one in versions]
        numbers = [one["number"] for one in versions]
        models = self._coordinator.store.models
        await self._coordinator.in_store(models.delete, request.name, numbers)
        for one in versions:
            self._copies.forget(one["id"])
            what = f"{one['name']}@{one['number']} is deleted"
            self._coordinator.incident("model_deleted", what)
        self._copies.act()
        return {"models": shown}


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
