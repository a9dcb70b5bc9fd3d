"""One job in one worker: warm up, hold a state, take over another one, train.

    prepare -> held -> adopt_local | import_state, finish_import -> run -> held -> ...

A state is in memory once a generation has begun with it, and keeps its key until a step is
committed: workers whose generation failed to form still hold the same state.  When a ring breaks,
memory holds the last committed step and possibly one more that is prepared.  `adopt_local` commits
the prepared step if the next generation starts from it, and discards it otherwise.  All methods are
called from the training thread.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dtd.checkpoint.format import JobFolder, checkpoint_name
from dtd.cluster.generation.branches import Branch
from dtd.engine.step_protocol import FRESH, Phase, StateKey, TakeOver
from dtd.errors import CheckpointError, DivergenceError, DtdError, TaskError
from dtd.exchange.api import Collective
from dtd.host.process_memory import mapped_blocks
from dtd.job import JobSpec
from dtd.train.data.rows import seed_generators
from dtd.train.loop import Loop, commit_at_take_over
from dtd.train.optim.task_optimizer import ignored_settings
from dtd.train.profile import StepProfiler
from dtd.train.record import (
    HeldState,
    InitFrom,
    Outcome,
    Reporter,
    StateImage,
    WarmupReport,
)
from dtd.train.session import JobSession, build_session, updates_of_step
from dtd.train.state.load import IncomingImage, export_image
from dtd.train.state.restore import Origin, check_position, take_weights, take_weights_of_file
from dtd.train.state.tensors import named_tensors
from dtd.train.step import check_skips
from dtd.train.task import Task, load_task
from dtd.train.warm_up.fingerprints import (
    dataset_fingerprint,
    differs_when_read_again,
    numerics_fingerprint,
)
from dtd.train.warm_up.rehearsal import try_evaluation

_STATE_FACTOR = 16
_STATE_SLACK_BYTES = 64 << 20
_UPDATES_COMPARED = 32
"""Number of steps for which workers compare which updates they make."""

_WARM_UP_WORLD = 64
"""A world size at which rank 0 has few rows of each batch, but at least one."""

_ALL_IN_EVALUATION = (
    "build_model() returns the model in evaluation mode, and it is trained in that: dropout does"
    " nothing and BatchNorm learns no statistics; call .train() there if that is not meant"
)
_OWN_GENERATOR = (
    "a row of train_dataset() differs when it is read again: its random numbers come from a"
    " generator of its own, so the same job ends elsewhere the next time; draw from the generators"
    " of torch, numpy or random, which dtd keys by row and epoch"
)
_RANK_0 = frozenset({0})


@contextlib.contextmanager
def _in_words_of(task: Any) -> Iterator[None]:
    """Let a task that stands for something else say an error in the words of that."""
    try:
        yield
    except (TaskError, DivergenceError) as error:
        raise _worded(task, error) from error.__cause__


def _worded(task: Any, error: DtdError) -> DtdError:
    worded: Callable[[DtdError], DtdError] | None = getattr(task, "worded", None)
    return error if worded is None else worded(error)


def _named_task(spec: JobSpec) -> tuple[Task, JobSpec]:
    return load_task(spec.job.task, spec.task), spec


class JobSessionRunner:
    """Takes one job's session through its generations.

    Args:
        spec: the job.
        job_id: its id.
        identity: distinguishes it on disk from other jobs with the same id.
        init_from: another job's checkpoint to begin with; None begins with a fresh state.
        device: "cpu" or "cuda:N".
        state_dir: where checkpoints are kept unless the job names a directory.
        reporter: receives progress and events, and has requests to this rank.
        threads: CPU threads of torch; 0 uses the job's `train.threads`.
        weights: a safetensors file with the weights of a fresh state, or None.
        strict: weights loaded without the rest of a state must match the model completely.
        serves: this worker is a parameter server.
        profiler: profiles steps when it is asked to.
        load: returns the job's task, and the job with what only the task's code knows of it.
    """

    def __init__(
        self,
        *,
        spec: JobSpec,
        job_id: str,
        init_from: InitFrom | None,
        device: str,
        state_dir: Path,
        reporter: Reporter,
        threads: int = 0,
        identity: str = "",
        weights: Path | None = None,
        strict: bool = True,
        serves: bool = False,
        profiler: StepProfiler | None = None,
        load: Callable[[JobSpec], tuple[Task, JobSpec]] = _named_task,
    ) -> None:
        self._load_task = load
        self._profiler = profiler or StepProfiler()
        self._spec = spec
        self._serves = serves
        self._weights = weights
        self._strict = strict
        self._device = torch.device(device)
        directory = Path(spec.checkpoint.directory or state_dir / "checkpoints")
        self._folder = JobFolder(directory, job_id, identity)
        self._origin = Origin(self._folder, init_from=init_from, reporter=reporter)
        self._reporter = reporter
        self._threads = threads or spec.train.threads
        self._world_size = 1
        self._built: JobSession | None = None
        self._incoming: IncomingImage | None = None

    # --- warm-up ---------------------------------------------------------------------------

    def prepare(self) -> WarmupReport:
        """Import the task, build the model, open the data.

        Raises:
            TaskError: one of these fails, or the job's batches are too small for the model.
        """
        torch.set_num_threads(self._threads)
        seed_generators(self._spec.job.seed, self._device)
        task, self._spec = self._load_task(self._spec)
        with _in_words_of(task):
            return self._prepare(task)

    def _prepare(self, task: Task) -> WarmupReport:
        with mapped_blocks():  # a model that is divided does not stay whole
            session = self._built = build_session(
                spec=self._spec,
                folder=self._folder,
                task=task,
                device=self._device,
                reporter=self._reporter,
                serves=self._serves,
            )
        session.profiler = self._profiler
        if self._weights is not None:
            session.begin_with = partial(
                take_weights_of_file,
                path=self._weights,
                strict=self._strict,
                reporter=self._reporter,
            )
            session.begin_with(session.replica)
        try_evaluation(
            session.data.evaluator,
            session.replica,
            session.buffers,
            session.watch,
            self._spec,
            self._reporter.progress,
        )
        few_rows = min(self._spec.job.global_batch_size, _WARM_UP_WORLD)
        session.data.loader.warm_up(session.plan.requests(rank=0, world_size=few_rows))
        session.doubts += self._find_doubts()
        return self._report()

    def _report(self) -> WarmupReport:
        session, data = self._session, self._session.data
        rows = dataset_fingerprint(data.training, self._spec.job.seed, data.loader.read)
        return WarmupReport(
            dataset_rows=len(data.training),
            dataset_fingerprint=rows + session.plan.order.digest.hex(),
            plan_digest=_plan_digest(session),
            numerics_fingerprint=self._numerics(),
            parameters=sum(parameter.numel() for _, parameter in session.replica.trained),
            steps_total=session.plan.steps_total,
            batches=f"global_batch_size = {self._spec.job.global_batch_size}, accumulate ="
            f" {self._spec.train.grad_accumulation}, precision = {self._spec.train.precision}",
        )

    def _numerics(self) -> str:
        """Return what must be equal among those that compute updates."""
        strategy = self._spec.strategy
        if strategy.has_servers and not self._serves:
            return ""  # it copies what the servers compute
        if strategy.copies_updates:
            return f"torch {torch.__version__.partition('+')[0]}"
        return numerics_fingerprint(self._spec.optimizer, self._device)

    def expect(self, step: int, *, rank: int, world_size: int) -> None:
        """A generation begins at this step: load its first batches while the state is transferred.

        A stream is read from the position in the state, so it has to wait for the state.
        """
        session = self._session
        if session.data.stream is None and step < session.plan.steps_total:
            requests = session.plan.requests(rank=rank, world_size=world_size)
            session.data.loader.start(requests, at=session.plan.request_number(step))

    # --- state -----------------------------------------------------------------------------

    @property
    def committed_step(self) -> int:
        return self._session.replica.step

    @property
    def prepared_step(self) -> int:
        """`committed_step`, or one more if the next step is prepared but not yet decided."""
        return self.committed_step + (self.prepared_key is not None)

    @property
    def prepared_key(self) -> StateKey | None:
        """Key of the state that `adopt_local` can reach by committing the prepared step."""
        return self._session.engine.prepared

    def held(self) -> HeldState:
        """Return the best state this worker holds for the job; reads no disk if it is in memory."""
        engine = self._session.engine
        if engine.live is None:
            if engine.phase is Phase.APPLYING:  # what was agreed on before the failed update counts
                self._session.checkpoints.flush()
            return self._origin.held()
        if not self._session.replica.has_its_part:
            return self._origin.held()
        part = self._session.replica.held_part
        generation, step = engine.live
        return HeldState(
            job_id=self._folder.job_id,
            generation=generation,
            step=step,
            digest="",
            where="memory",
            part=part,
            label=f"step {step} of generation {generation} in memory",
        )

    def incomplete_origin(self) -> tuple[Path | None, Path] | None:
        """Return the parts here of another job's checkpoint, to be completed before `held`.

        Returns:
            where this worker's part is, None if it has none, and the directory for the whole;
            None if nothing is to be done.
        """
        return self._origin.incomplete()

    def saved(self) -> tuple[HeldState, ...]:
        """Return this worker's parts of checkpoints on disk that `held` does not name.

        Empty unless the state is sharded: then the job may have to go on from an older state than
        the newest one here, because others lack their parts of that.
        """
        if self._session.replica.shards is None:
            return ()
        held = self.held()
        first = (held.generation, held.step) if held.where == "checkpoint" else None
        return tuple(one for one in self._origin.older() if (one.generation, one.step) != first)

    def adopt_local(self, held_generation: int, held_step: int) -> None:
        """Make a state that this worker holds the live one.

        Args:
            held_generation: the generation that committed its last step; 0 is the fresh state.
            held_step: its committed steps.  The key of the prepared step commits that step.

        Raises:
            CheckpointError: this worker does not hold it.
            TaskError: the step that this commits is one skipped step too many.
        """
        way = self._adopt(StateKey(held_generation, held_step))
        if way is TakeOver.COMMIT:
            check_skips(self._session)

    def _adopt(self, key: StateKey) -> TakeOver:
        session = self._session
        self._forget_incomplete()
        way = session.engine.take_over(key)
        if way is TakeOver.COMMIT:
            commit_at_take_over(session)
            return way
        session.discard()
        if way is TakeOver.KEEP:
            return way
        session.engine.replace()
        with mapped_blocks():  # what is whole here may be divided soon
            if way is TakeOver.LOAD:
                self._load(key)
            elif way is TakeOver.RESET:
                session.reset()
        session.replaced(key)
        return way

    def _load(self, key: StateKey) -> None:
        """Make a state on disk the live one."""
        session, progress = self._session, self._reporter.progress
        replica, checkpoints = session.replica, session.checkpoints
        # A divided state is copied into slices when its generation begins.
        job_id, stored = self._origin.read(*key, mapped=replica.shards is not None)
        manifest = stored.manifest
        if self._origin.weights_only(job_id):
            session.reset()
            take_weights(
                replica,
                stored.tensors,
                source=f"step {manifest.step} of {job_id}",
                strict=self._strict,
                reporter=self._reporter,
                progress=progress,
            )
            return
        stored.give(replica, progress)
        if job_id == self._folder.job_id:
            parts_of = 0 if manifest.part is None else manifest.world_size
            checkpoints.loaded(key, parts_of, manifest.shards)
        else:
            checkpoints.parent = checkpoint_name(manifest.generation, manifest.step)
            replica.ended_of = 0
        check_position(replica, session.plan)

    def leave_behind(self, branches: tuple[Branch, ...]) -> None:
        """The job continues without these states; their checkpoints on this disk are kept."""
        self._session.checkpoints.leave_behind(branches)

    def forget(self) -> None:
        """Keep only the state on disk: replicas differ, and none can be proved right."""
        session = self._session
        session.discard()
        session.checkpoints.drop()
        session.checkpoints.flush()
        session.engine.forget()

    def save(self, generation: int, step: int) -> None:
        """Write a state that is in memory as a checkpoint; returns when it is durable.

        Used at the end of a job that has no generation left, so digests are not compared.

        Raises:
            CheckpointError: memory does not hold it, or it cannot be written.
        """
        session, key = self._session, StateKey(generation, step)
        self._forget_incomplete()
        if not session.engine.can_make(key):
            raise CheckpointError(f"step {step} is not in this worker's memory any more")
        self._adopt(key)  # a job that has skipped too many steps is saved as well
        session.checkpoints.save(session.replica, key=key, world_size=self._world_size)

    def export_state(self) -> StateImage:
        """Return the live state for another worker; valid until the next step begins."""
        session = self._session
        self._begin_fresh()
        return export_image(session.replica, key=session.key, progress=self._reporter.progress)

    def import_state(self, manifest: bytes) -> list[memoryview]:
        """Return memory into which another worker's state is received, blob by blob.

        A prepared step is discarded: a worker that needs another one's state has no use for it.
        The state in memory is kept until the other one is complete.

        Raises:
            CheckpointError: the manifest is corrupt or belongs to another model.
        """
        self._session.discard()
        tensors = named_tensors(self._session.replica).values()
        own_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        limit_bytes = own_bytes * _STATE_FACTOR + _STATE_SLACK_BYTES
        self._incoming = IncomingImage(manifest, limit_bytes=limit_bytes)
        return self._incoming.blobs()

    def finish_import(self) -> None:
        """All blobs have been received: make the state the live one.

        Raises:
            CheckpointError: it was corrupted in transfer, or belongs to another model.
        """
        assert self._incoming is not None, "finish_import() without import_state()"
        incoming, self._incoming = self._incoming, None
        session = self._session
        incoming.check(self._reporter.progress)
        session.discard()
        session.engine.replace()
        incoming.apply(session.replica, self._reporter.progress)
        check_position(session.replica, session.plan)
        session.replaced(incoming.key)

    # --- training --------------------------------------------------------------------------

    def run(
        self,
        collective: Collective,
        generation: int,
        *,
        writers: AbstractSet[int] = _RANK_0,
        voters: AbstractSet[int] | None = None,
        servers: int = 0,
        names: Sequence[str] = (),
    ) -> Outcome:
        """Train in one generation until the job or the generation ends.

        Args:
            collective: the generation's ring.
            generation: its number.
            writers: ranks that write checkpoints.
            voters: ranks that already held the initial state.  The others have copied it, so they
                do not vote on which state is right.  None for all.
            servers: how many of the last ranks are parameter servers.
            names: of the workers, in rank order.

        Raises:
            RingBroken: the generation is over; the state is that of the last committed step.
            DivergenceError: ranks hold different states.
            TaskError: the task or its data failed.  Other exceptions of the task pass through.
        """
        assert generation == collective.generation, "a ring of another generation"
        session = self._session
        session.discard()
        self._begin_fresh()
        session.fit_plan(collective.world_size - servers)
        if collective.rank == 0:
            _tell_order(session)
            self._tell_doubts()
        self._world_size = collective.world_size
        try:
            with _in_words_of(session.task):
                return Loop(session, collective, writers, voters, servers, names).run()
        except BaseException:
            session.strategy.undo_redistribution()
            if session.engine.interrupted():
                session.discard()
            raise

    def close(self) -> None:
        """Stop everything that runs, and remove drafts."""
        if self._built is not None:
            self._built.close()
            self._built = None

    def _find_doubts(self) -> Iterator[tuple[str, str]]:
        """Yield (event, message) of what the task or the job file hardly means."""
        session, data = self._session, self._session.data
        ignored = ignored_settings(session.task, self._spec)
        if ignored:
            yield "settings_ignored", f"the job file's {ignored}"
        if not any(module.training for module in session.replica.model.modules()):
            yield "task_doubtful", _ALL_IN_EVALUATION
        if differs_when_read_again(data.training, self._spec.job.seed, data.loader.read):
            yield "task_doubtful", _OWN_GENERATOR

    def _tell_doubts(self) -> None:
        """Warn about them, once per process."""
        doubts, self._session.doubts = self._session.doubts, []
        for event, message in doubts:
            self._reporter.warning(event, _worded(self._session.task, TaskError(message)).message)

    # --- inside ----------------------------------------------------------------------------

    def _forget_incomplete(self) -> None:
        """Give up a fetched common part whose generation ended before this worker had shards.

        It has the key of a state, but the state can only be taken from disk or built again.
        """
        session = self._session
        if session.engine.live is not None and not session.replica.has_its_part:
            session.discard()
            session.engine.replace()

    def _begin_fresh(self) -> None:
        """Adopt the fresh state if no state is live."""
        if self._session.engine.live is None:
            self.adopt_local(*FRESH)

    @property
    def _session(self) -> JobSession:
        assert self._built is not None, "prepare() comes first"
        return self._built


def _tell_order(session: JobSession) -> None:
    """Warn if the current epoch was begun in the order of another seed."""
    begun = session.plan.begun
    if begun is not None and session.replica.epoch == begun[0]:
        session.warn(
            "epoch_order_kept",
            f"epoch {begun[0]} was begun with seed {begun[1]} and goes on in that order, so that"
            f" each row is used once; seed {session.spec.job.seed} orders the epochs after it",
        )


def _plan_digest(session: JobSession) -> str:
    """Return a hash of what workers must have alike, to be compared between them.

    It covers what is exchanged in a step, and the optimizer's order of parameters, by which a state
    numbers its entries.
    """
    content = hashlib.blake2b(digest_size=16)
    for name, digest in session.strategy.plan():
        content.update(f"{name} {digest}\n".encode())
    for names in session.replica.grouped:
        content.update(f"{names}\n".encode())
    for step in range(min(_UPDATES_COMPARED, session.plan.steps_total)):
        names = updates_of_step(session.task, session.strategy.names, step)
        content.update(f"{' '.join(names)}\n".encode())
    for name in session.buffers.names:
        buffer = session.replica.model.get_buffer(name)
        content.update(f"{name} {buffer.shape} {buffer.dtype}\n".encode())
    return content.hexdigest()
