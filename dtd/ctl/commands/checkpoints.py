"""The commands about checkpoints: checkpoints and fetch.

`fetch` asks the coordinator which workers hold a checkpoint, then reads the weights from a worker's
data port, or parts of them from several (`dtd.checkpoint.fetch`); if a worker fails, it continues
with the next holder.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dtd.checkpoint.choice import by_checkpoint, confirmation_of, holders_of, missing, part_of
from dtd.checkpoint.fetch import Checkpoint, fetch_parts, fetch_whole
from dtd.checkpoint.tensor_file import MODEL_FILE
from dtd.cluster.generation.checkpoints import UNCONFIRMED, VERIFIED
from dtd.ctl import output
from dtd.ctl.answers import RECONNECT_EVERY_S, Answer, ask, ask_and_show, parse_job_at_step
from dtd.ctl.settings import Settings
from dtd.errors import CheckpointError, HolderUnreachable, RequestRefused, UsageError
from dtd.net.clients.blocking_link import Connect, connect_tcp
from dtd.security.identity import WORKER
from dtd.text import figures
from dtd.wire import messages as m

HOLDERS_BACK_S: Final = 20.0
"""Longer than a worker's process takes to start."""

_HEADINGS: Final = (
    *("JOB", "GENERATION", "STEP", "SIZE", "WORKER", "AVAILABLE", "VERIFIED", "METRICS"),
    *("BRANCH", "DIRECTORY"),
)


def loading_lines(spec: Mapping[str, Any], *weights: Path) -> list[str]:
    """Python that builds the task's model and gives it the weights; a later file counts."""
    return [
        "from dtd.train.task import load_task; from dtd.train.state.weights import load_weights",
        f"model = load_task({spec['job']['task']!r}, {spec['task']!r}).build_model()",
        f"load_weights(model, {', '.join(repr(str(file)) for file in weights)})",
    ]


def list_checkpoints(settings: Settings, job: str) -> None:
    """Print the known checkpoints of a job, or of all jobs."""
    ask_and_show(
        settings,
        m.ListCheckpoints(job=job),
        lambda answer: _print_checkpoints(answer, wide=settings.is_wide),
    )


def _print_checkpoints(answer: Answer, *, wide: bool) -> None:
    rows: list[tuple[str, ...]] = []
    for group in by_checkpoint(answer["checkpoints"]):
        parts = [one for one in group if one.get("part")]
        rows += [_row([one]) for one in group if not one.get("part")]
        rows += [_row(parts)] if parts else []
    only_wide = ("GENERATION", "DIRECTORY")
    output.print_table(_HEADINGS, rows, wide=wide, only_wide=only_wide, none="no checkpoints yet")
    _say_how_to_go_back([one for one in answer["checkpoints"] if one.get("left_behind")])


def _row(group: Sequence[Checkpoint]) -> tuple[str, ...]:
    """One line for a worker's checkpoint, or for all parts of one."""
    one, confirmation = group[0], confirmation_of(group)
    return (
        one["job"],
        str(one["generation"]),
        str(one["step"]),
        figures.size(sum(part["size_bytes"] for part in group)),
        ",".join(part["worker"] for part in group),
        _whether_there(group),
        "yes" if confirmation == VERIFIED else confirmation,
        figures.metrics(one["metrics"]),
        "left" if one.get("left_behind") else "-",
        one["directory"],
    )


def _whether_there(group: Sequence[Checkpoint]) -> str:
    """Whether it can be fetched; "incomplete": some part was never saved, or is deleted."""
    if not missing([part_of(one) for one in group if one["alive"]]):
        return "yes"
    return "incomplete" if missing([part_of(one) for one in group]) else "no"


def _say_how_to_go_back(left: Sequence[Checkpoint]) -> None:
    """Warn about checkpoints on a branch that a job left when it fell back to an older state."""
    newest: dict[str, int] = {}
    for one in left:
        newest[one["job"]] = max(newest.get(one["job"], 0), one["step"])
    for job, step in newest.items():
        output.say(
            f"job {job} continued from a state older than these checkpoints, which are kept. To "
            f"continue from them: dtdctl cancel {job}, then"
            f" dtdctl submit JOB.toml --resume-from {job}@{step}"
        )


def fetch(
    settings: Settings, text: str, directory: Path | None, *, best_metric: str, mode: str = ""
) -> None:
    """Fetch the weights of a job's newest, named or best checkpoint, and show how to load them.

    Without `mode` the job's own `best_mode` counts where it is about this metric.
    """
    job, step = parse_job_at_step(text, source="JOB")
    target = (directory or Path(job)) / MODEL_FILE
    answer, holders, files = _fetch_when_there(
        settings, target.parent, job=job, step=step, best_metric=best_metric, mode=mode
    )
    lines = loading_lines(answer["spec"], *files)
    if settings.as_json:
        shown = ("job", "generation", "step", "digest", "confirmation", "metrics")
        found = {key: holders[0][key] for key in shown}
        found["confirmation"] = confirmation_of(holders)
        averages = str(files[1]) if files[1:] else ""
        output.print_json({**found, "path": str(target), "averages": averages, "load": lines})
    else:
        and_averages = f", and their averages in {files[1]}" if files[1:] else ""
        output.say(
            f"{target}: weights of {job} after step {holders[0]['step']}{and_averages}; load"
            f" {'the averages' if files[1:] else 'them'} with"
        )
        output.print_lines(lines)


def _say_whether_confirmed(holders: Sequence[Checkpoint], known: Sequence[Checkpoint]) -> None:
    """Say whether the digest is confirmed, and whether a newer, unconfirmed checkpoint exists."""
    chosen, without = holders[0], [one["worker"] for one in holders if not one["digest"]]
    if confirmation_of(holders) != VERIFIED:
        why = f"only {chosen['worker']} has reported its digest"
        if without:
            why = f"saved without a digest on {', '.join(without)}"
        output.say(f"step {chosen['step']} is not confirmed: {why}")
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
    settings: Settings, directory: Path, *, job: str, step: int, best_metric: str, mode: str
) -> tuple[Answer, list[Checkpoint], list[Path]]:
    """The coordinator's answer, the holders of the checkpoint, and its fetched files.

    A worker's process restarts after a job, so right after its end no holder may be connected, or
    one is listed at an address that it has left: both are waited for, for a short time.
    """
    deadline_s = time.monotonic() + HOLDERS_BACK_S
    said: set[str] = set()
    told = False
    while True:
        is_last = time.monotonic() >= deadline_s
        answer = ask(settings, m.ListCheckpoints(job=job, tickets=True))
        table, known = answer["spec"].get("checkpoint", {}), answer["checkpoints"]
        own = table.get("best_mode", "") if table.get("best_metric") == best_metric else ""
        holders = holders_of(known, job=job, step=step, best_metric=best_metric, mode=mode or own)
        if is_last or not missing([part_of(one) for one in holders if one["alive"]]):
            there = reachable(holders)
            if not said:
                _say_whether_confirmed(there, known)
            connect = connect_for(settings, job, answer["spec"])
            try:
                return answer, there, _fetch_from_any(there, directory, connect, said)
            except HolderUnreachable:
                if is_last:
                    raise
        elif not told:
            told = True
            names = ", ".join(one["worker"] for one in holders if not one["alive"])
            output.say(f"waiting for {names}: a worker restarts after a job")
        time.sleep(RECONNECT_EVERY_S)


def reachable(holders: Sequence[Checkpoint]) -> list[Checkpoint]:
    """The connected holders of a checkpoint: of the whole, or of parts that make it."""
    there = [one for one in holders if one["alive"]]
    lacks = missing([part_of(one) for one in there])
    if there and lacks:
        others = [one for one in holders if not one["alive"] and part_of(one) & lacks]
        away = ", ".join(f"{one['worker']} ({part_of(one) & lacks})" for one in others)
        raise RequestRefused(
            f"the checkpoint of step {there[0]['step']} is sharded, and no connected worker has the"
            f" shards {lacks}; workers that had them: {away or 'none'}",
            remedy="start these workers, or fetch an earlier checkpoint: dtdctl fetch JOB@STEP",
        )
    if not there:
        first, names = holders[0], ", ".join(one["worker"] for one in holders)
        raise RequestRefused(
            f"no worker that holds the checkpoint of step {first['step']} is connected: {names}",
            remedy=f"start one of them, or copy {first['directory']} from its disk",
        )
    return there


def connect_for(settings: Settings, job: str, spec: Mapping[str, Any]) -> Connect:
    """Return the function that connects to a worker: encrypted if the job's traffic is."""
    if spec.get("sync", {}).get("encryption") != "tls":
        return connect_tcp
    from dtd.net.clients.tls import tls_connect  # seldom needed, and slow to load

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
    """The weights, and their averages if any; `HolderUnreachable` if no holder has answered."""
    whole = [one for one in holders if part_of(one).is_whole]
    failure: CheckpointError | None = None
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not whole:
            return fetch_parts(holders, directory, connect, said, output.say)
        for one in whole:
            try:
                return fetch_whole(one, directory, connect)
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
