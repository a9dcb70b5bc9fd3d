"""The commands about checkpoints: checkpoints and fetch."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dtd.address import Address
from dtd.core.trust.vouching import CONTRADICTED, UNCONFIRMED
from dtd.ctl import figures, output
from dtd.ctl.answers import RECONNECT_EVERY_S, Answer, ask, ask_and_show
from dtd.ctl.origins import parse_job_at_step
from dtd.ctl.settings import Settings
from dtd.errors import CheckpointError, HolderUnreachable, RequestRefused, UsageError
from dtd.job.learning import lower_is_better
from dtd.net.blocking_link import Connect, connect_tcp
from dtd.net.fetch_client import FetchClient, file_digest
from dtd.security.identity import WORKER
from dtd.shown import one_line
from dtd.wire import messages as m
from dtd.wire.greeting import DataCredential

# --- the three lines that load fetched weights into the task's model.  Pure text ---------------


def loading_lines(spec: Mapping[str, Any], *weights: Path) -> list[str]:
    """Python that builds the task's model and gives it the weights; a later file counts."""
    return [
        "from dtd.train.task import load_task; from dtd.train.state.weights import load_weights",
        f"model = load_task({spec['job']['task']!r}, {spec['task']!r}).build_model()",
        f"load_weights(model, {', '.join(repr(str(file)) for file in weights)})",
    ]


# --- the commands about checkpoints: checkpoints and fetch -------------------------------------
#
# `fetch` asks the coordinator who holds what, then takes the weights from a worker's data port;
# when that worker goes away it goes on with the next one that holds the same checkpoint.


WEIGHTS_FILE: Final = "model.safetensors"
HOLDERS_BACK_S: Final = 20.0
"""Longer than a worker's process takes to start."""

AVERAGES_FILE: Final = "ema.safetensors"
_HEADINGS: Final = (
    *("JOB", "GENERATION", "STEP", "SIZE", "WORKER", "THERE", "VERIFIED", "METRICS"),
    *("BRANCH", "DIRECTORY"),
)

Checkpoint = Mapping[str, Any]


def list_checkpoints(settings: Settings, job: str) -> int:
    """Print what is known of a job's checkpoints, or of all."""
    ask_and_show(settings, m.ListCheckpoints(job=job), _print_checkpoints)
    return 0


def _print_checkpoints(answer: Answer) -> None:
    rows = [
        (
            one["job"],
            str(one["generation"]),
            str(one["step"]),
            figures.size(one["size_bytes"]),
            one["worker"],
            "yes" if one["alive"] else "no",
            "yes" if one["verified"] else one["confirmation"],
            figures.metrics(one["metrics"]),
            "left" if one.get("left_behind") else "-",
            one["directory"],
        )
        for one in answer["checkpoints"]
    ]
    output.print_table(_HEADINGS, rows)
    _say_how_to_go_back([one for one in answer["checkpoints"] if one.get("left_behind")])


def _say_how_to_go_back(left: Sequence[Checkpoint]) -> None:
    """A job that fell back to an older state does not go on to these."""
    newest: dict[str, int] = {}
    for one in left:
        newest[one["job"]] = max(newest.get(one["job"], 0), one["step"])
    for job, step in newest.items():
        output.say(
            f"job {job} has gone on from an older state than those on the branch that it left; they"
            f" are kept. To go on from them: dtdctl cancel {job}, then"
            f" dtdctl submit JOB.toml --resume-from {job}@{step}"
        )


def fetch(
    settings: Settings, text: str, directory: Path | None, *, best_metric: str, mode: str = ""
) -> int:
    """Fetch the weights of a job's newest, named or best checkpoint, and show how to load them.

    Without `mode` the job's own `best_mode` counts where it is about this metric.
    """
    job, step = parse_job_at_step(text, source="JOB")
    target = (directory or Path(job)) / WEIGHTS_FILE
    wanted = functools.partial(
        _await_holders, settings, job=job, step=step, best_metric=best_metric, mode=mode
    )
    answer, holders, files = _fetch_when_there(settings, job, wanted, target.parent)
    lines = loading_lines(answer["spec"], *files)
    if settings.as_json:
        shown = ("job", "generation", "step", "digest", "confirmation", "metrics")
        found = {key: holders[0][key] for key in shown}
        averages = str(files[1]) if files[1:] else ""
        output.print_json({**found, "path": str(target), "averages": averages, "load": lines})
    else:
        and_averages = f", and their averages in {files[1]}" if files[1:] else ""
        output.say(
            f"{target}: weights of {job} after step {holders[0]['step']}{and_averages}; load"
            f" {'the averages' if files[1:] else 'them'} with"
        )
        output.print_lines(lines)
    return 0


def _say_whether_confirmed(chosen: Checkpoint, known: Sequence[Checkpoint]) -> None:
    """On whose word the digest is, and what is newer and nobody has confirmed."""
    if not chosen["verified"]:
        output.say(
            f"step {chosen['step']} is not confirmed: its digest is {chosen['worker']}'s word alone"
        )
        return
    output.say(f"step {chosen['step']}: all ranks agreed on its digest, {chosen['digest']}")
    key = (chosen["generation"], chosen["step"])
    newer = [one for one in known if (one["generation"], one["step"]) > key]
    steps = [one["step"] for one in newer if one["confirmation"] == UNCONFIRMED]
    if steps:
        output.say(
            f"step {max(steps)} is newer and not confirmed: dtdctl fetch"
            f" {chosen['job']}@{max(steps)}"
        )


def _fetch_when_there(
    settings: Settings,
    job: str,
    wanted: Callable[[float], tuple[Answer, list[Checkpoint]]],
    directory: Path,
) -> tuple[Answer, list[Checkpoint], list[Path]]:
    """What the coordinator says, who holds the checkpoint, and its fetched files.

    A worker that is listed as there may be starting afresh already: its address is asked for again.

    Raises:
        HolderUnreachable: nobody who holds it has answered for `HOLDERS_BACK_S`.
        CheckpointError: those who answer do not give it.
    """
    deadline_s = time.monotonic() + HOLDERS_BACK_S
    said: set[str] = set()
    while True:
        answer, holders = wanted(deadline_s)
        if not said:
            _say_whether_confirmed(holders[0], answer["checkpoints"])
        connect = _connect_for(settings, job, answer["spec"])
        try:
            return answer, holders, _fetch_from_any(holders, directory, connect, said)
        except HolderUnreachable:
            if time.monotonic() >= deadline_s:
                raise
        time.sleep(RECONNECT_EVERY_S)


def _await_holders(
    settings: Settings, deadline_s: float, *, job: str, step: int, best_metric: str, mode: str
) -> tuple[Answer, list[Checkpoint]]:
    """All that the coordinator says, and who holds the checkpoint that is wanted.

    A worker's process starts afresh after a job, so whoever fetches right after its end may find
    nobody there: they are waited for a little.
    """
    told = False
    while True:
        answer = ask(settings, m.ListCheckpoints(job=job, tickets=True))
        table = answer["spec"].get("checkpoint", {})
        own = table.get("best_mode", "") if table.get("best_metric") == best_metric else ""
        known = answer["checkpoints"]
        holders = holders_of(known, job=job, step=step, best_metric=best_metric, mode=mode or own)
        if any(one["alive"] for one in holders) or time.monotonic() >= deadline_s:
            return answer, reachable(holders)
        if not told:
            names = ", ".join(one["worker"] for one in holders)
            output.say(f"waiting for {names}: a worker starts afresh after a job")
            told = True
        time.sleep(RECONNECT_EVERY_S)


def holders_of(
    known: Sequence[Checkpoint], *, job: str, step: int, best_metric: str, mode: str = ""
) -> list[Checkpoint]:
    """Those who hold the checkpoint that is wanted, whether they are there or not.

    One that all ranks agreed on goes before any that nobody has confirmed.

    Args:
        known: what the coordinator lists.
        job: for messages.
        step: this step's; 0 for any.
        best_metric: the best by this metric instead of the newest.
        mode: whether a greater ("max") or a smaller ("min") value is better; empty: as the job
            file's reference says of an empty `best_mode`.

    Raises:
        RequestRefused: there is none.
    """
    wanted = [one for one in known if one["confirmation"] != CONTRADICTED]
    wanted = [one for one in wanted if step in (0, one["step"])]
    if best_metric:
        wanted = [one for one in wanted if one["metrics"].get(best_metric) is not None]
    if not wanted:
        what = f"of step {step} " if step else ""
        what += f"with the metric {best_metric!r} " if best_metric else ""
        raise RequestRefused(
            f"no checkpoint {what}of job {job} is known that the ranks do not contradict",
            remedy=f"see what there is with: dtdctl checkpoints {job}",
        )
    confirmed = [one for one in wanted if one["verified"]]
    first = max(confirmed or wanted, key=lambda one: _rating(one, best_metric, mode))
    return [one for one in wanted if _identity(one) == _identity(first)]


def reachable(holders: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Those of a checkpoint's holders that are there.

    Raises:
        RequestRefused: nobody is.
    """
    there = [one for one in holders if one["alive"]]
    if not there:
        first, names = holders[0], ", ".join(one["worker"] for one in holders)
        raise RequestRefused(
            f"nobody who holds the checkpoint of step {first['step']} is connected: {names}",
            remedy=f"start one of them, or copy {first['directory']} from its disk",
        )
    return there


def _identity(one: Checkpoint) -> tuple[Any, ...]:
    return one["generation"], one["step"], one["digest"]


def _rating(one: Checkpoint, best_metric: str, mode: str) -> tuple[Any, ...]:
    age = (one["generation"], one["step"])
    if not best_metric:
        return age
    value = one["metrics"][best_metric]
    return (-value if lower_is_better(best_metric, mode) else value, *age)


def _connect_for(settings: Settings, job: str, spec: Mapping[str, Any]) -> Connect:
    """How a worker is called: what a job's workers encrypt is encrypted on its way here, too."""
    if spec.get("sync", {}).get("encryption") != "tls":
        return connect_tcp
    from dtd.net.tls_connect import tls_connect  # seldom needed, and slow to load

    context = settings.tls_context()
    if context is None:
        raise UsageError(
            f"{job} is encrypted, and this user has no credential",
            remedy="run dtdctl as root on the coordinator's host, or get one: dtdctl join TOKEN",
        )
    return tls_connect(context, WORKER)


def _fetch_from_any(
    holders: Sequence[Checkpoint], directory: Path, connect: Connect, said: set[str]
) -> list[Path]:
    """The weights, and their averages if the job takes any.

    Args:
        holders: at least one.
        directory: to put them in.
        connect: makes connections.
        said: failures that the user was told of; each is told once.

    Raises:
        HolderUnreachable: none of them has answered.
        CheckpointError: none gave it.
        UsageError: the directory cannot be made or written to.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{directory} cannot be made: {error.strerror}") from None
    failure: CheckpointError | None = None
    for one in holders:
        try:
            return _fetch_from(one, directory, connect)
        except CheckpointError as error:
            if error.message not in said:
                output.say(f"{one['worker']}: {error.message}")
            said.add(error.message)
            if failure is None or isinstance(failure, HolderUnreachable):
                failure = error
        except OSError as error:
            raise UsageError(f"{directory} cannot be written to: {error.strerror}") from None
    assert failure is not None
    raise failure


def _check_digest(one: Checkpoint, manifest: Mapping[str, Any]) -> None:
    """The worker has to offer the state that was reported, and confirmed where it is.

    Raises:
        CheckpointError: it offers another one.
    """
    offered = manifest.get("digest")
    if offered != one["digest"]:
        said = "all ranks agreed on" if one["verified"] else "was reported as"
        raise CheckpointError(
            f"its checkpoint of step {one['step']} has the digest {one_line(str(offered))}, and"
            f" {said} {one['digest']}",
            remedy=f"look at that worker: {one['directory']} there is not what the job has saved",
        )


def _fetch_from(one: Checkpoint, directory: Path, connect: Connect) -> list[Path]:
    address = Address(one["data_host"], one["data_port"])
    resource = f"checkpoint/{one.get('folder', one['job'])}/{one['name']}"
    ticket = DataCredential(
        secret=one["ticket_key"], scope=resource, expires_unix_s=one["ticket_expires_unix_s"]
    )
    with FetchClient(address, resource, ticket, connect=connect) as client:
        _check_digest(one, client.manifest)
        targets = [directory / WEIGHTS_FILE]
        if AVERAGES_FILE in client.manifest.get("files", {}):
            targets.append(directory / AVERAGES_FILE)
        for target in targets:
            if not target.exists():
                client.fetch(target.name, target)
            elif file_digest(target) != client.digest_of(target.name):
                raise UsageError(
                    f"{target} exists and holds other weights",
                    remedy="name another directory: dtdctl fetch JOB DIR",
                )
    return targets
