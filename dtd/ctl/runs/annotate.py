"""`dtdctl tag add|remove JOB TAG...` and `dtdctl note JOB TEXT`."""

from __future__ import annotations

from collections.abc import Sequence

from dtd.ctl import output
from dtd.ctl.answers import Answer, ask_and_show
from dtd.ctl.settings import Settings
from dtd.wire import messages as m


def change_tags(
    settings: Settings, job: str, *, add: Sequence[str] = (), remove: Sequence[str] = ()
) -> int:
    """Add and remove tags of a job.

    Raises:
        RequestRefused: the job is not known, or one of the tags cannot be added or removed.
    """
    request = m.AnnotateJob(job=job, add=tuple(add), remove=tuple(remove))
    ask_and_show(settings, request, _say_tags)
    return 0


def _say_tags(answer: Answer) -> None:
    output.say(f"tags of {answer['job']}: {' '.join(answer['tags']) or 'none'}")


def write_note(settings: Settings, job: str, text: str) -> int:
    """Replace the note about a job.

    Raises:
        RequestRefused: the job is not known, or the note is too long.
    """
    ask_and_show(settings, m.AnnotateJob(job=job, note=text, sets_note=True), _say_note)
    return 0


def _say_note(answer: Answer) -> None:
    output.say(f"note of {answer['job']}: {answer['note'] or 'none'}")
