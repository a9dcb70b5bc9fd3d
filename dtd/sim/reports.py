"""What a simulated worker reports of its training, as the messages and events of the real one."""

from __future__ import annotations

from dtd.core import member
from dtd.sim.replica import State
from dtd.wire import messages as m


def warmed(prepare: m.Prepare, held: m.Held, *, dataset: str) -> member.TrainerWarm:
    """Model and data are here."""
    return member.TrainerWarm(
        warmed=m.Warmed(
            job=prepare.job,
            dataset_rows=1000,
            dataset_fingerprint=dataset,
            plan_digest="plan",
            numerics_fingerprint="numerics",
            parameters=1,
            steps_total=int(prepare.spec["model"]["steps"]),
            held=(held,),
        )
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
    )


def saved(state: State) -> m.CheckpointSaved:
    """A checkpoint was published."""
    return m.CheckpointSaved(
        job=state.job,
        generation=state.generation,
        step=state.step,
        digest=state.content,
        size_bytes=1,
        directory="",
        metrics={},
        kept={},
    )


def froze(assign: m.Assign, held: m.Held, suspect: str, reason: str) -> member.TrainerFroze:
    """The trainer has left the generation with this state."""
    return member.TrainerFroze(
        generation=assign.generation,
        held=held,
        prepared_step=held.step,
        suspect=suspect,
        reason=reason,
    )


def finished(assign: m.Assign, state: State, *, stopped: bool) -> member.TrainerFinished:
    """The trainer has committed its last step, and all digests are equal."""
    return member.TrainerFinished(
        finished=m.Finished(
            job=state.job,
            generation=assign.generation,
            step=state.step,
            digest=state.content,
            stopped=stopped,
            result={"steps": state.step} if assign.rank == 0 else {},
        )
    )
