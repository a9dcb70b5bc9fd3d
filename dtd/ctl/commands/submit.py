"""The commands that submit jobs: validate, submit, run, extend, resume.

A job comes from a file, or repeats or continues an earlier one with the settings and the package
that the coordinator has recorded of it, so that neither its file nor its code has to be at hand.
The coordinator decides whether a job may start from another one's state.

The package of a task that is not built in is shipped with the job.  It is searched for beside the
job file, in the current directory, then on Python's path; with it goes what it imports from its
folder.  Nothing is imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dtd.ctl import output
from dtd.ctl.answers import Answer, ask, ask_and_show, parse_job_at_step, show
from dtd.ctl.commands.jobs import wait
from dtd.ctl.settings import Settings
from dtd.errors import RequestRefused, TaskError, UsageError
from dtd.job import JobSpec, load_job, overridden, to_mapping
from dtd.job.differences import shown_value
from dtd.net.clients.control_client import ControlClient
from dtd.packages.archive import Archive, pack
from dtd.packages.archives import ENDING, WeightsFile, read_weights_file
from dtd.packages.limits import CHUNK_BYTES, short
from dtd.packages.requirements import encode, read
from dtd.packages.source import (
    OWN_NAME,
    Source,
    find_source,
    imports_dtd,
    module_name,
    top_level_name,
    with_imports,
)
from dtd.text import figures
from dtd.text.names import LAUNCHED, MOST_STEPS, SCRIPT, name_of
from dtd.text.shown import counted
from dtd.wire import messages as m

RESUME: Final = "resume"
WEIGHTS: Final = "weights"
_ENDED: Final = frozenset({"done", "failed", "cancelled"})
_MOST_DIFFERENCES: Final = 20
_PLAN_OF_A_SCRIPT: Final = ("job.epochs", "job.steps", "job.global_batch_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The state from which a job starts; without `job` from scratch.

    Attributes:
        mode: the part to take over, RESUME or WEIGHTS.
        strict: all weights that are taken over alone must fit the model.
    """

    job: str = ""
    step: int = 0
    mode: str = ""
    file: Path | None = None
    strict: bool = True


def read_origin(*, resume_from: str, weights_from: str, strict: bool = True) -> Origin:
    """The origin that the options name."""
    if resume_from and weights_from:
        raise UsageError(
            "--resume-from and --weights-from cannot be used together",
            remedy="use one: --resume-from takes the whole state, --weights-from only the weights",
        )
    if not resume_from and not weights_from:
        return Origin()
    mode, text = (RESUME, resume_from) if resume_from else (WEIGHTS, weights_from)
    if mode == WEIGHTS and text.endswith(ENDING):
        return Origin(mode=mode, file=Path(text), strict=strict)
    job, step = parse_job_at_step(text, source=f"--{mode}-from")
    return Origin(job=job, step=step, mode=mode, strict=strict)


def validate(settings: Settings, path: Path, *, overrides: Sequence[str]) -> None:
    """Check a job file without a coordinator; problems are raised all at once."""
    spec = load_job(path, overrides)
    if settings.as_json:
        output.print_json({"valid": True, "job": to_mapping(spec)})
    else:
        output.say(f"{path}: valid")


def submit(
    settings: Settings,
    path: Path | None,
    *,
    overrides: Sequence[str],
    like: str,
    resume_from: str,
    weights_from: str,
    strict: bool,
    wait_for_end: bool,
    no_ship: bool,
) -> int:
    """Queue a job of a file, or like an earlier one, and print its id."""
    if (path is None) != bool(like):
        raise UsageError(
            "a job is submitted either from a file or like an earlier job",
            remedy="dtdctl submit JOB.toml, or dtdctl submit --like JOB",
        )
    origin = read_origin(resume_from=resume_from, weights_from=weights_from, strict=strict)
    if path is None:
        answer = _submit_like(settings, like, overrides, origin, ships=not no_ship)
    else:
        spec = load_job(path, overrides)
        answer = _submit(settings, spec, path, origin, ships=not no_ship)
    return _submitted(settings, answer, wait_for_end=wait_for_end)


def _submitted(settings: Settings, answer: Answer, *, wait_for_end: bool) -> int:
    _say_page(answer)
    if wait_for_end:
        output.say(f"job {answer['job']} submitted")
        return wait(settings, answer["job"])
    show(settings, answer, lambda answer: output.print_lines([answer["job"]]))
    return 0


def _say_page(answer: Answer) -> None:
    if answer.get("page"):
        output.say(f"web page: {answer['page']} (to log in: dtdctl web)")


def run_script(
    settings: Settings,
    words: Sequence[str],
    *,
    workers: int,
    name: str,
    overrides: Sequence[str],
    wait_for_end: bool,
) -> int:
    """Queue a job that runs a script, and print its id: in its own loop, or as torchrun does."""
    interpreted = words[0].startswith("python") and not words[0].endswith(".py")
    script, *arguments = words[1:] if interpreted and words[1:] else words
    path = Path(script)
    if path.suffix != ".py" or not path.stem.isidentifier() or not path.is_file():
        raise UsageError(
            f"{script} is no Python script that can be shipped",
            remedy="name a file such as train.py, with letters, digits and underscores in its name",
        )
    source = Source(name=path.stem, path=path.resolve(), installed=False)
    joins = imports_dtd(with_imports(source, path.stem))
    if not joins:
        output.say(f"{path.name} does not call dtd.join: workers start it as torchrun does")
    task = f"{path.stem}{SCRIPT if joins else LAUNCHED}"
    _check_plan(task, overrides)
    given = {
        "job": {
            "name": name or name_of(path.stem),
            "task": task,
            # In place of the numbers that a script gives to run.batches():
            "global_batch_size": 1,
            "steps": MOST_STEPS,
        },
        "task": {"args": arguments},
        "elastic": {"max_workers": workers},
    }
    spec = overridden(given, overrides, source=script)
    answer = _submit(settings, spec, path, Origin(), ships=True)
    return _submitted(settings, answer, wait_for_end=wait_for_end)


def _submit(
    settings: Settings, spec: JobSpec, path: Path, origin: Origin, *, ships: bool
) -> Answer:
    """Submit a job with its task's package, which is looked for beside this file first."""
    if spec.job.requirements and not ships:
        raise UsageError(
            "job.requirements are shipped with the task's package, and --no-ship ships nothing",
            remedy="remove one of them: --set job.requirements= takes the requirements away",
        )
    archive = packed_task(spec.job.task, path, spec.job.requirements) if ships else None
    weights = read_weights_file(origin.file) if origin.file is not None else None
    with settings.connect() as client:
        if archive is not None:
            ship(client, archive)
        if weights is not None:
            ship_weights(client, weights)
        request = m.SubmitJob(
            spec=to_mapping(spec),
            from_job=origin.job,
            from_step=origin.step,
            from_mode=origin.mode,
            package=archive.digest if archive is not None else "",
            weights=weights.digest if weights is not None else "",
            strict=origin.strict,
        )
        answer = client.request(request)
    _say_origin(origin, answer)
    return answer


def _submit_like(
    settings: Settings, job: str, overrides: Sequence[str], origin: Origin, *, ships: bool
) -> Answer:
    """Repeat a job; without an origin it starts where the earlier one did."""
    if origin.file is not None:
        raise UsageError(
            f"{origin.file} cannot be sent along with --like",
            remedy="name a job: --weights-from JOB@STEP, or submit a job file",
        )
    known = ask(settings, m.ShowJob(job=job))
    package = known["package"] if ships else ""
    begins = origin if origin.job else origin_of(known)
    request = m.SubmitJob(
        spec=to_mapping(_changed(known, overrides)),
        from_job=begins.job,
        from_step=begins.step,
        from_mode=begins.mode,
        package=package,
        weights="" if begins.job else known["weights"],
        strict=begins.strict,
    )
    answer = ask(settings, request)
    code = f" with its package {short(package)}" if package else ""
    changed = f", but {', '.join(overrides)}" if overrides else ""
    output.say(f"job {answer['job']} is as {job}{code}{changed}")
    _say_origin(begins, answer)
    return answer


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


def extend(
    settings: Settings, job: str, *, epochs: int, steps: int, overrides: Sequence[str]
) -> None:
    """Submit a job that continues from a job's last state with a longer plan."""
    known = ask(settings, m.ShowJob(job=job))
    scripted = known["spec"]["job"]["task"].endswith((SCRIPT, LAUNCHED))
    if not scripted and bool(epochs) == bool(steps):
        raise UsageError(
            "an extended job needs its new length, counted from its beginning",
            remedy=f"dtdctl extend {job} --epochs N, or --steps N",
        )
    if scripted and (epochs or steps or not overrides):
        raise _set_by_script(known["spec"]["job"]["task"], "its length")
    if known["state"] not in _ENDED:
        raise RequestRefused(
            f"job {job} has not ended: it is {known['state']}",
            remedy=f"wait until it ends (dtdctl wait {job}), or cancel it first",
        )
    length = f"job.epochs={epochs}" if epochs else f"job.steps={steps}"
    answer = _continue(settings, known, overrides if scripted else [length, *overrides])
    if not scripted:
        total = counted(epochs or steps, "epoch" if epochs else "step")
        output.say(
            f"its plan is {total} from the beginning; the learning rate follows [schedule] name ="
            f' "{known["spec"]["schedule"]["name"]}" over that length'
        )
    show(settings, answer, lambda answer: output.print_lines([answer["job"]]))


def resume(settings: Settings, job: str, *, overrides: Sequence[str]) -> None:
    """Let a waiting job continue; submit the continuation of one that failed or was cancelled."""
    known = ask(settings, m.ShowJob(job=job))
    if known["state"] not in _ENDED:
        if overrides:
            raise UsageError(f"job {job} has not ended, so its settings cannot be changed")
        said = "job {job} continues from the newest available state ({state})"
        ask_and_show(settings, m.ResumeJob(job=job), said)
        return
    if known["state"] == "done":
        raise RequestRefused(
            f"job {job} is done: no steps are left",
            remedy=f"extend it with: dtdctl extend {job} --epochs N",
        )
    answer = _continue(settings, known, overrides)
    show(settings, answer, lambda answer: output.print_lines([answer["job"]]))


def _continue(settings: Settings, known: Answer, overrides: Sequence[str]) -> Answer:
    """Submit a job's own settings, changed, to continue from its newest state."""
    spec = _changed(known, overrides)
    origin = Origin(job=known["id"], mode=RESUME)
    request = m.SubmitJob(
        spec=to_mapping(spec), from_job=origin.job, from_mode=origin.mode, package=known["package"]
    )
    answer = ask(settings, request)
    output.say(f"job {answer['job']} continues where {known['id']} ended")
    _say_origin(origin, answer)
    _say_page(answer)
    return answer


def _changed(known: Answer, overrides: Sequence[str]) -> JobSpec:
    """The settings of an earlier job, with changes.

    Not its requirements, which are in the package that is not made anew.
    """
    _check_plan(known["spec"]["job"]["task"], overrides)
    spec = overridden(known["spec"], overrides, source=f"job {known['id']}")
    if spec.job.requirements not in ("", known["spec"]["job"].get("requirements", "")):
        raise UsageError(
            f"{spec.job.requirements} would have to be shipped, and the package of job"
            f" {known['id']} is used",
            remedy="submit the job file: dtdctl submit JOB.toml, with --resume-from to continue",
        )
    return spec


def _check_plan(task: str, overrides: Sequence[str]) -> None:
    """Refuse to set what a script sets itself, and would ignore."""
    keys = [one.partition("=")[0].strip() for one in overrides]
    if task.endswith((SCRIPT, LAUNCHED)):
        for key in [one for one in keys if one in _PLAN_OF_A_SCRIPT]:
            raise _set_by_script(task, key)


def _set_by_script(task: str, what: str) -> UsageError:
    script = f"{task.partition(':')[0]}.py"
    return UsageError(
        f"{script} sets {what} itself, so the job cannot",
        remedy=f'give {script} other arguments: --set \'task.args=["--epochs", "40"]\', or change'
        " it and submit it again with dtdctl run",
    )


def _say_origin(origin: Origin, answer: Answer) -> None:
    """Print the parts that are taken over, and the settings in which the two jobs differ."""
    if origin.file is not None:
        output.say(f"takes only the weights from {origin.file}")
    mode = answer.get("from_mode", "")
    if not mode:
        return
    what = "everything" if mode == RESUME else "only the weights"
    output.say(f"takes {what} from {origin.job} at step {answer['from_step']}")
    differs = [
        f"{key} {shown_value(was)} -> {shown_value(now)}" for key, was, now in answer["differs"]
    ]
    for line in differs[:_MOST_DIFFERENCES]:
        output.say(f"  differs: {line}")
    if len(differs) > _MOST_DIFFERENCES:
        output.say(f"  and {len(differs) - _MOST_DIFFERENCES} more settings differ")


def packed_task(reference: str, job_file: Path, requirements: str = "") -> Archive | None:
    """The package of a job's task, with its imports from its folder, and the job's requirements.

    None when the workers have all: the task is built in or installed, and requires nothing.  Paths
    are relative to the job file's directory, where the task is looked for first.
    """
    listed = b""
    if requirements:
        wanted = read(job_file.absolute().parent / requirements)
        listed = encode(wanted)
        output.say(f"ships {requirements}: {counted(len(wanted), 'requirement')}")
    sources = _sources(reference, job_file)
    if not sources:
        return pack([], listed) if listed else None
    for one in sources:
        _check_name(reference, one)
    archive = pack(sources, listed)
    beside = "".join(f", {one.path.name}" for one in sources[1:] if one.path is not None)
    output.say(
        f"ships {sources[0].path}{beside}: {counted(archive.files, 'file')},"
        f" {len(archive.content) / 1024:.0f} KiB, {short(archive.digest)}"
    )
    return archive


def _sources(reference: str, job_file: Path) -> list[Source]:
    """The task's package or module and its imports; none when the workers have it."""
    name = top_level_name(reference)
    if not name:
        return []
    source = find_source(name, [job_file.absolute().parent, Path.cwd(), *sys.path])
    if source is None:
        raise TaskError(
            f"task {reference}: no package or module {name} was found beside {job_file}, in"
            f" {Path.cwd()} or installed here",
            remedy="submit the job from the directory that contains it, or with --no-ship if the "
            "workers have it",
        )
    if source.installed:
        output.say(f"package {name} is installed here and not shipped: workers use their own")
        return []
    return with_imports(source, module_name(reference))


def _check_name(reference: str, source: Source) -> None:
    """Check that a module can be imported by its name on a worker."""
    if source.name == OWN_NAME:
        whose = "dtd itself"
    elif source.name in sys.stdlib_module_names:
        whose = "a module of Python's standard library"
    else:
        return
    raise TaskError(
        f"task {reference}: {source.path} has the name of {whose}",
        remedy="rename it; the workers would import the other one",
    )


def ship(client: ControlClient, archive: Archive) -> None:
    """Upload the archive to the coordinator, continuing an earlier attempt."""
    content = archive.content
    _bring(
        client,
        m.PutPackage(digest=archive.digest, size=len(content), offset=0),
        lambda offset: content[offset : offset + CHUNK_BYTES],
        what="the task's package",
    )


def ship_weights(client: ControlClient, weights: WeightsFile) -> None:
    """Upload a file of weights to the coordinator, as `ship`."""
    size = figures.size(weights.size_bytes)
    output.say(f"ships {weights.path}: {size}, {short(weights.digest)}")
    try:
        with weights.path.open("rb") as file:

            def read(offset: int) -> bytes:
                file.seek(offset)
                return file.read(CHUNK_BYTES)

            first = m.PutPackage(
                digest=weights.digest, size=weights.size_bytes, offset=0, kind=WEIGHTS
            )
            _bring(client, first, read, what=str(weights.path))
    except OSError as error:
        raise UsageError(f"{weights.path} cannot be read: {error.strerror or error}") from None


def _bring(
    client: ControlClient, first: m.PutPackage, read: Callable[[int], bytes], *, what: str
) -> None:
    """Piece by piece; `first` asks how much is there."""
    have, answer = -1, int(client.request(first)["have"])
    while answer < first.size:
        if answer <= have:
            raise RequestRefused(
                f"the coordinator still has {answer} of {first.size} bytes of {what}",
                remedy="another client may be uploading the same content: submit again",
            )
        have = answer
        message = replace(first, offset=have)
        answer = int(client.request(message, read(have))["have"])
