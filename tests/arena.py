"""Whole jobs over the in-process ring, one thread a rank."""

from __future__ import annotations

import contextlib
import sys
import threading
import types
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dtd.engine.control_word import Flags
from dtd.engine.step_protocol import StateKey
from dtd.exchange.in_process import InProcessRing
from dtd.job import JobSpec, from_mapping
from dtd.train.record import (
    CheckpointRecord,
    EvalRecord,
    InitFrom,
    MemoryRecord,
    Outcome,
    Reporter,
    StepRecord,
)
from dtd.train.run import JobSessionRunner
from dtd.train.state.tensors import state_digest

MODULE = "dtd_numerics_task"


class Rows:
    """Random float64 inputs and targets."""

    def __init__(self, length: int = 50, width: int = 6) -> None:
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(length, width, generator=generator, dtype=torch.float64)
        self.y = torch.randn(length, 3, generator=generator, dtype=torch.float64)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[row], self.y[row]

    def fetch(self, row_ids: Any, *, epoch: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[list(row_ids)], self.y[list(row_ids)]


class Regression:
    """A small float64 network; tests override what they are about."""

    def __init__(self, length: int = 50) -> None:
        self.rows = Rows(length)

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()

    def train_dataset(self) -> Rows:
        return self.rows

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        return ((model(x) - y) ** 2).mean()


@dataclass
class Recorder(Reporter):
    """Reporter and requests of one rank."""

    steps: list[StepRecord] = field(default_factory=list)
    evals: list[EvalRecord] = field(default_factory=list)
    checkpoints: list[CheckpointRecord] = field(default_factory=list)
    warnings: list[tuple[str, str]] = field(default_factory=list)
    agreements: list[tuple[StateKey, str]] = field(default_factory=list)
    ask: Callable[[int], Flags] = lambda step: Flags()
    marks: int = 0
    kinds: list[Hashable] = field(default_factory=list)
    memory: list[MemoryRecord] = field(default_factory=list)
    figures: list[tuple[int, dict[str, float]]] = field(default_factory=list)

    def progress(self) -> None:
        self.marks += 1

    def begins(self, kind: str, shape: Hashable = None) -> None:
        self.kinds.append((kind, shape))

    def step_committed(self, record: StepRecord) -> None:
        self.steps.append(record)

    def evaluated(self, record: EvalRecord) -> None:
        self.evals.append(record)

    def logged(self, step: int, figures: Mapping[str, float]) -> None:
        self.figures.append((step, dict(figures)))

    def agreed(self, key: StateKey, digest: bytes) -> None:
        self.agreements.append((key, digest.hex()))

    def checkpoint_saved(self, record: CheckpointRecord) -> None:
        self.checkpoints.append(record)

    def memory_measured(self, record: MemoryRecord) -> None:
        self.memory.append(record)

    def warning(self, event: str, message: str) -> None:
        self.warnings.append((event, message))

    def flags(self) -> Flags:
        return self.ask(len(self.steps))


@dataclass
class Rank:
    """One rank of a finished or broken generation."""

    run: JobSessionRunner
    recorder: Recorder
    name: str = ""
    outcome: Outcome | None = None
    error: BaseException | None = None

    @property
    def digest(self) -> str:
        return state_digest(self.replica).hex()

    @property
    def replica(self) -> Any:
        return self.run._session.replica

    @property
    def model(self) -> nn.Module:
        model: nn.Module = self.replica.model
        return model

    def parameters(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]


class Arena:
    """Starts ranks and lets them train together.

    Attributes:
        ring: makes the ring of a generation.
        turn: what a rank's thread holds while it trains.
        chunk_bytes: so small that a bucket goes round in several; more for a model of some size.
    """

    ring: Callable[..., InProcessRing] = InProcessRing
    turn: AbstractContextManager[Any] = contextlib.nullcontext()
    chunk_bytes = 256

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.started: list[Rank] = []

    def spec(self, *, job: dict[str, Any] | None = None, **tables: Any) -> JobSpec:
        base = {"name": "numerics", "task": f"{MODULE}:task", "global_batch_size": 8, "seed": 3}
        if not {"steps", "epochs"} & (job or {}).keys():
            base["steps"] = 9
        sync = {"bucket_mib": 0.0003, "first_bucket_mib": 0.0001, **tables.pop("sync", {})}
        train = {"sanity_batches": 0, **tables.pop("train", {})}
        mapping = {"job": base | (job or {}), "sync": sync, "train": train, **tables}
        return from_mapping(mapping, source="test")

    def start(
        self,
        task: Any,
        spec: JobSpec,
        *,
        name: str = "w",
        job_id: str = "job",
        init_from: InitFrom | None = None,
        identity: str = "",
        ask: Callable[[int], Flags] = lambda step: Flags(),
    ) -> Rank:
        module = types.ModuleType(MODULE)
        module.task = task  # type: ignore[attr-defined]
        sys.modules[MODULE] = module
        recorder = Recorder(ask=ask)
        run = JobSessionRunner(
            spec=spec,
            job_id=job_id,
            init_from=init_from,
            identity=identity,
            device="cpu",
            state_dir=self.directory / name,
            reporter=recorder,
        )
        run.prepare()
        rank = Rank(run=run, recorder=recorder, name=name)
        self.started.append(rank)
        return rank

    def generation(
        self,
        ranks: list[Rank],
        *,
        generation: int = 1,
        wrap: Callable[[int, Any], Any] = lambda rank, collective: collective,
        writers: frozenset[int] = frozenset({0}),
        voters: frozenset[int] | None = None,
        servers: int = 0,
    ) -> list[Rank]:
        """Train one generation; ranks hold the same state already.  Servers are the last ones."""
        ring = self.ring(
            len(ranks),
            generation=generation,
            first_step=ranks[0].run.committed_step,
            chunk_bytes=self.chunk_bytes,
            timeout_s=20.0,
            servers=servers,
        )
        collective = ring.collective

        def serve(index: int) -> None:
            rank = ranks[index]
            rank.outcome = rank.error = None
            try:
                with self.turn:
                    rank.outcome = rank.run.run(
                        wrap(index, collective(index)),
                        generation,
                        writers=writers,
                        voters=voters,
                        servers=servers,
                        names=[one.name for one in ranks],
                    )
            except BaseException as error:  # noqa: BLE001
                rank.error = error
                ring.break_ring(f"rank {index} raised {error!r}")

        threads = [threading.Thread(target=serve, args=(i,)) for i in range(len(ranks))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return ranks

    def train(
        self, task: Any, spec: JobSpec, world_size: int, servers: int = 0, **options: Any
    ) -> list[Rank]:
        """A whole job that must finish; the last ranks may be parameter servers."""
        ranks = [self.start(task, spec, name=f"w{i}", **options) for i in range(world_size)]
        for rank in ranks[1:]:
            self.copy_state(ranks[0], rank)
        self.generation(ranks, servers=servers)
        for rank in ranks:
            if rank.error is not None:
                raise rank.error
        return ranks

    @staticmethod
    def copy_state(source: Rank, target: Rank) -> None:
        image = source.run.export_state()
        for memory, blob in zip(target.run.import_state(image.manifest), image.blobs, strict=True):
            memory[:] = blob
        target.run.finish_import()

    def close(self) -> None:
        for rank in self.started:
            rank.run.close()
        sys.modules.pop(MODULE, None)
