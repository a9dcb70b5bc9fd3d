"""What a lying worker says instead of the truth: to the coordinator, of steps, digests and others.

It trains with the others as it should, for gradients are another matter.  What it says is drawn by
chance from what its credential lets it say, whether that can be true or not.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, Final

from dtd.wire import messages as m

TRUTHFUL: Final = 0.4
"""Who never tells the truth is cut off at once, and does little harm."""

SLANDERS: Final = 0.1
"""How often a heartbeat is replaced by the word that another member is gone, or differs."""

MOST_WORKERS: Final = 7
FAR: Final = (3, 40, 5_000, 10**9)
"""How far from the truth: within what the job has, and beyond it."""


def instead_of(message: m.Message, rng: random.Random) -> m.Message:
    """A lie, or the truth."""
    if rng.random() < TRUTHFUL:
        return message
    if isinstance(message, m.Heartbeat) and message.generation and rng.random() < SLANDERS:
        return _slander(message, rng)
    if isinstance(message, m.Frozen) and rng.random() < 0.5:
        return replace(message, **_accusation(rng))
    return _other(message, rng.choice(FAR) * rng.choice((1, 1, -1)))


def _slander(beat: m.Heartbeat, rng: random.Random) -> m.Frozen:
    """It has left its generation, it says, since something was wrong with another one."""
    held = m.Held(
        job=beat.job, generation=beat.generation, step=beat.step, digest="", where="memory"
    )
    return m.Frozen(
        job=beat.job,
        generation=beat.generation,
        roster_id=0,
        prepared_generation=beat.generation,
        prepared_step=beat.step,
        held=(held,),
        reason="slander",
        **_accusation(rng),
        diverged_step=beat.step,
        compared_step=beat.step,
    )


def _accusation(rng: random.Random) -> dict[str, Any]:
    """Somebody's process has ended or its state differs, or nobody's state is to be trusted."""
    suspect = rng.choice(("", f"worker-{rng.randint(1, MOST_WORKERS)}"))
    return {
        "suspect": suspect,
        "evidence": rng.choice(("diverged", "ended")) if suspect else "diverged",
        "compared_digest": rng.choice(("", "f0" * 16)),
    }


def _other(message: m.Message, by: int) -> m.Message:
    if isinstance(message, m.Frozen):
        held = tuple(replace(one, step=_moved(one.step, by)) for one in message.held)
        prepared: dict[str, Any] = {}
        if held:
            prepared = {"prepared_generation": held[0].generation, "prepared_step": held[0].step}
        return replace(message, held=held, **prepared)
    if isinstance(message, m.Warmed):
        known = m.Held(
            job=message.job, generation=1, step=_moved(0, by), digest="forged", where="checkpoint"
        )
        return replace(message, held=(known,))
    if isinstance(message, m.Agreed):
        return replace(message, digest="forged")
    if isinstance(message, m.Heartbeat | m.Running | m.Progress | m.CheckpointSaved | m.Finished):
        return replace(message, step=_moved(message.step, by))
    return message


def _moved(step: int, by: int) -> int:
    return max(0, step + by)
