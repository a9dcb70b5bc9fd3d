"""`dtdctl submit --like JOB`: an earlier job once more, with the same code, data and settings.

Settings, the task's package and the origin come from the coordinator's record, so neither the job
file nor the code has to be at hand.
"""

from __future__ import annotations

from collections.abc import Sequence

from dtd.ctl import output
from dtd.ctl.answers import Answer, ask
from dtd.ctl.jobs import Submission, say_submitted
from dtd.ctl.origins import WEIGHTS, Origin, say_origin
from dtd.ctl.settings import Settings
from dtd.errors import UsageError
from dtd.packages.limits import short
from dtd.wire import messages as m


def submit_like(settings: Settings, job: str, options: Submission) -> int:
    """Queue a job with the settings of an earlier one, and print its id.

    Args:
        settings: the coordinator and the form.
        job: the earlier job.
        options: without an origin it starts where the earlier job did; `ships` is about the
            earlier job's package.

    Raises:
        RequestRefused: the job is unknown, or its package or weights are not there any more.
        JobSpecError: the new settings do not fit together.
        UsageError: a file of weights is named.
    """
    from dtd.job import overridden, to_mapping

    known = ask(settings, m.ShowJob(job=job))
    spec = to_mapping(overridden(known["spec"], options.overrides, source=f"job {job}"))
    package = known["package"] if options.ships else ""
    if options.origin.file is not None:
        raise UsageError(
            f"{options.origin.file} cannot be sent along with --like",
            remedy="name a job: --weights-from JOB@STEP, or submit a job file",
        )
    begins = options.origin if options.origin.job else origin_of(known)
    request = m.SubmitJob(
        spec=spec,
        from_job=begins.job,
        from_step=begins.step,
        from_mode=begins.mode,
        package=package,
        weights="" if begins.job else known["weights"],
        strict=begins.strict,
    )
    answer = ask(settings, request)
    code = f" with its package {short(package)}" if package else ""
    output.say(f"job {answer['job']} is as {job}{code}{_but(options.overrides)}")
    say_origin(begins, answer)
    return say_submitted(settings, answer, wait_for_end=options.wait_for_end)


def origin_of(known: Answer) -> Origin:
    """Return a job's origin, with the step that was the newest then if none was named."""
    if not known["from_job"]:
        return Origin(mode=WEIGHTS if known["weights"] else "", strict=known["strict"])
    return Origin(
        job=known["from_job"],
        step=known["from_step"] or known["from_newest"],
        mode=known["from_mode"],
        strict=known["strict"],
    )


def _but(overrides: Sequence[str]) -> str:
    return f", but {', '.join(overrides)}" if overrides else ""
