"""The traffic of other strategies and codecs, and the cost of each codec on this host.

For `dtdctl doctor`, which makes a forecast of it (`dtd.doctor.forecast`).  Every codec that
there is gets a job's real buckets with random gradients, one bucket after another, from `send` to
`receive` as in a step, with a ring that gives everything back as it was.  So whatever a codec is
like, what travels and what it takes are found alike.  Bounded in time and in the answer's size.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, get_args, get_type_hints

import torch

from dtd import job
from dtd.engine.rounds import Rounds
from dtd.errors import DtdError, JobSpecError
from dtd.exchange.api import BucketMemory
from dtd.job import JobSpec, StrategyTable
from dtd.job.strategy_table import SHARDED
from dtd.rules import fields_of
from dtd.strategy.buckets import Buckets
from dtd.strategy.choice import CODECS, OVERLAPPING, STRATEGY_RISKS
from dtd.strategy.codec.api import Codec, FlatLayout, World
from dtd.strategy.coded_buckets import make_buckets
from dtd.train.available_memory import available_memory

LONGEST_S: Final = 3.0
"""For one codec; one that is not through its buckets by then is left out."""
ALL_S: Final = 20.0
"""For all codecs together."""
PASSES: Final = 3
ROOM: Final = 8
"""Gradients' memory must be free so many times, for what a codec keeps."""
MOST_FIGURES: Final = 1500
"""Most numbers of one codec in the answer."""
_ADD_BYTES: Final = 1 << 20
_GRADIENT: Final = 1e-3

Values = dict[str, Any]


def measure_codecs(
    spec: Mapping[str, Any],
    layouts: Sequence[FlatLayout],
    *,
    device: torch.device,
    worlds: Sequence[int],
    step: int,
) -> Values:
    """Every strategy and codec that the job could name.

    Args:
        spec: the job, as SUBMIT_JOB carries it.
        layouts: of its gradients' buckets.
        device: where these are.
        worlds: world sizes for which bytes are computed.
        step: in which; wire sizes may follow a schedule.

    Returns:
        {"candidates": [{"strategy", "codec", "every_steps": between two exchanges of the same
        parameters, "overlaps": whether they travel while the next steps go on, "stage" and
        "mirrors" of a state that is divided, "risk", "reason":
        why it cannot be used or was not measured; or empty}], "codecs": {name:
        {"buckets": whose each exchange is, in their order of travel, "gathers": whether it is one,
        "worlds": {size: bytes of each}, "encode_s" and "add_s" of each, "decode_s" of each
        bucket}}}; "none" is not among the codecs: it costs nothing.
    """
    measured: dict[str, Values | str] = {}
    listed: list[Values] = []
    end_s = time.perf_counter() + ALL_S
    for strategy, codec in _choices(spec):
        said: Values = {
            "strategy": strategy,
            "codec": codec,
            "every_steps": 1,
            "risk": "",
            "reason": "",
        }
        said |= {"every_steps": 1, "overlaps": strategy in OVERLAPPING}
        listed.append(said)
        try:
            parsed = job.from_mapping(with_strategy(spec, strategy, codec), source="candidate")
        except JobSpecError as error:
            said["reason"] = f"does not fit: {error.problems[0]}"
            continue
        said["every_steps"] = _every_steps(parsed, step)
        if strategy in SHARDED:
            said |= {"stage": parsed.strategy.stage, "mirrors": parsed.strategy.mirrors}
        said["risk"] = STRATEGY_RISKS[strategy]
        made = CODECS[codec]
        if made is None:
            continue
        if codec not in measured:
            limit_s = min(LONGEST_S, end_s - time.perf_counter())
            probe = partial(_probe, layouts, device, worlds, step, limit_s)
            measured[codec] = _measured(partial(made, parsed), probe)
        said["risk"] = "; ".join(filter(None, (said["risk"], made(parsed).risk)))
        found = measured[codec]
        said["reason"] = found if isinstance(found, str) else ""
    figures = {name: found for name, found in measured.items() if not isinstance(found, str)}
    return {"candidates": listed, "codecs": figures}


def _choices(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every codec, and each other strategy without one, and with the job's own."""
    own = job.from_mapping(dict(spec), source="job to be measured").codec
    for strategy in get_args(get_type_hints(StrategyTable)["name"]):
        for codec in CODECS:
            if strategy == "replicated" or codec in ("none", own):
                yield strategy, codec


def _every_steps(spec: JobSpec, step: int) -> int:
    """Steps between two exchanges of the same parameters, when so many steps are committed."""
    table, rounds = spec.strategy, Rounds.of(spec.strategy)
    if table.local_from is None or step < table.local_from:
        return 1
    end = rounds.end(step)
    return (end - rounds.begin(end)) * (table.inner_steps // table.round_steps)


def with_strategy(spec: Mapping[str, Any], strategy: str, codec: str) -> Values:
    """The job with another strategy; keys that it uses already stay as they are."""
    parsed = job.from_mapping(dict(spec), source="job to be measured")
    kept = {parsed.strategy.name, parsed.codec} & {strategy, codec}
    kind: type = StrategyTable
    table = {
        info.name: getattr(parsed.strategy, info.name)
        for info in fields_of(kind).values()
        if kept & set(info.rule.only_for or ())
    }
    sync = {key: value for key, value in spec.get("sync", {}).items() if key != "wire_dtype"}
    return {**spec, "sync": sync, "strategy": {**table, "name": strategy, "codec": codec}}


def _measured(codec: Callable[[], Codec], probe: Callable[[Codec], Values | str]) -> Values | str:
    """Figures of a codec, or why there are none."""
    try:
        return probe(codec())
    except DtdError as error:
        return f"does not fit: {error.message}"
    except (RuntimeError, MemoryError) as error:  # torch's own: no memory, no kernel
        return f"cannot be measured here: {error}"[:200]


# --- one codec -------------------------------------------------------------------------------


def _probe(
    layouts: Sequence[FlatLayout],
    device: torch.device,
    worlds: Sequence[int],
    step: int,
    limit_s: float,
    codec: Codec,
) -> Values | str:
    """Return a codec's medians over some passes, or why it is not measured."""
    until_s = time.perf_counter() + limit_s
    needed = ROOM * sum(layout.elements * layout.dtype.itemsize for layout in layouts)
    if needed > available_memory(device).bytes:
        return "not measured: too little memory is free"
    with closing(make_buckets(layouts, device, codec)) as staging:
        if not staging.fits:
            return "does not fit: finds nothing to compress among the parameters"
        sizes: dict[str, list[int]] = {}
        for world in worlds:
            staging.regroup(World(size=world, first_step=step))
            sizes[str(world)] = [len(memory.view) for memory in staging.exchanges(step)]
        memories = staging.memories
        most_worlds = MOST_FIGURES // max(1, len(memories)) - 5
        if most_worlds < 1:
            return "not measured: the model has too many buckets"
        passes: list[list[_Bucket]] = []
        while len(passes) < PASSES and (not passes or time.perf_counter() < until_s):
            buckets = _pass(staging, device, until_s if not passes else float("inf"))
            if buckets is None:
                return f"not measured: it takes over {LONGEST_S:g} s here"
            passes.append(buckets)
        return {
            **_layout_figures(passes[0], memories),
            "worlds": dict(list(sizes.items())[-most_worlds:]),
            **_medians(passes[1:] or passes, len(memories)),
        }


@dataclass(slots=True)
class _Bucket:
    """One bucket's times on its way: of each exchange by its position, and of the decoding."""

    encode_s: dict[int, float] = field(default_factory=dict)
    add_s: dict[int, float] = field(default_factory=dict)
    decode_s: float = 0.0


def _pass(staging: Buckets, device: torch.device, until_s: float) -> list[_Bucket] | None:
    """All buckets once, one after another; None if that takes too long."""
    buckets = []
    staging.begin(1.0)
    for index, flat in enumerate(staging.flats):
        if time.perf_counter() > until_s:
            return None
        flat.uniform_(-_GRADIENT, _GRADIENT)
        _synchronise(device)
        buckets.append(_bucket(staging, index, device))
    staging.commit()
    return buckets


def _bucket(staging: Buckets, index: int, device: torch.device) -> _Bucket:
    """Send a bucket to a ring that gives it back as it was, and receive it."""
    made = _Bucket()
    since_s = time.perf_counter()

    def start(position: int, done: Callable[[], None] | None = None) -> None:
        nonlocal since_s
        encoded_s = time.perf_counter()
        made.encode_s[position] = encoded_s - since_s
        _add(staging.memories[position])
        since_s = time.perf_counter()
        made.add_s[position] = since_s - encoded_s
        if done is not None:
            done()

    staging.send(index, start)
    staging.receive(index, lambda _position: None)
    staging.settle()
    _synchronise(device)
    made.decode_s = time.perf_counter() - since_s
    return made


def _add(memory: BucketMemory) -> None:
    """Add a whole buffer to itself, as a rank adds what it receives."""
    if memory.operation.is_half:
        return
    items, item_bytes = len(memory.view) // memory.item_bytes, memory.item_bytes
    at_once = max(1, _ADD_BYTES // item_bytes)
    for start in range(0, items, at_once):
        stop = min(start + at_once, items)
        memory.add(
            start, stop, memoryview(bytes(memory.view[start * item_bytes : stop * item_bytes]))
        )


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _layout_figures(buckets: Sequence[_Bucket], memories: Sequence[BucketMemory]) -> Values:
    """Return the bucket of each exchange, and which exchanges are gathers."""
    owners = {position: index for index, one in enumerate(buckets) for position in one.encode_s}
    return {
        "buckets": [owners[position] for position in range(len(memories))],
        "gathers": [memory.operation.is_half for memory in memories],
    }


def _medians(passes: Sequence[Sequence[_Bucket]], exchanges: int) -> Values:
    def of_exchanges(times: Callable[[_Bucket], dict[int, float]]) -> list[float]:
        merged = [
            {at: took_s for one in buckets for at, took_s in times(one).items()}
            for buckets in passes
        ]
        return [_median(one[at] for one in merged) for at in range(exchanges)]

    return {
        "encode_s": of_exchanges(lambda one: one.encode_s),
        "add_s": of_exchanges(lambda one: one.add_s),
        "decode_s": [_median(one.decode_s for one in same) for same in zip(*passes, strict=True)],
    }


def _median(times_s: Iterator[float]) -> float:
    """To the microsecond, so that the answer stays short."""
    return round(statistics.median(times_s), 6)
