"""The commands about jobs and workers: wait, cancel, jobs, logs, delete, kill-worker, drain."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from dtd.ctl import output
from dtd.ctl.answers import Answer, ask, ask_and_show, items, parse_job_at_step, persist, show
from dtd.ctl.settings import Settings
from dtd.errors import DtdError, JobFailed
from dtd.net.clients.control_client import ControlClient
from dtd.text import figures
from dtd.text.names import LAUNCHED
from dtd.text.shown import counted, one_line
from dtd.wire import messages as m

BAR_EVERY_S: Final = 1.0
LINE_EVERY_S: Final = 60.0
LOOK_EVERY_S: Final = 1.0
_ENDED: Final = {"failed": "failed", "cancelled": "was cancelled"}
MOST_SETTINGS: Final = 4
SETTING_CHARACTERS: Final = 24


def wait(settings: Settings, job: str, *, timeout_s: float = math.inf) -> int:
    """Wait until the job has ended, also across a restart of the coordinator.

    Ctrl-C ends the wait, not the job, and says so.
    """
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    progress = _WaitProgress(settings, job)
    try:
        answer = await_end(settings, job, progress, timeout_s=timeout_s)
    except KeyboardInterrupt:
        progress.close()
        output.say(f"job {job} continues without this command")
        output.say(f"  follow it:  dtdctl wait {job}   or   dtdctl status --watch")
        output.say(f"  stop it:    dtdctl cancel {job}")
        return output.EXIT_INTERRUPTED
    finally:
        progress.close()
        signal.signal(signal.SIGINT, usual)
    if answer is None:
        raise DtdError(
            f"job {job} has not ended within {timeout_s:g} s{_held_up(settings, job)}",
            remedy="it is still running; check it with: dtdctl status, or wait again: dtdctl "
            f"wait {job}",
        )
    show(settings, answer, lambda answer: _say_done(answer, job))
    if answer["state"] != "done":
        reason = answer["reason"] or "no reason was given"
        raise JobFailed(
            f"job {job} {_ENDED[answer['state']]}: {reason}",
            remedy=f"read what it printed with: dtdctl logs {job}",
        )
    return 0


def _held_up(settings: Settings, job: str) -> str:
    """Return the reason for a job's delay, if the coordinator can be asked; begins with a colon."""
    try:
        active = _found(ask(settings, m.GetStatus()), job)
    except DtdError:
        return ""
    if active is None:
        return ""
    return f": job {job} is {active['state']}" + (active["explain"] and f": {active['explain']}")


def _found(status: Answer, job: str) -> Answer | None:
    return next((one for one in status["jobs"] if one["id"] == job), None)


def _say_done(answer: Answer, job: str) -> None:
    if answer["state"] == "done":  # an error tells of any other end
        output.print_lines([job])
        words = result_words(answer["result"])
        output.say(f"job {job} is done" + (f": {words}" if words else ""))


def await_end(
    settings: Settings, job: str, progress: _WaitProgress, *, timeout_s: float
) -> Answer | None:
    """The answer to WAIT_JOB, or None when time ran out."""
    deadline_s = time.monotonic() + timeout_s

    def look(client: ControlClient) -> Answer | None:
        client.ask(m.WaitJob(job=job))
        while True:
            left_s = deadline_s - time.monotonic()
            answer = client.answer(timeout_s=min(left_s, progress.every_s))
            if answer is not None or left_s <= progress.every_s:
                return answer
            progress.show()

    return persist(settings, look, until_s=deadline_s)


def result_words(result: dict[str, Any]) -> str:
    """A job's result in one line, as far as it has one."""
    labels = {
        "steps": "steps",
        "train_loss": "train loss",
        "eval_loss": "eval loss",
        "eval_accuracy": "accuracy",
        "steps_lost": "steps lost",
    }
    known = [(label, result.get(key)) for key, label in labels.items()]
    words = [f"{label} {figures.number(value)}" for label, value in known if value is not None]
    if result.get("steps") is result.get("train_loss") is None:
        return ""  # no step is known
    if result.get("ended_early"):
        words.append(f"ended early: {result['ended_early']}")
    return ", ".join(words)


def progress_words(job: Mapping[str, Any]) -> list[str]:
    """How far a job of the status is."""
    task = job.get("task", "")
    if task.endswith(LAUNCHED):
        return [f"runs {task.removesuffix(LAUNCHED)}.py, whose steps are its own"]
    words = [
        f"step {figures.steps(job['step'], job['total_steps'])}",
        f"epoch {job['epoch']}",
        f"loss {figures.number(job['loss'])}",
        figures.rate(job["samples_per_s"]),
        f"steps lost {job['steps_lost']}",
    ]
    if job.get("skipped_steps"):
        words.append(f"skipped {job['skipped_steps']}")
    spare = job.get("redundancy")
    if spare is not None:
        words.append(f"{max(spare, 0)} may be lost")
    if job.get("eval"):
        words.append(f"eval {figures.metrics(job['eval'])}")
    return words


class _WaitProgress:
    """Shows one job, when `show` is called every `every_s`; a failed request is left out."""

    def __init__(self, settings: Settings, job: str) -> None:
        self._settings = settings
        self._job = job
        self._bar: Any = None
        self._draws = output.can_redraw(sys.stderr)
        self.every_s = BAR_EVERY_S if self._draws else LINE_EVERY_S

    def show(self) -> None:
        try:
            status = ask(self._settings, m.GetStatus())
        except DtdError:
            return
        job = _found(status, self._job)
        if job is not None:
            words = ", ".join([job["state"], *progress_words(job)])
            self._say(words, job["step"], job["total_steps"])
        elif self._job in status["queue"]:
            self._say("queued", 0, 0)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _say(self, words: str, step: int, total: int) -> None:
        if not self._draws:
            output.say(f"job {self._job}: {words}")
            return
        if self._bar is None:
            self._bar = _bar(self._job)
        self._bar.update(0, completed=step, total=total or None, words=one_line(words))


def _bar(job: str) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[words]}", markup=False),
        console=Console(stderr=True),
        transient=True,
    )
    bar.add_task(one_line(job), total=None, words="")
    bar.start()
    return bar


def cancel(settings: Settings, job: str) -> None:
    """Stop a job at its next step boundary."""
    ask_and_show(settings, m.CancelJob(job=job), "job {job} is {state}")


def list_jobs(settings: Settings, *, tag: str = "") -> None:
    """Print all jobs, or those with a tag, newest first, with their results."""
    ask_and_show(
        settings, m.ListJobs(tag=tag), lambda answer: _print_jobs(answer, wide=settings.is_wide)
    )


def _print_jobs(answer: Answer, *, wide: bool) -> None:
    headings = (
        *("JOB", "TASK", "STATE", "STEP", "SUBMITTED", "DURATION", "TAGS", "SETTINGS"),
        "RESULT",
    )
    rows = [
        (
            job["id"],
            job["task"],
            job["state"],
            figures.steps(job["step"], job["total_steps"]),
            figures.moment(job["submitted_s"]),
            _duration(job),
            " ".join(job.get("tags", ())) or figures.NOTHING,
            settings_words(job.get("settings", {})),
            job["reason"] or result_words(job["result"]) or figures.NOTHING,
        )
        for job in answer["jobs"]
    ]
    only_wide = ("TASK", "SUBMITTED")
    output.print_table(headings, rows, wide=wide, only_wide=only_wide, none="no jobs")


def settings_words(settings: dict[str, Any]) -> str:
    """The settings in which a job differs from the other ones of its task, the first few."""
    words = [f"{key}={_setting(value)}" for key, value in settings.items()]
    more = len(words) - MOST_SETTINGS
    return " ".join(words[:MOST_SETTINGS] + ([f"and {more} more"] if more > 0 else [])) or (
        figures.NOTHING
    )


def _setting(value: Any) -> str:
    return figures.NOTHING if value is None else one_line(str(value), SETTING_CHARACTERS)


def _duration(job: dict[str, Any]) -> str:
    if not job["started_s"]:
        return figures.NOTHING
    return figures.duration((job["ended_s"] or time.time()) - job["started_s"])


def printed_lines(line: Mapping[str, Any]) -> list[str]:
    """A line that a job printed, with its rank; a progress bar begins the same one many times."""
    return [f"[{line['rank']} {line['worker']}] {part}" for part in line["text"].split("\n")]


def logs(settings: Settings, job: str, *, follow: bool, tail: int | None, worker: str) -> None:
    """Print what a job's own code printed, each line with its rank; or follow it to the end."""
    after = 0
    workers: set[str] = set()

    def lines(client: ControlClient) -> Iterator[Mapping[str, Any]]:
        nonlocal after
        page = items(client.request, lambda at: m.ReadLogs(job=job, after=max(at, after)), "lines")
        for line in page:
            after = line["seq"]
            workers.add(line["worker"])
            if worker in ("", line["worker"]):
                yield line

    with settings.connect() as client:
        _print_lines(settings, lines(client) if tail is None else deque(lines(client), maxlen=tail))
    if follow:
        _until_end(settings, job, lambda client: _print_lines(settings, lines(client)))
    if worker and worker not in workers:
        from dtd.rules import did_you_mean  # seldom needed, and slow to load

        output.say(f"{worker} printed nothing in {job}{did_you_mean(worker, workers)}")


def _until_end(settings: Settings, job: str, look: Callable[[ControlClient], None]) -> None:
    """Look every second until the job has ended, and once after it."""

    def watch(waiting: ControlClient) -> None:
        waiting.ask(m.WaitJob(job=job))
        ended: Answer | None = None
        with settings.connect() as client:
            while ended is None:
                ended = waiting.answer(timeout_s=LOOK_EVERY_S)
                look(client)

    persist(settings, watch)


def _print_lines(settings: Settings, lines: Iterable[Mapping[str, Any]]) -> None:
    for line in lines:
        if settings.as_json:
            output.print_json(line)
        else:
            output.print_lines(printed_lines(line))


def delete(settings: Settings, text: str, *, confirmed: bool) -> None:
    """Delete it on all workers; disconnected workers do so when they reconnect."""
    job, step = parse_job_at_step(text, source="JOB")
    known = ask(settings, m.ShowJob(job=job))
    going = [one for one in known["checkpoints"] if step in (0, one["step"])]
    if not confirmed:
        _confirm(job, step, going)
    ask_and_show(settings, m.Delete(job=job, step=step), _say_deleted)


def _confirm(job: str, step: int, going: list[dict[str, Any]]) -> None:
    workers = ", ".join(sorted({one["worker"] for one in going})) or "no worker"
    size = figures.size(sum(one["size_bytes"] for one in going))
    count = counted(len(going), "checkpoint")
    what = f"of step {step} of {job}" if step else f"and everything else of job {job}"
    output.say(f"this deletes {count} {what}: {size} on {workers}")
    output.confirm_deletion()


def _say_deleted(answer: Answer) -> None:
    step, job = answer["step"], answer["job"]
    gone = [one for one in answer["checkpoints"] if one["outcome"] == "deleted"]
    what = f"step {step} of {job}" if step else f"job {job}"
    output.say(f"{what} deleted, with {counted(len(gone), 'checkpoint')} on disks")
    for one in answer["checkpoints"]:
        if one["outcome"] == "later":
            why = f" ({one['reason']})" if one["reason"] else ""
            output.say(f"  {one['worker']} deletes step {one['step']} later{why}")
        elif one["outcome"] == "failed":
            output.say(f"  {one['worker']}: {one['reason']}")


def kill_worker(settings: Settings, name: str, signal: str) -> None:
    """Send a signal to a worker's process, to test recovery."""
    request = m.KillWorker(name=name, signal=signal)
    ask_and_show(settings, request, "SIG{signal} was sent to {name} (pid {pid})")


def drain(settings: Settings, name: str) -> None:
    """Let a worker leave at the next step boundary, losing nothing."""
    ask_and_show(settings, m.DrainWorker(name=name), "{name} leaves at the next step boundary")
