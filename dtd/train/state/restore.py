"""The source of a worker's state when memory holds none: checkpoints, or weights alone.

The job's own newest checkpoint comes first, then that of the job it starts from (`InitFrom`), whole
or its weights only.  Damaged ones are passed over with a warning.  Which worker's checkpoint is
used is decided by the coordinator.  A file is read once, when its state is loaded, and hashed on
the way; what turns out to be damaged then is offered no more.

Where the state is sharded, a checkpoint here is this worker's part of it.  Others may lack theirs
of the newest one, and the job may go on from an older one: this worker offers all that it has.  A
part of another job's checkpoint, or none where it is on parameter servers, is not enough to start
from: the other parts are fetched first (`dtd.worker.files.checkpoint_parts`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dtd.checkpoint.format import (
    ORIGIN,
    Found,
    JobFolder,
    Manifest,
    Progress,
    check_hash,
    checkpoint_name,
    inspect,
    list_checkpoints,
    newest_complete,
    no_progress,
    read_manifest,
)
from dtd.checkpoint.tensor_file import FileInfo, Range, TensorFile, placed
from dtd.errors import CheckpointError
from dtd.strategy.wire_memory import tensor_bytes
from dtd.text.shown import listed
from dtd.train.plan import JobPlan
from dtd.train.record import HeldState, InitFrom, Reporter
from dtd.train.state.load import load_state, own_entries
from dtd.train.state.replica import Replica
from dtd.train.state.tensors import MODEL, OPTIMIZER, digest_of
from dtd.train.state.weights import DTYPES, MOST_NAMED, copy_into, matched, named_groups, plain_name

Pieces = dict[str, list[tuple[int, int, Tensor]]]
"""By name of a sharded tensor: (start, stop, values) of pieces of the flattened tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Content of a checkpoint, or of a part of one.

    Attributes:
        tensors: its whole tensors: all of them, or the common part of a sharded state.
        pieces: a part's pieces of the sharded tensors.
    """

    manifest: Manifest
    tensors: dict[str, Tensor]
    pieces: Pieces

    def give(self, replica: Replica, progress: Progress = no_progress) -> None:
        """Make a replica hold this state, or this part of it.

        Raises:
            CheckpointError: it is not one of this model and optimizer, or is a part, and the
                replica's state is not sharded.
        """
        load_state(replica, self.tensors, self.manifest.state, progress)
        if self.manifest.part is not None:
            assert replica.shards is not None, "load_state refuses a part of another strategy"
            pieces = own_entries(replica, self.manifest.state, self.pieces)
            replica.shards.load(pieces, self.manifest.shards)


def read_stored(path: Path, progress: Progress = no_progress, *, mapped: bool = False) -> Stored:
    """Read a checkpoint or a part of one, verified: a whole one down to the state's digest.

    Each file is read once.  What stays in use is read into memory of our own: an optimizer that
    lived in a mapped file would keep its room on the disk from being freed, and the process would
    die with the file.

    Args:
        path: its directory.
        progress: called as it is read.
        mapped: leave the model and the optimizer of a whole one in mapped files, which take no
            memory that the kernel cannot take back: for a state that is divided, and copied then.
            The pieces of a part, which are copied when they are given, lie there in any case.

    Raises:
        CheckpointError: it is torn or damaged.
    """
    manifest = inspect(path)
    held = {} if manifest.part is None else manifest.part.tensors
    stays = {one for one in manifest.tensors if mapped and one.startswith((MODEL, OPTIMIZER))}
    left_there = {placed(one) for one in {*held} | stays}
    files = {
        file: _read(path / file, info, {name for at, name in left_there if at == file}, progress)
        for file, info in manifest.files.items()
    }
    try:
        places = {listed: placed(listed) for listed in manifest.tensors}
        tensors = {listed: files[file][name] for listed, (file, name) in places.items()}
    except KeyError as error:
        raise CheckpointError(f"{path} cannot be loaded: it lacks {error}") from error
    if manifest.part is not None:
        pieces = {name: _cut(tensors.pop(name), one.ranges) for name, one in held.items()}
        return Stored(manifest=manifest, tensors=tensors, pieces=pieces)
    if digest_of(tensors, manifest.state, progress).hex() != manifest.digest:
        raise CheckpointError(f"{path} does not match its digest")
    return Stored(manifest=manifest, tensors=tensors, pieces={})


def _read(
    path: Path, info: FileInfo, mapped: Container[str], progress: Progress
) -> dict[str, Tensor]:
    """Read a file's tensors, and compare its hash; those in `mapped` stay in the file."""
    with TensorFile(path) as file:
        tensors = {
            name: torch.empty(one.shape, dtype=DTYPES[one.dtype])
            for name, one in file.tensors.items()
            if name not in mapped
        }
        memory = {name: tensor_bytes(tensor) for name, tensor in tensors.items()}
        check_hash(path, info, file.read_all(memory, progress))
        left = file.tensors.keys() - tensors.keys()
    if not left:
        return tensors
    try:
        with safe_open(path, "pt") as there:
            return tensors | {name: there.get_tensor(name) for name in left}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be loaded: {error}") from error


def _cut(joined: Tensor, ranges: Sequence[Range]) -> list[tuple[int, int, Tensor]]:
    """The pieces of a tensor that a part stores one after another."""
    pieces, at = [], 0
    for start, stop in ranges:
        pieces.append((start, stop, joined[at : at + stop - start]))
        at += stop - start
    return pieces


class Origin:
    """The checkpoints from which one job may start or continue."""

    def __init__(
        self, folder: JobFolder, *, init_from: InitFrom | None, reporter: Reporter
    ) -> None:
        self._folder = folder
        self._init_from = init_from
        self._reporter = reporter
        self._damaged: set[Path] = set()

    def held(self) -> HeldState:
        """Return the state on this disk; step 0 where only weights are taken over."""
        job_id, found = self._newest()
        if found is None:
            return HeldState(
                job_id=self._folder.job_id,
                generation=0,
                step=0,
                digest="",
                where="none",
                label="nothing",
            )
        return self._told(job_id, found)

    def _told(self, job_id: str, found: Found) -> HeldState:
        path, manifest = found
        return HeldState(
            job_id=job_id,
            generation=manifest.generation,
            step=0 if self.weights_only(job_id) else manifest.step,
            digest=manifest.digest,
            where="checkpoint",
            label=f"step {manifest.step} in {path}",
            part=manifest.shards,
        )

    def older(self) -> tuple[HeldState, ...]:
        """This worker's parts of older checkpoints of the job, newest first."""
        paths = list_checkpoints(self._folder.directory, self._folder.path.name)
        found = (self._own(path) for path in paths)
        parts = (one for one in found if one is not None and one.manifest.part is not None)
        return tuple(self._told(self._folder.job_id, one) for one in parts)

    def read(self, generation: int, step: int, *, mapped: bool) -> tuple[str, Stored]:
        """Read the state that `held` or `older` returned, with the id of the job that wrote it.

        Raises:
            CheckpointError: this worker does not hold it, or it is damaged; then it is offered no
                more.
        """
        own = self._own(self._folder.path / checkpoint_name(generation, step))
        job_id, found = (self._folder.job_id, own) if own is not None else self._newest()
        if found is None:
            raise CheckpointError(f"job {self._folder.job_id} has no sound checkpoint here")
        held = self._told(job_id, found)
        if (held.generation, held.step) != (generation, step):
            raise CheckpointError(
                f"step {step} of generation {generation} was asked for; the newest sound"
                f" checkpoint here is {found.path}"
            )
        try:
            return job_id, read_stored(found.path, self._reporter.progress, mapped=mapped)
        except CheckpointError as error:
            self._pass_over(found.path, error.message)
            raise

    def weights_only(self, job_id: str) -> bool:
        """Whether only weights are taken over from a checkpoint of this job."""
        origin = self._init_from
        return origin is not None and origin.mode == "weights" and job_id != self._folder.job_id

    def _own(self, path: Path) -> Found | None:
        """A checkpoint of this job; None if it is not there, damaged or another job's."""
        if path not in self._damaged:
            with contextlib.suppress(CheckpointError):
                manifest = read_manifest(path)
                if manifest.identity == self._folder.identity:
                    return Found(path, manifest)
        return None

    def _newest(self) -> tuple[str, Found | None]:
        """(whose it is, the newest complete whole one, or this worker's part of its own)."""
        found = self._search(self._folder)
        origin = self._init_from
        if found is not None or origin is None:
            return self._folder.job_id, found
        found = self._search(origin.folder(self._folder.directory), origin.step)
        if found is None or found.manifest.part is not None:
            found = self._search(origin.folder(self._folder.path / ORIGIN), origin.step)
        return origin.job_id, found

    def incomplete(self) -> tuple[Path | None, Path] | None:
        """Return where a checkpoint is that has to be assembled before the job starts from it.

        Returns:
            the path of this worker's part, None if it has none, and the directory for the whole
            checkpoint, assembled with the parts of other workers; None if nothing is to be
            assembled.
        """
        origin = self._init_from
        if origin is None or self._newest()[1] is not None:
            return None
        found = self._search(origin.folder(self._folder.directory), origin.step)
        directory = origin.folder(self._folder.path / ORIGIN).path
        return found.path if found is not None else None, directory

    def _search(self, folder: JobFolder, step: int | None = None) -> Found | None:
        return newest_complete(folder, step=step, besides=self._damaged, pass_over=self._pass_over)

    def _pass_over(self, path: Path, why: str) -> None:
        self._damaged.add(path)
        self._reporter.warning("checkpoint_passed_over", f"{path}: {why}")


def check_position(replica: Replica, plan: JobPlan) -> None:
    """Check that a state continues with the same rows, in batches of the same size.

    Raises:
        CheckpointError: it is at another place than the job's plan has it.
    """
    if replica.step > plan.steps_total:
        raise CheckpointError(
            f"the state to start from has {replica.step} steps, and this job ends after"
            f" {plan.steps_total}",
            remedy="raise job.steps or job.epochs, or start from its weights only",
        )
    expected = plan.position(replica.step)
    own = replica.position
    if replica.ledger.length != plan.epoch_rows or expected != own:
        raise CheckpointError(
            f"step {replica.step} of the state is row {own.offset} of epoch {own.epoch} over"
            f" {replica.ledger.length} rows; in this job it is row {expected.offset} of epoch"
            f" {expected.epoch} over {plan.epoch_rows}",
            remedy="keep the data and job.global_batch_size, or start from its weights only",
        )


def take_weights_of_file(replica: Replica, path: Path, *, strict: bool, reporter: Reporter) -> None:
    """Give a replica the weights of a safetensors file, as `take_weights` does."""
    try:
        loaded = safetensors.torch.load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    take_weights(
        replica,
        {MODEL + name: tensor for name, tensor in loaded.items()},
        source=f"the file {path.stem[:12]}",
        strict=strict,
        reporter=reporter,
    )


def take_weights(
    replica: Replica,
    tensors: Mapping[str, Tensor],
    *,
    source: str,
    strict: bool,
    reporter: Reporter,
    progress: Progress = no_progress,
) -> None:
    """Copy weights into the model, by name ("model.<name>"); numbers are converted to its types.

    The replica changes only if all is well.  A mismatch is an error if `strict`; otherwise it is
    left out and reported.

    Raises:
        CheckpointError: with everything that does not fit, named; or nothing fits.
    """
    plain = {
        plain_name(n.removeprefix(MODEL)): t for n, t in tensors.items() if n.startswith(MODEL)
    }
    groups = named_groups(replica.model)
    given, renamed = _under_own_names(groups, plain, source)
    copies, unfit = matched(groups, given, source)
    if unfit and (strict or not copies):
        raise CheckpointError(
            f"the weights of {source} do not fit: {listed(unfit, MOST_NAMED, '; ')}",
            remedy="use the task that made them, or take what fits: --no-strict",
        )
    with torch.no_grad():
        for tensor, value in copies:
            copy_into(tensor, value.to(tensor.dtype), progress)
    if replica.averages is not None:
        replica.averages.begin()
    if renamed:
        reporter.warning("weights_renamed", renamed)
    if unfit:
        taken = f"{len(copies)} of {len(groups)} weights are taken from {source}"
        left_out = listed(unfit, MOST_NAMED, "; ")
        reporter.warning("weights_left_out", f"{taken}; left out: {left_out}")


def _under_own_names(
    groups: Sequence[tuple[list[str], Tensor]], given: Mapping[str, Tensor], source: str
) -> tuple[Mapping[str, Tensor], str]:
    """Weights under the model's names, where all names of one of the two have a prefix more.

    `nn.DataParallel` and DDP put `module.` before them, and a module that holds the model its
    attribute.

    Returns:
        the weights, and in words what was changed; "" if nothing was.
    """
    own = [name for names, _ in groups for name in names]
    if not given.keys().isdisjoint(own):
        return given, ""
    more = _prefix([*given], [names for names, _ in groups])
    if more:
        said = f'the names in {source} begin with "{more}", which the model\'s do not'
        return {name.removeprefix(more): value for name, value in given.items()}, said
    less = _prefix(own, [[name] for name in given])
    said = f'the model\'s names begin with "{less}", which those in {source} do not'
    return ({less + name: value for name, value in given.items()}, said) if less else (given, "")


def _prefix(longer: Sequence[str], shorter: Sequence[Sequence[str]]) -> str:
    """The prefix without which names are those of another model; "" if there is none.

    All of the longer names have it, or those that do are all of the shorter ones.  Where two do
    as well, as those of two towers of one shape, nothing says which is meant.

    Args:
        longer: names with the prefix.
        shorter: names without it, all those of one tensor together.
    """
    parts = [name.split(".")[:-1] for name in longer]
    prefixes = {".".join(one[:length]) + "." for one in parts for length in range(1, len(one) + 1)}
    fits: dict[str, int] = {}
    for prefix in prefixes:
        rest = {name.removeprefix(prefix) for name in longer if name.startswith(prefix)}
        fits[prefix] = sum(not rest.isdisjoint(names) for names in shorter)
    most = max(fits.values(), default=0)
    best = [prefix for prefix, count in fits.items() if count == most > 0]
    if len(best) != 1:
        return ""
    covers = most == len(shorter) or all(name.startswith(best[0]) for name in longer)
    return best[0] if covers else ""
