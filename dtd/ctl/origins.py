"""Jobs that start from another job's state: the options that name it, and the printed summary.

`submit` starts a job of a file; `extend` and `resume` submit the other job's own settings again, so
its file need not be at hand.  The coordinator decides whether the two jobs are compatible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dtd.ctl import output
from dtd.ctl.answers import Answer, ask, ask_and_show, show
from dtd.ctl.settings import Settings
from dtd.errors import RequestRefused, UsageError
from dtd.packages.weights import ENDING
from dtd.shown import counted
from dtd.wire import messages as m

RESUME: Final = "resume"
WEIGHTS: Final = "weights"
_ENDED: Final = frozenset({"done", "failed", "cancelled"})
_MOST_DIFFERENCES: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The state from which a job starts; without `job` from scratch.

    Attributes:
        job: whose checkpoint.
        step: of it; 0 the newest.
        mode: the part to take over; empty: the coordinator chooses.
        file: a file of weights instead of a job's.
        strict: all weights that are taken over alone must fit the model.
    """

    job: str = ""
    step: int = 0
    mode: str = ""
    file: Path | None = None
    strict: bool = True


def read_origin(
    *, resume_from: str, weights_from: str, either_from: str, strict: bool = True
) -> Origin:
    """The origin that the options name; `--from` alone leaves the part to take over open.

    Raises:
        UsageError: several are given, or the option names no state.
    """
    given = {
        "--resume-from": (resume_from, RESUME),
        "--weights-from": (weights_from, WEIGHTS),
        "--from": (either_from, ""),
    }
    named = [(option, *value) for option, value in given.items() if value[0]]
    if not named:
        return Origin()
    if len(named) > 1:
        raise UsageError(
            f"{' and '.join(option for option, *_ in named)} cannot be used together",
            remedy="use one: --resume-from takes the whole state, --weights-from only the weights",
        )
    ((option, text, mode),) = named
    if mode == WEIGHTS and text.endswith(ENDING):
        return Origin(mode=mode, file=Path(text), strict=strict)
    job, step = parse_job_at_step(text, source=option)
    return Origin(job=job, step=step, mode=mode, strict=strict)


def parse_job_at_step(text: str, *, source: str) -> tuple[str, int]:
    """Read JOB or JOB@STEP; step 0 means the newest.

    Raises:
        UsageError: the step is not a positive number, or the job is empty.
    """
    job, at, step = text.partition("@")
    if not job or (at and not (step.isascii() and step.isdigit() and int(step) > 0)):
        raise UsageError(
            f"{source}: {text!r} does not name a job's state",
            remedy="write JOB for its newest checkpoint or JOB@STEP, for example digits-1@200",
        )
    return job, int(step) if at else 0


def say_origin(origin: Origin, answer: Answer) -> None:
    """Print the parts that are taken over, and the settings in which the two jobs differ."""
    if origin.file is not None:
        output.say(f"takes only the weights from {origin.file}")
    mode = answer.get("from_mode", "")
    if not mode:
        return
    what = "everything" if mode == RESUME else "only the weights"
    output.say(f"takes {what} from {origin.job} at step {answer['from_step']}")
    if not origin.mode:
        output.say(
            f"--from is not enough here: use --{mode}{'-from'} {origin.job}"
            "; a later release has no --from"
        )
    differs = [f"{key} {_value(was)} -> {_value(now)}" for key, was, now in answer["differs"]]
    for line in differs[:_MOST_DIFFERENCES]:
        output.say(f"  differs: {line}")
    if len(differs) > _MOST_DIFFERENCES:
        output.say(f"  and {len(differs) - _MOST_DIFFERENCES} more settings differ")


def _value(value: Any) -> str:
    from dtd.job.differences import shown_value

    return shown_value(value)


def extend(
    settings: Settings, job: str, *, epochs: int, steps: int, overrides: Sequence[str]
) -> int:
    """Submit a job that continues from a job's last state with a longer plan.

    Raises:
        UsageError: not one of both lengths is given.
        RequestRefused: the job has not ended, or its new end is not beyond its last state.
        JobSpecError: the new settings do not fit together.
    """
    if bool(epochs) == bool(steps):
        raise UsageError(
            "an extended job needs its new length, counted from its beginning",
            remedy=f"dtdctl extend {job} --epochs N, or --steps N",
        )
    known = ask(settings, m.ShowJob(job=job))
    if known["state"] not in _ENDED:
        raise RequestRefused(
            f"job {job} has not ended: it is {known['state']}",
            remedy=f"wait until it ends (dtdctl wait {job}), or cancel it first",
        )
    length = f"job.epochs={epochs}" if epochs else f"job.steps={steps}"
    answer = _continue(settings, known, [length, *overrides])
    total = counted(epochs or steps, "epoch" if epochs else "step")
    output.say(
        f"its plan is {total} from the beginning; the learning rate follows [schedule] name ="
        f' "{known["spec"]["schedule"]["name"]}" over that length'
    )
    show(settings, answer, lambda answer: output.print_lines([answer["job"]]))
    return 0


def resume(settings: Settings, job: str, *, overrides: Sequence[str]) -> int:
    """Let a waiting job continue; submit the continuation of one that failed or was cancelled.

    Raises:
        RequestRefused: the job is done, or neither waits nor has ended.
        UsageError: an option does not apply to a job in this state.
        JobSpecError: the new settings do not fit together.
    """
    known = ask(settings, m.ShowJob(job=job))
    if known["state"] not in _ENDED:
        if overrides:
            raise UsageError(f"job {job} has not ended, so its settings cannot be changed")
        ask_and_show(settings, m.ResumeJob(job=job), _say_resumed)
        return 0
    if known["state"] == "done":
        raise RequestRefused(
            f"job {job} is done: no steps are left",
            remedy=f"extend it with: dtdctl extend {job} --epochs N",
        )
    answer = _continue(settings, known, overrides)
    show(settings, answer, lambda answer: output.print_lines([answer["job"]]))
    return 0


def _say_resumed(answer: Answer) -> None:
    job, state = answer["job"], answer["state"]
    output.say(f"job {job} continues from the newest available state ({state})")


def _continue(settings: Settings, known: Answer, overrides: Sequence[str]) -> Answer:
    """Submit a job's own settings, changed, to continue from its newest state."""
    from dtd.job import overridden, to_mapping

    spec = overridden(known["spec"], overrides, source=f"job {known['id']}")
    origin = Origin(job=known["id"], mode=RESUME)
    request = m.SubmitJob(
        spec=to_mapping(spec),
        from_job=origin.job,
        from_mode=origin.mode,
        package=known["package"],
    )
    answer = ask(settings, request)
    output.say(f"job {answer['job']} continues where {known['id']} ended")
    say_origin(origin, answer)
    return answer
