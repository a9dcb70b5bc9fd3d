"""The commands of dtdctl: one table with names, functions, arguments and help.

A module of commands is imported only when one of its commands runs.  `--coordinator`,
`--credential` and `-o` may stand anywhere on the line: `dtd.ctl.settings` takes them out before.
"""

from __future__ import annotations

import argparse
import importlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from dtd import __version__
from dtd.ctl import output
from dtd.ctl.command_line import (
    HELP_FLAGS,
    PROGRAM,
    Command,
    argument,
    command_help,
    flags_of,
    list_help,
    names,
    number,
    read_arguments,
    switch,
)
from dtd.ctl.settings import Settings
from dtd.errors import UsageError

_JOB = argument("job", metavar="JOB", help="A job's id, as `jobs` lists it.")
_ENDED_JOB = argument("text", metavar="JOB[@STEP]", help="An ended job, or a checkpoint of it.")
_JOB_FILE = argument("path", metavar="JOB.toml", type=Path, help="The job file.")
_WORKER = argument("name", metavar="NAME", help="A worker's name.")
_OVERRIDES = argument(
    "--set",
    dest="overrides",
    metavar="A.B=V",
    action="append",
    default=[],
    help="Override a key of the job file; repeatable.",
)
_YES = switch("--yes", "-y", dest="confirmed", help="Do not ask for confirmation.")
_TAGS = argument("tags", metavar="TAG", nargs="+", help="Words to find jobs again by.")
_VERSION = argument(
    "text", metavar="NAME[@VERSION|@ALIAS]", help="A model; without @ its newest version."
)
_VERSIONS = argument("text", metavar="NAME[@VERSION|@ALIAS]", help="A version, or the whole model.")
_SWEEP = argument("sweep", metavar="SWEEP", help="A sweep's id, as `sweep list` shows it.")
_BEST = argument(
    "--best",
    dest="best_metric",
    metavar="METRIC",
    default="",
    help="The best checkpoint by this metric, not the newest.",
)
_MODE = argument(
    "--mode",
    choices=("max", "min"),
    default="",
    help="Which is better; default: the job's setting.",
)


def _length(flag: str) -> Any:
    return argument(
        flag,
        metavar="N",
        type=number(int, least=1),
        default=0,
        help="Total number, counted from the start.",
    )


_SERVICES = (
    switch("--coordinator", help="The coordinator; default: both."),
    switch("--worker", help="The workers; default: both."),
    switch("--user", help="Install as services of this user, without root."),
    argument("--prefix", metavar="DIR", type=Path, help="Install into another root directory."),
    switch("--dry-run", help="Only print what would be done."),
)

GROUPS: Final = {
    "token": "Tokens with which hosts and people join.",
    "authority": "The cluster's certificate authority.",
    "tag": "Tags of jobs: `jobs --tag TAG` lists those that have it.",
    "models": "Registered models: versions of weights that outlive their jobs.",
    "sweep": "Try a job with many settings: `sweep SWEEP.toml` begins.",
}
"""Groups of commands, which have two words."""

COMMANDS: Final = (
    # Jobs.
    Command(
        name="validate",
        function="submit:validate",
        help="Check a job file: all errors at once, with line and nearest known key.",
        arguments=(_JOB_FILE, _OVERRIDES),
    ),
    Command(
        name="submit",
        function="submit:submit",
        help="Queue a job and print its id; the task's own package is shipped to the workers.",
        arguments=(
            argument("path", metavar="JOB.toml", nargs="?", type=Path, help="The job file."),
            _OVERRIDES,
            argument(
                "--like",
                metavar="JOB",
                default="",
                help="Repeat this job instead: its settings, code and origin.",
            ),
            argument(
                "--resume-from",
                metavar="JOB[@STEP]",
                default="",
                help="Continue from another job's checkpoint: model, optimizer, data position.",
            ),
            argument(
                "--weights-from",
                metavar="JOB[@STEP]|FILE.safetensors",
                default="",
                help="Start at step 0 with the weights of another job or of a file.",
            ),
            argument(
                "--strict",
                action=argparse.BooleanOptionalAction,
                default=True,
                help="Whether all of those weights must fit.",
            ),
            argument(
                "--from",
                dest="either_from",
                metavar="JOB[@STEP]",
                default="",
                help="Deprecated: --weights-from if JOB is done, otherwise --resume-from.",
            ),
            switch("--wait", dest="wait_for_end", help="Wait until the job has ended."),
            switch("--no-ship", help="Use the task's code installed on the workers."),
        ),
    ),
    Command(
        name="wait",
        function="jobs:wait",
        help="Wait until a job has ended; exit 4 if it failed or was cancelled.",
        arguments=(
            _JOB,
            argument(
                "--timeout",
                dest="timeout_s",
                metavar="S",
                type=number(float, least=0.0),
                default=math.inf,
                help="Give up after S seconds.",
            ),
        ),
    ),
    Command(
        name="cancel",
        function="jobs:cancel",
        help="Stop a job at its next step boundary, keeping a checkpoint.",
        arguments=(_JOB,),
    ),
    Command(
        name="resume",
        function="submit:resume",
        help="Continue a job that failed, was cancelled or is waiting.\n\n"
        "An ended job continues as a new one, from its newest checkpoint. A waiting one continues"
        " without waiting for absent workers that may hold newer state, which may lose steps.",
        arguments=(_JOB, _OVERRIDES),
    ),
    Command(
        name="extend",
        function="submit:extend",
        help="Extend an ended job, as a new job; the schedule follows its new length.",
        arguments=(_JOB, _length("--epochs"), _length("--steps"), _OVERRIDES),
    ),
    Command(
        name="jobs",
        function="jobs:list_jobs",
        help="List all jobs with their results, newest first.",
        arguments=(argument("--tag", metavar="TAG", default="", help="Only jobs that have it."),),
    ),
    Command(
        name="delete",
        function="jobs:delete",
        help="Delete an ended job with its checkpoints on all workers, or its checkpoints of one"
        " step.",
        arguments=(_ENDED_JOB, _YES),
    ),
    Command(
        name="logs",
        function="jobs:logs",
        help="Print what a job's own code printed, per rank.",
        arguments=(_JOB,),
    ),
    # Records of jobs.
    Command(
        name="show",
        function="runs:show_job",
        help="Show a job: settings, code, data, results, times, incidents, checkpoints.",
        arguments=(_JOB,),
    ),
    Command(
        name="compare",
        function="runs:compare_jobs",
        help="Compare jobs: settings, code, data, environment, final and best figures, curves.",
        arguments=(
            argument("jobs", metavar="JOB", nargs="+", help="Two jobs or more, by their ids."),
            argument(
                "--names",
                metavar="A,B",
                type=names,
                default=(),
                help="These figures; default: the loss and evaluations.",
            ),
            argument(
                "--points",
                metavar="N",
                type=number(int, least=2, most=200),
                default=60,
                help="Points of a curve; default: 60.",
            ),
        ),
    ),
    Command(
        name="tag add", function="runs:add_tags", help="Add tags to a job.", arguments=(_JOB, _TAGS)
    ),
    Command(
        name="tag remove",
        function="runs:remove_tags",
        help="Remove tags from a job.",
        arguments=(_JOB, _TAGS),
    ),
    Command(
        name="note",
        function="runs:write_note",
        help="Write a note about a job; it replaces the one before.",
        arguments=(
            _JOB,
            argument("text", metavar="TEXT", help='The note; "" removes the one that is there.'),
        ),
    ),
    Command(
        name="metrics",
        function="metrics:show_metrics",
        help="Show figures of a job over its steps; -o csv and -o parquet print them for other"
        " programs.",
        arguments=(
            _JOB,
            argument(
                "--names",
                metavar="A,B",
                type=names,
                default=(),
                help="Only these figures; default: all.",
            ),
            switch("--workers", help="Also those of each worker and link."),
            argument(
                "--from-step",
                metavar="N",
                type=number(int, least=0),
                default=0,
                help="The first step.",
            ),
            argument(
                "--to-step",
                metavar="N",
                type=number(int, least=0),
                default=0,
                help="The last step; 0: the newest.",
            ),
            argument(
                "--points",
                metavar="N",
                type=number(int, least=1, most=20_000),
                default=1000,
                help="At most so many of each figure; default: 1000.",
            ),
        ),
    ),
    Command(
        name="report",
        function="report:write_report",
        help="Write a job's report: curves, rates, scaling, where time went, incidents, in words"
        " too.",
        arguments=(
            _JOB,
            argument("--against", metavar="JOB", default="", help="Compare it with another job."),
            argument(
                "--format",
                dest="form",
                choices=("html", "md"),
                default="html",
                help="A page to look at, or Markdown.",
            ),
            argument(
                "-o",
                "--output",
                dest="file",
                metavar="FILE",
                type=Path,
                help="Default: JOB.html or JOB.md; -: stdout.",
            ),
        ),
    ),
    Command(
        name="profile",
        function="profile:profile_job",
        help="Record steps on all workers as one trace for Perfetto, and say what limits them.",
        arguments=(
            argument("job", metavar="JOB", help="A job that trains."),
            argument(
                "target",
                metavar="FILE",
                nargs="?",
                type=Path,
                help="The trace; default: ./JOB.trace.json.gz.",
            ),
            argument("--steps", metavar="N", type=int, default=5, help="Steps to record."),
            argument(
                "--limit",
                dest="limit_s",
                metavar="SECONDS",
                type=float,
                default=60.0,
                help="Record no longer than this.",
            ),
        ),
    ),
    Command(
        name="checkpoints",
        function="checkpoints:list_checkpoints",
        help="List the checkpoints of all jobs, or of one: step, size, worker and directory.\n\n"
        "THERE: whether connected workers have all of it; `incomplete` if no disk has some part."
        " VERIFIED: `yes` if more than half of the ranks reported its digest, otherwise"
        " `unconfirmed`; one whose digest differs is `contradicted`. BRANCH: `left` if the job has"
        " since continued from an older state. Continue from a checkpoint with `dtdctl submit"
        " JOB.toml --resume-from JOB@STEP`; fetch its weights with `dtdctl fetch JOB@STEP`.",
        arguments=(
            argument("job", metavar="JOB", nargs="?", default="", help="Only those of this job."),
        ),
    ),
    Command(
        name="fetch",
        function="checkpoints:fetch",
        help="Fetch a job's weights as safetensors, and show how to load them.",
        arguments=(
            argument("text", metavar="JOB[@STEP]", help="A job, or one of its checkpoints."),
            argument(
                "directory",
                metavar="DIR",
                nargs="?",
                type=Path,
                help="Destination directory; default: ./JOB.",
            ),
            _BEST,
            _MODE,
        ),
    ),
    # The cluster.
    Command(
        name="status",
        function="status:show_status",
        help="Show the job, its loss and rate, the workers, the slowest one, and why the job"
        " waits.",
        arguments=(
            switch("--watch", help="Keep the display up to date."),
            switch("--memory", help="Also each worker's memory by part."),
        ),
    ),
    Command(
        name="events",
        function="events:show_events",
        help="List incidents: cause, worker, time to detection and recovery, steps redone and"
        " lost.",
        arguments=(switch("--follow", help="Print each event when it happens."),),
    ),
    Command(
        name="doctor",
        function="doctor:doctor",
        help="Examine coordinator, workers and links; with a job, forecast step time and memory.",
        arguments=(
            argument(
                "job_file",
                metavar="JOB.toml",
                nargs="?",
                type=Path,
                help="Also forecast this job's step.",
            ),
            switch("--force", help="Measure bandwidths even while a job runs."),
        ),
    ),
    Command(
        name="kill-worker",
        function="jobs:kill_worker",
        help="Send a signal to a worker's process, to test recovery.",
        arguments=(
            _WORKER,
            argument(
                "--signal",
                type=str.upper,
                choices=("KILL", "TERM", "STOP"),
                default="KILL",
                help="The signal to send; default: KILL.",
            ),
        ),
    ),
    Command(
        name="drain",
        function="jobs:drain",
        help="Let a worker leave at the next step boundary, losing nothing.",
        arguments=(_WORKER,),
    ),
    Command(
        name="web",
        function="web:open_web",
        help="Print the address of the coordinator's web page, with a code to log in once.",
    ),
    Command(
        name="install",
        function="install:install",
        help="Install the daemons as systemd services; repeatable, and keeps files that you"
        " changed.",
        arguments=_SERVICES,
    ),
    Command(
        name="uninstall",
        function="install:uninstall",
        help="Stop the services and remove what `install` wrote.",
        arguments=(
            *_SERVICES,
            switch("--purge", help="Also remove settings, credentials, jobs and checkpoints."),
        ),
    ),
    # Access.
    Command(
        name="join",
        function="access:join",
        help="Get a credential, so that dtdctl can be used on this host.",
        arguments=(
            argument("text", metavar="TOKEN", help="Token printed by `token create`."),
            argument(
                "--name",
                metavar="NAME",
                default="",
                help="Name of the credential; default: user and host.",
            ),
        ),
    ),
    Command(
        name="token create",
        function="access:create_token",
        help="Create a token with which a host or a user can join; it is shown only once.",
        arguments=(
            argument(
                "--role",
                metavar="worker|operator|viewer",
                default="worker",
                help="Role of hosts or users that join with it; default: worker.",
            ),
            argument(
                "--ttl",
                dest="life",
                metavar="24h|never",
                default="24h",
                help="Time until the token expires; default: 24h.",
            ),
            argument(
                "--uses",
                metavar="N",
                type=number(int, least=1, most=256),
                default=1,
                help="Number of times it can be used; default: 1.",
            ),
            argument(
                "--name",
                dest="names",
                metavar="NAME",
                action="append",
                default=[],
                help="Name that can join with it, once; repeatable.",
            ),
            switch(
                "--replace",
                dest="replaces",
                help="Replace the credential of that name; needs --name.",
            ),
        ),
    ),
    Command(
        name="token list",
        function="access:list_tokens",
        help="List all tokens, without their secrets.",
    ),
    Command(
        name="token revoke",
        function="access:revoke_token",
        help="Revoke a token, so that it can no longer be used to join; existing members remain.",
        arguments=(argument("token", metavar="ID", help="As `token list` shows it."),),
    ),
    Command(
        name="credentials",
        function="access:list_credentials",
        help="List the credentials that were issued.",
    ),
    Command(
        name="revoke",
        function="access:revoke",
        help="Revoke a credential: its connections end at once, its workers are evicted.",
        arguments=(argument("name", metavar="NAME|SERIAL", help="As `credentials` shows it."),),
    ),
    Command(
        name="audit",
        function="access:show_audit",
        help="List the audit log: time, caller, host, request and result of every change.",
        arguments=(
            argument(
                "--since",
                metavar="AGO|TIME",
                default="",
                help='Such as "90m", "2d", "2026-11-22".',
            ),
            argument(
                "--who",
                metavar="NAME|SERIAL",
                default="",
                help="Only requests by this caller.",
            ),
            argument("--what", metavar="WORD", default="", help='Only requests such as "cancel".'),
        ),
    ),
    Command(
        name="authority show",
        function="access:show_authority",
        help="Show the authority's fingerprint and until when it is valid.",
    ),
    # Models.
    Command(
        name="models register",
        function="models:register",
        help="Register a job's checkpoint as the next version of a model.",
        arguments=(
            argument(
                "text",
                metavar="JOB[@STEP]",
                help="Its checkpoint of that step; without: the newest.",
            ),
            argument("name", metavar="NAME", help="The model; new or known."),
            _BEST,
            _MODE,
            argument(
                "--copies",
                metavar="N",
                type=number(int, least=1, most=16),
                default=2,
                help="Number of workers that keep it; default: 2.",
            ),
            argument("--card", metavar="FILE.md", type=Path, help="Text for its model card."),
            argument("--export", metavar="DIR", type=Path, help="Also write it to DIR/NAME/vN."),
            argument(
                "--timeout",
                dest="timeout_s",
                metavar="S",
                type=number(float, least=0.0),
                default=120.0,
                help="Seconds to wait for a copy; default: 120.",
            ),
        ),
    ),
    Command(
        name="models list", function="models:list_models", help="List all versions of all models."
    ),
    Command(
        name="models show",
        function="models:show_model",
        help="Show a version: files, metrics, job, data, code, copies; or its model card.",
        arguments=(_VERSION, switch("--card", help="Print its model card, as Markdown.")),
    ),
    Command(
        name="models alias",
        function="models:set_alias",
        help="Have an alias stand for a version of a model.",
        arguments=(
            argument("text", metavar="NAME@ALIAS", help="For example digits@production."),
            argument(
                "version",
                metavar="VERSION",
                type=number(int, least=0),
                help="A number; 0 removes the alias.",
            ),
        ),
    ),
    Command(
        name="models card",
        function="models:write_card",
        help="Replace the text of a version's model card; its record stays.",
        arguments=(
            _VERSION,
            argument("file", metavar="FILE.md", type=Path, help="The text; - reads it from stdin."),
        ),
    ),
    Command(
        name="models fetch",
        function="models:fetch",
        help="Fetch a version, check its digest, and show how to load it.",
        arguments=(
            _VERSION,
            argument(
                "directory",
                metavar="DIR",
                nargs="?",
                type=Path,
                help="Destination; default: ./NAME-vN.",
            ),
        ),
    ),
    Command(
        name="models copy",
        function="models:copy",
        help="Have other workers make the copies that disconnected workers keep, or that failed.",
        arguments=(_VERSIONS,),
    ),
    Command(
        name="models delete",
        function="models:delete",
        help="Delete a version, or a model with all of its versions, and the copies on workers.",
        arguments=(_VERSIONS, _YES),
    ),
    # Sweeps.
    Command(
        name="sweep begin",
        function="sweeps:begin_sweep",
        help="Check a sweep and begin it; the coordinator carries it out, also across its"
        " restarts.",
        arguments=(
            argument("path", metavar="SWEEP.toml", type=Path, help="The sweep."),
            argument(
                "--ship",
                dest="ship_package",
                action=argparse.BooleanOptionalAction,
                default=True,
                help="Send the task's own package along.",
            ),
        ),
    ),
    Command(
        name="sweep status",
        function="sweeps:show_sweep",
        help="Show a sweep: its trials, the best one, and which settings matter.",
        arguments=(_SWEEP,),
    ),
    Command(
        name="sweep list", function="sweeps:list_sweeps", help="List the sweeps, the newest first."
    ),
    Command(
        name="sweep cancel",
        function="sweeps:cancel_sweep",
        help="Cancel a sweep and the jobs of its trials.",
        arguments=(_SWEEP,),
    ),
)
_BY_NAME: Final = {command.name: command for command in COMMANDS}

_OPTIONS: Final = (
    (
        "--coordinator ADDRESS[,...]",
        "HOST:PORT or unix:/PATH; default: DTD_COORDINATOR, then a coordinator of this host",
    ),
    (
        "--credential FILE",
        "default: DTD_CREDENTIAL, then ~/.config/dtd/ctl.credential",
    ),
    ("-o, --output table|json", "form of the output; default: table"),
    ("--version", "show the version"),
    ("--show-completion", 'show the completion for bash: eval "$(dtdctl --show-completion)"'),
    ("-h, --help", "show this help, or that of the command before it"),
)
_EXIT_CODES: Final = (
    "Exit codes: 0 healthy or done, 1 the command failed, 2 usage or invalid job,\n"
    "3 no coordinator, 4 degraded (status) or job failed (wait)."
)
_COMPLETION: Final = """\
_dtdctl() {
    COMPREPLY=($(COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD \
_DTDCTL_COMPLETE=complete_bash "$1"))
}
complete -o default -F _dtdctl dtdctl"""


def run_command(settings: Settings, words: Sequence[str]) -> int:
    """Run one command line, without the options that every command has; return its exit code.

    Raises:
        UsageError: there is no such command, or its arguments are wrong.
        DtdError: the command failed.
    """
    words = list(words)
    if words[:1] == ["sweep"] and words[1:2] and words[1].endswith(".toml"):
        words.insert(1, "begin")
    before = words[: words.index("--")] if "--" in words else words
    for length in (2, 1):
        command = _BY_NAME.get(" ".join(words[:length]))
        if command is None or len(words) < length:
            continue
        if HELP_FLAGS & set(before):
            output.print_document(command_help(command))
            return 0
        module, _, function = command.function.partition(":")
        values = read_arguments(command, words[length:])
        exit_code: int = getattr(importlib.import_module(f"dtd.ctl.{module}"), function)(
            settings, **values
        )
        return exit_code
    return _run_no_command(words)


def _run_no_command(words: Sequence[str]) -> int:
    """Handle a line that names no command: a group, an option of dtdctl itself, or an error."""
    if words[:1] == ["--version"]:
        output.print_lines([f"dtd {__version__}"])
        return 0
    if words[:1] == ["--show-completion"]:
        output.print_document(f"{_COMPLETION}\n")
        return 0
    group = words[0] if words and words[0] in GROUPS else ""
    rest = words[1:] if group else words
    if not rest or rest[0] in HELP_FLAGS:
        output.print_document(_help(group))
        return 0 if rest else UsageError.exit_code
    from dtd.rules import did_you_mean  # seldom needed, and slow to load

    known = [name.removeprefix(f"{group} ") for name in _names(group)]
    program = f"{PROGRAM} {group}".rstrip()
    raise UsageError(
        f"{program} has no command {rest[0]!r}{did_you_mean(rest[0], known)}",
        remedy=f"{program} --help",
    )


def _names(group: str) -> Iterator[str]:
    """Names of a group's commands; without one those of single commands, and of all groups."""
    for command in COMMANDS:
        first, _, second = command.name.partition(" ")
        if first == group if second else not group:
            yield command.name
    yield from () if group else GROUPS


def _help(group: str) -> str:
    if group:
        head = [f"usage: {PROGRAM} {group} COMMAND [-h] ...", "", GROUPS[group], "", "commands:"]
    else:
        head = [f"usage: {PROGRAM} COMMAND [-h] ...", "", "Query and control a dtd coordinator."]
        head += ["", "commands:"]
    known = {**GROUPS, **{one.name: one.help.partition("\n")[0] for one in COMMANDS}}
    lines = [*head, *list_help((name, known[name]) for name in _names(group))]
    lines += ["", "options, which may stand anywhere on the line:", *list_help(_OPTIONS)]
    return "\n".join([*lines, *(() if group else ("", _EXIT_CODES))]) + "\n"


def completions(words: Sequence[str], position: int) -> list[str]:
    """Return the words that may stand at a position, given those of the line so far.

    Args:
        words: the line's words, the program's own first.
        position: index of the word to complete.
    """
    typed = words[position] if position < len(words) else ""
    before = list(words[1:position])
    command = next(
        (_BY_NAME[name] for length in (2, 1) if (name := " ".join(before[:length])) in _BY_NAME),
        None,
    )
    if command is not None:
        known = flags_of(command)
    elif before and before[0] in GROUPS:
        known = [name.partition(" ")[2] for name in _names(before[0])]
    else:
        known = list(_names(""))
    return sorted(word for word in known if word.startswith(typed))
