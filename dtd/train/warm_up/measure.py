"""`python -m dtd.train.warm_up.measure`: the time of one step of a job here, without a ring.

A probe in a process of its own: the daemon that starts it never imports torch, and what a task does
to its process ends with it.  One JSON object comes on stdin (`spec`, `device`, `threads`, `worlds`,
`limit_s`, `place` of a shipped package), one goes to stdout; what the task prints goes to stderr.
For each world size it takes real steps over rank 0's slice, with a ring that only notes when each
bucket was handed over.  Nothing is kept.  Of codecs only what they send is found out; what they
take follows from the time of one pass over memory (`dtd.doctor.strategies`).
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

import torch

from dtd import job
from dtd.checkpoint.format import JobFolder
from dtd.engine.control_word import Flags
from dtd.engine.rounds import Rounds
from dtd.engine.step_protocol import FRESH
from dtd.errors import DtdError, JobSpecError
from dtd.exchange.api import BucketMemory, CommTiming
from dtd.exchange.schedule.buckets import plan_buckets
from dtd.host.process_memory import keep_freed_memory, trim_freed_memory
from dtd.job.strategy_table import SHARDED
from dtd.rules import fields_of
from dtd.strategy.buckets import layouts_of, parameter_shapes
from dtd.strategy.choice import CODECS, OVERLAPPING, STRATEGY_RISKS
from dtd.strategy.codec.api import Codec, FlatLayout, World
from dtd.strategy.coded_buckets import Uncoded, exchange_order
from dtd.text.shown import cut
from dtd.train.callbacks import Callbacks
from dtd.train.coding import measure_coding
from dtd.train.memory.available import available_memory
from dtd.train.memory.calculated import memory_parts
from dtd.train.memory.measured import saved_for_backward
from dtd.train.record import Reporter, StepRecord
from dtd.train.session import JobSession, build_session, parts_of
from dtd.train.step import commit, contribute
from dtd.train.task import load_task

MOST_STEPS: Final = 12
LEAST_STEPS: Final = 3
WARM_UP_STEPS: Final = 2
LONGEST_S: Final = 300.0
MIB: Final = 1 << 20
MOST_WIRES: Final = 1500
"""Most exchanges of one codec in the answer."""
_PASS_BYTES: Final = 4 * MIB
_PASSES: Final = 16


@dataclass(slots=True)
class HandOvers:
    """A ring of one rank of a larger world: buckets go nowhere, and come back at once.

    Attributes:
        started_s: when each bucket of the open step was handed over.
    """

    world_size: int
    rank: int = 0
    generation: int = 1
    started_s: dict[int, float] = field(default_factory=dict)

    def check(self) -> None:
        pass

    def open_step(self, step: int, buckets: Sequence[BucketMemory], may_add: int = 0) -> None:
        self.started_s.clear()

    def add(self, buckets: Sequence[BucketMemory]) -> None:
        pass

    def start(self, bucket: int, done: Callable[[], None] | None = None) -> None:
        self.started_s[bucket] = time.perf_counter()
        if done is not None:
            done()

    def wait(self, bucket: int) -> None:
        pass

    def gather(self, entry: bytes) -> list[bytes]:
        return [entry] * self.world_size

    def agreed(self) -> None:
        pass

    def close_step(self) -> CommTiming:
        return CommTiming(busy_s=0.0, exposed_s=0.0, sent_bytes=0)

    def record(self, waits: object, ring: object) -> None:
        pass


class _EveryUpdate:
    """A task whose every step makes all of its updates, so that steps are alike."""

    def __init__(self, task: Any) -> None:
        self._task = task

    def __getattr__(self, name: str) -> Any:
        if name == "updates":
            raise AttributeError(name)
        return getattr(self._task, name)


def measure(
    spec: Mapping[str, Any], *, device: str, threads: int, worlds: Sequence[int], limit_s: float
) -> dict[str, Any]:
    """Build the job and take steps of it.

    Args:
        spec: the job, as SUBMIT_JOB carries it.
        device: "cpu" or "cuda:N".
        threads: of torch; 0 takes the job's `train.threads`.
        worlds: sizes to measure rank 0's slice for.
        limit_s: for all steps together, beyond the least number of them.

    Returns:
        {"parameters", "rows", "memory": bytes of each part, "available_bytes", "state": a
        `StateSize`} of the job, and of its steps while gradients travel as they are "buckets":
        sizes in bytes, the tail last, "worlds": {size: {"data_s", "compute_s", "ready_s",
        "optimizer_s", "step_s"}}, and what `measure_coding` returns.  For worlds of several, unless
        a step makes several updates, also what `_compared` returns.

    Raises:
        TaskError: the task, its data or the job's choices do not work here.
    """
    parsed = job.from_mapping(dict(spec), source="job to be measured")
    own, plain = _one_step_rounds(parsed), _plain(spec, parsed)
    torch.set_num_threads(threads or parsed.train.threads)
    worlds = _worlds(parsed, worlds)
    with _session(own, device) as session:
        figures = _memory(session, worlds)
        layouts, last_step = _layouts(session), session.plan.steps_total - 1
        if plain is None:
            figures |= _steps(session, worlds, limit_s)
    gc.collect()  # its memory is needed
    if plain is not None:
        with _session(plain, device) as session:
            figures |= _steps(session, worlds, limit_s)
        gc.collect()
    if max(worlds) > 1 and layouts is not None:
        figures |= _compared(spec, layouts, torch.device(device), max(worlds), last_step)
    return figures


def _one_step_rounds(spec: job.JobSpec) -> job.JobSpec:
    strategy = replace(
        spec.strategy, inner_steps=1, fragments=1, inner_steps_double_every=0, local_start_step=0
    )
    return replace(spec, strategy=strategy)


def _memory(session: JobSession, worlds: Sequence[int]) -> dict[str, Any]:
    """The memory of the job as it is, after steps in the smallest world and in the largest."""
    available = available_memory(session.device).bytes
    with saved_for_backward(session.replica.model) as saved:
        _world(session, worlds[0], limit_s=0.0)
    if worlds[1:]:
        _world(session, worlds[-1], limit_s=0.0)
    size = session.memory.size
    parts = memory_parts(
        session.replica,
        session.strategy,
        session.spec,
        session.device,
        size=size,
        world_size=worlds[-1],
    )
    return {
        "parameters": sum(parameter.numel() for _, parameter in session.replica.trained),
        "rows": session.spec.job.global_batch_size,
        "memory": {**parts, "activations": saved.peak_bytes},
        "available_bytes": available,
        "state": asdict(size),
    }


def _worlds(spec: job.JobSpec, worlds: Sequence[int]) -> Sequence[int]:
    """The sizes to measure: a state that is divided need not fit a smaller world than allowed."""
    if spec.strategy.name not in SHARDED:
        return worlds
    least = spec.elastic.min_workers
    return [world for world in worlds if world >= least] or [least]


def _plain(spec: Mapping[str, Any], parsed: job.JobSpec) -> job.JobSpec | None:
    """The job when all gradients travel as they are; None if they do.

    A state that is divided stays so: otherwise it might not fit.
    """
    name = parsed.strategy.name if parsed.strategy.name in SHARDED else "replicated"
    if (parsed.strategy.name, parsed.strategy.codec) == (name, "none"):
        return None
    return job.from_mapping(_with_strategy(spec, name, "none"), source="job to be measured")


@contextlib.contextmanager
def _session(spec: job.JobSpec, device: str) -> Iterator[JobSession]:
    """The job, built here."""
    with tempfile.TemporaryDirectory() as directory:
        session = build_session(
            spec=spec,
            folder=JobFolder(Path(directory), "measure"),
            task=load_task(spec.job.task, spec.task),
            device=torch.device(device),
            reporter=Reporter(),
        )
        session.callbacks = Callbacks(None, session.replica, lambda _step: 0)
        session.task = _EveryUpdate(session.task)
        try:
            yield session
        finally:
            session.close()


def _layouts(session: JobSession) -> list[FlatLayout] | None:
    """Which gradients lie where in each bucket; None where a step makes several updates."""
    parts = parts_of(session.replica)
    if len(parts) > 1:
        return None
    sync, named = session.spec.sync, parts[0].named
    plan = plan_buckets(
        parameter_shapes(named),
        bucket_bytes=int(sync.bucket_mib * MIB),
        first_bucket_bytes=int(sync.first_bucket_mib * MIB),
    )
    return layouts_of([parameter for _, parameter in named], plan)


def _steps(session: JobSession, worlds: Sequence[int], limit_s: float) -> dict[str, Any]:
    """Sizes of what travels, how it can be coded, and medians for each world."""
    share_s = limit_s / max(1, len(worlds))
    steps = {str(world): _world(session, world, share_s) for world in worlds}
    exchanges = session.exchanges()
    summed = [exchanges[index] for index in _summed(session, exchanges)]
    sizes = [len(bucket.view) for bucket in summed]
    return {"buckets": sizes, "worlds": steps, **measure_coding(summed)}


def _summed(session: JobSession, exchanges: Sequence[BucketMemory]) -> range:
    """The exchanges after backward, as a replicated job has them: buckets, and scalars at last.

    Where the state is divided, there are the parameters before them, and perhaps the buckets of
    earlier pieces of the batch, and a norm after them.
    """
    gathered = len(session.strategy.refreshes())
    if not gathered:
        return range(len(exchanges))
    norm = len(exchanges) - 1
    return range(norm - 1 - gathered, norm)


def _world(session: JobSession, world_size: int, limit_s: float) -> dict[str, Any]:
    """Medians over some steps of rank 0 in a world."""
    session.discard()
    session.engine.replace()
    session.reset()
    session.replaced(FRESH)
    session.strategy.regroup(World(size=world_size))
    ring = HandOvers(world_size)
    session.strategy.redistribute(ring, 0, lambda _shared: None)
    session.strategy.keep_redistributed()
    trim_freed_memory()
    session.fit_plan(world_size)
    session.data.loader.start(session.plan.requests(rank=0, world_size=world_size), at=0)
    seen: list[dict[str, Any]] = []
    most = min(WARM_UP_STEPS + MOST_STEPS, session.plan.steps_total)
    until_s = time.perf_counter() + limit_s
    while len(seen) < most:
        if len(seen) >= WARM_UP_STEPS + LEAST_STEPS and time.perf_counter() > until_s:
            break
        seen.append(_step(session, ring))
    kept = seen[WARM_UP_STEPS:] or seen
    usual: dict[str, Any] = {
        key: statistics.median(step[key] for step in kept)
        for key in ("data_s", "compute_s", "optimizer_s", "step_s")
    }
    readies = zip(*(step["ready_s"] for step in kept), strict=True)
    return {**usual, "ready_s": [statistics.median(ready) for ready in readies]}


def _step(session: JobSession, ring: HandOvers) -> dict[str, Any]:
    """One step as `dtd.train.loop` takes it; times from the moment the rows were there."""
    record, step = StepRecord(), session.replica.step
    exchanges = session.exchanges()
    ring.open_step(step, exchanges)
    begun_s = time.perf_counter()
    session.strategy.refresh(ring)
    contribute(session, ring, record)
    session.strategy.collect(ring)
    handed_s = time.perf_counter()
    session.engine.prepare()
    session.engine.judge([session.engine.entry(Flags())])
    commit(session, record)
    _synchronise(session.device)
    ended_s = time.perf_counter()
    base_s = begun_s + record.data_s
    return {
        "data_s": record.data_s,
        "compute_s": handed_s - base_s,
        "ready_s": [ring.started_s[index] - base_s for index in _summed(session, exchanges)],
        "optimizer_s": ended_s - handed_s,
        "step_s": ended_s - begun_s,
    }


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# --- other strategies and codecs -------------------------------------------------------------


def _compared(
    spec: Mapping[str, Any],
    layouts: Sequence[FlatLayout],
    device: torch.device,
    world_size: int,
    step: int,
) -> dict[str, Any]:
    """Every strategy and codec that the job could name.

    Returns:
        {"candidates": [{"strategy", "codec", "every_steps": between two exchanges of the same
        parameters, "overlaps": whether they travel while the next steps go on, "stage" and
        "mirrors" of a state that is divided, "risk", "reason": why it cannot be used; or empty}],
        "pass_s_per_byte": time of one pass over memory, "codecs": {name: {"passes", "wires": for
        each exchange, in order, its bucket, its bytes (of one rank, if it is a gather), whether it
        is one, and whether the codec adds by itself, "dtype": of the elements of most}}}; "none" is
        not among the codecs: it costs nothing.
    """
    wires: dict[str, dict[str, Any] | str] = {}
    listed: list[dict[str, Any]] = []
    for strategy, codec in _choices(spec):
        found: dict[str, Any] = {"strategy": strategy, "codec": codec, "every_steps": 1}
        found |= {"overlaps": strategy in OVERLAPPING, "risk": "", "reason": ""}
        listed.append(found)
        try:
            parsed = job.from_mapping(_with_strategy(spec, strategy, codec), source="candidate")
        except JobSpecError as error:
            found["reason"] = f"does not fit: {error.problems[0]}"
            continue
        found["every_steps"] = _every_steps(parsed, step)
        if strategy in SHARDED:
            found |= {"stage": parsed.strategy.stage, "mirrors": parsed.strategy.mirrors}
        risks = [STRATEGY_RISKS[strategy]]
        build = CODECS[codec]
        if build is not None:
            made = build(parsed)
            risks.append(made.risk)
            if codec not in wires:
                wires[codec] = _wires(made, layouts, device, world_size, step)
            found["reason"] = reason if isinstance(reason := wires[codec], str) else ""
        found["risk"] = "; ".join(filter(None, risks))
    codecs = {name: one for name, one in wires.items() if not isinstance(one, str)}
    pass_s = _pass_s_per_byte(device)
    return {"candidates": listed, "codecs": codecs, "pass_s_per_byte": pass_s}


def _choices(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every codec, and each other strategy without one, and with the job's own."""
    own = job.from_mapping(dict(spec), source="job to be measured").strategy.codec
    for strategy in get_args(get_type_hints(job.StrategyTable)["name"]):
        for codec in CODECS:
            if strategy == "replicated" or codec in ("none", own):
                yield strategy, codec


def _every_steps(spec: job.JobSpec, step: int) -> int:
    """Steps between two exchanges of the same parameters, when so many steps are committed."""
    table, rounds = spec.strategy, Rounds.of(spec.strategy)
    if table.local_from is None or step < table.local_from:
        return 1
    end = rounds.end(step)
    return (end - rounds.begin(end)) * (table.inner_steps // table.round_steps)


def _with_strategy(spec: Mapping[str, Any], strategy: str, codec: str) -> dict[str, Any]:
    """The job with another strategy; keys that it uses already stay as they are."""
    parsed = job.from_mapping(dict(spec), source="job to be measured")
    kept = {parsed.strategy.name, parsed.strategy.codec} & {strategy, codec}
    kind: type = job.StrategyTable
    table = {
        info.name: getattr(parsed.strategy, info.name)
        for info in fields_of(kind).values()
        if kept & set(info.rule.only_for or ())
    }
    return {**spec, "strategy": {**table, "name": strategy, "codec": codec}}


def _wires(
    codec: Codec,
    layouts: Sequence[FlatLayout],
    device: torch.device,
    world_size: int,
    step: int,
) -> dict[str, Any] | str:
    """The exchanges of all buckets through a codec, or why it cannot be used."""
    world = World(size=world_size, first_step=step)
    try:
        coders = [codec.coder(layout, index, device) for index, layout in enumerate(layouts)]
        if not any(coders):
            return "does not fit: finds nothing to compress among the parameters"
        stages = []
        for layout, coder in zip(layouts, coders, strict=True):
            used = coder or Uncoded(layout)
            used.restart(world)
            stages.append(used.wires(world, step))
    except DtdError as error:
        return f"does not fit: {error.message}"
    except (RuntimeError, MemoryError) as error:  # torch's own: no memory, no kernel
        return f"cannot be used here: {error}"[:200]
    wires, types = [], []
    for bucket, stage in exchange_order([len(wires) for wires in stages]):
        wire = stages[bucket][stage]
        gathers = wire.operation.is_half
        size = wire.elements * wire.dtype.itemsize // (world_size if gathers else 1)
        wires.append([bucket, size, gathers, wire.arithmetic is not None])
        types.append(str(wire.dtype).removeprefix("torch."))
    if len(wires) > MOST_WIRES:
        return "not compared: the model has too many buckets"
    return {"passes": codec.passes, "wires": wires, "dtype": statistics.mode(types)}


def _pass_s_per_byte(device: torch.device) -> float:
    """Time of one pass over a bucket's elements, for each byte of it."""
    source = torch.ones(_PASS_BYTES // 4, device=device)
    target = torch.empty_like(source)
    took_s = []
    for _ in range(_PASSES):
        begun_s = time.perf_counter()
        torch.mul(source, 0.5, out=target)
        _synchronise(device)
        took_s.append(time.perf_counter() - begun_s)
    return statistics.median(took_s[1:]) / _PASS_BYTES


# --- the process -----------------------------------------------------------------------------


@contextlib.contextmanager
def _own_stdout() -> Iterator[int]:
    """A copy of stdout, while everything that prints, also in C, prints to stderr."""
    copy = os.dup(1)
    os.dup2(2, 1)
    try:
        yield copy
    finally:
        os.close(copy)


def main() -> int:
    """Measure what stdin describes; returns the exit code."""
    keep_freed_memory()
    with _own_stdout() as out:
        asked = json.load(sys.stdin)
        limit_s = float(asked["limit_s"])
        if asked["place"]:
            sys.path.insert(0, asked["place"])
        signal.alarm(math.ceil(min(LONGEST_S, 4 * limit_s + 60)))  # whoever asked may be gone
        try:
            answer = measure(
                asked["spec"],
                device=str(asked["device"]),
                threads=int(asked["threads"]),
                worlds=[int(world) for world in asked["worlds"]],
                limit_s=limit_s,
            )
        except DtdError as error:
            answer = {"error": error.message, "remedy": error.remedy}
        except Exception as error:  # noqa: BLE001 - a user's task may raise anything
            answer = {"error": cut(f"{type(error).__name__}: {error}"), "remedy": ""}
        os.write(out, json.dumps(answer).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
