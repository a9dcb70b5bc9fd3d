"""Stories of a caller's messages, written by hypothesis, and played."""

from __future__ import annotations

from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def play(
    stories: type[RuleBasedStateMachine],
    *,
    examples: int,
    steps: int,
    derandomize: bool = False,
    shrinks: bool = True,
) -> None:
    """Play so many stories.

    Args:
        stories: what may happen in one.
        examples: how many.
        steps: of each, at most.
        derandomize: the same ones each time.
        shrinks: look for the shortest story that shows a defect, which takes minutes.
    """
    phases = set(Phase) - ({Phase.explain} if shrinks else {Phase.explain, Phase.shrink})
    run_state_machine_as_test(
        stories,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=derandomize,
            phases=phases,
            database=None,
        ),
    )
