"""`dtdctl delete JOB|JOB@STEP`: an ended job with its checkpoints, or the checkpoints of one step.

What is gone is gone, so it is said what goes, and a person on a terminal is asked.
"""

from __future__ import annotations

import sys
from typing import Any

from dtd.ctl import figures, output
from dtd.ctl.answers import Answer, ask, ask_and_show
from dtd.ctl.origins import parse_job_at_step
from dtd.ctl.settings import Settings
from dtd.errors import RequestRefused, UsageError
from dtd.wire import messages as m


def delete(settings: Settings, text: str, *, confirmed: bool) -> int:
    """Delete it on all workers; those that are away do so when they are back.

    Raises:
        UsageError: nobody can be asked, and nothing says that it is meant.
        RequestRefused: the coordinator says no, or the person does.
    """
    job, step = parse_job_at_step(text, source="JOB")
    known = ask(settings, m.ShowJob(job=job))
    going = [one for one in known["checkpoints"] if step in (0, one["step"])]
    if not confirmed:
        _confirm(job, step, going)
    ask_and_show(settings, m.Delete(job=job, step=step), _say_deleted)
    return 0


def _confirm(job: str, step: int, going: list[dict[str, Any]]) -> None:
    workers = ", ".join(sorted({one["worker"] for one in going})) or "no worker"
    size = figures.size(sum(one["size_bytes"] for one in going))
    count = figures.counted(len(going), "checkpoint")
    what = f"of step {step} of {job}" if step else f"and all else of job {job}"
    output.say(f"this deletes {count} {what}: {size} on {workers}")
    if not sys.stdin.isatty():
        raise UsageError("nobody is there to confirm it", remedy="say --yes if it is meant")
    output.ask("delete? [y/N] ")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise RequestRefused("nothing was deleted")


def _say_deleted(answer: Answer) -> None:
    step, job = answer["step"], answer["job"]
    gone = [one for one in answer["checkpoints"] if one["outcome"] == "deleted"]
    what = f"step {step} of {job}" if step else f"job {job}"
    output.say(f"{what} is deleted: {figures.counted(len(gone), 'checkpoint')} from disks")
    for one in answer["checkpoints"]:
        if one["outcome"] == "later":
            why = f" ({one['reason']})" if one["reason"] else ""
            output.say(f"  {one['worker']} deletes step {one['step']} later{why}")
        elif one["outcome"] == "failed":
            output.say(f"  {one['worker']}: {one['reason']}")
