"""A simulated worker's reports of its training, with the product's messages."""

from __future__ import annotations

from dtd.checkpoint.format import checkpoint_name
from dtd.wire import messages as m
from tests.sim.replica import State


def warmed(
    prepare: m.Prepare, held: m.Held, *, dataset: str, saved: tuple[m.Held, ...] = ()
) -> m.Warmed:
    """Model and data are ready."""
    return m.Warmed(
        job=prepare.job,
        dataset_rows=1000,
        dataset_fingerprint=dataset,
        plan_digest="plan",
        numerics_fingerprint="numerics",
        parameters=1,
        steps_total=int(prepare.spec["model"]["steps"]),
        held=(held, *saved)[: m.MAX_HELD],
    )


def progress(state: State, *, rows: int) -> m.Progress:
    """A step was committed."""
    return m.Progress(
        job=state.job,
        generation=state.generation,
        step=state.step,
        epoch=0,
        loss=1.0 / state.step,
        learning_rate=0.1,
        grad_norm=1.0,
        rows=rows,
        step_s=0.1,
        compute_s=0.1,
        comm_s=0.0,
        exposed_s=0.0,
        skipped=False,
        skipped_steps=0,
    )


def saved(state: State, kept: tuple[str, ...]) -> m.CheckpointSaved:
    """A checkpoint was published, and the disk now holds those in `kept`."""
    return m.CheckpointSaved(
        job=state.job,
        generation=state.generation,
        step=state.step,
        digest=state.content,
        size_bytes=1,
        directory=checkpoint_name(*state.key),
        metrics={},
        kept=kept,
        part=state.held("checkpoint").part,
    )


def agreed(state: State) -> m.Agreed:
    """All ranks agree on this state, which is to be saved."""
    return m.Agreed(
        job=state.job, generation=state.generation, step=state.step, digest=state.content
    )


def not_saved(state: State, why: str) -> m.Notice:
    """A checkpoint could not be written."""
    message = f"step {state.step} was not saved: {why}"
    return m.Notice(job=state.job, event="checkpoint_failed", message=message)


def finished(assign: m.Assign, state: State, *, stopped: bool) -> m.Finished:
    """The trainer has committed its last step, and all digests are equal."""
    return m.Finished(
        job=state.job,
        generation=assign.generation,
        held_generation=state.generation,
        step=state.step,
        digest=state.content,
        result={"steps": state.step} if assign.rank == 0 else {},
        part=state.held("memory").part,
        stopped=stopped,
    )
