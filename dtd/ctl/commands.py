"""The commands of dtdctl: one table with names, functions, arguments and help.

A module of commands is imported only when one of its commands runs.  `--coordinator`,
`--credential` and `-o` may stand anywhere on the line: `dtd.ctl.settings` takes them out before.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Final

from dtd.ctl.command_line import Argument, argument, command, names, number, option, switch

_JOB = argument("job", "JOB", "A job's id, as `jobs` lists it.")
_ENDED_JOB = argument("text", "JOB[@STEP]", "An ended job, or a checkpoint of it.")
_JOB_FILE = argument("path", "JOB.toml", "The job file.", type=Path)
_WORKER = argument("name", "NAME", "A worker's name.")
_OVERRIDES = option(
    "--set",
    "A.B=V",
    "Override a key of the job file; repeatable.",
    dest="overrides",
    action="append",
    default=[],
)
_YES = switch(("--yes", "-y"), "Do not ask for confirmation.", dest="confirmed")
_TAGS = argument("tags", "TAG", "Words to find jobs again by.", nargs="+")
_VERSION = argument("text", "NAME[@VERSION|@ALIAS]", "A model; without @ its newest version.")
_VERSIONS = argument("text", "NAME[@VERSION|@ALIAS]", "A version, or the whole model.")
_SWEEP = argument("sweep", "SWEEP", "A sweep's id, as `sweep list` shows it.")
_BEST = option(
    "--best",
    "METRIC",
    "The best checkpoint by this metric, not the newest.",
    dest="best_metric",
    default="",
)
_MODE = option(
    "--mode",
    None,
    "Which is better; default: the job's setting.",
    choices=("max", "min"),
    default="",
)


def _length(flag: str) -> Argument:
    return option(
        flag, "N", "Total number, counted from the start.", type=number(int, least=1), default=0
    )


_SERVICES = (
    switch("--coordinator", "The coordinator; default: both."),
    switch("--worker", "The workers; default: both."),
    switch("--user", "Install as services of this user, without root."),
    option("--prefix", "DIR", "Install into another root directory.", type=Path),
    switch("--dry-run", "Only print what would be done."),
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
    command(
        "validate",
        "submit:validate",
        "Check a job file: all errors at once, with line and nearest known key.",
        _JOB_FILE,
        _OVERRIDES,
    ),
    command(
        "submit",
        "submit:submit",
        "Queue a job and print its id; the task's own package is shipped to the workers.",
        argument("path", "JOB.toml", "The job file.", nargs="?", type=Path),
        _OVERRIDES,
        option(
            "--like", "JOB", "Repeat this job instead: its settings, code and origin.", default=""
        ),
        option(
            "--resume-from",
            "JOB[@STEP]",
            "Continue from another job's checkpoint: model, optimizer, data position.",
            default="",
        ),
        option(
            "--weights-from",
            "JOB[@STEP]|FILE.safetensors",
            "Start at step 0 with the weights of another job or of a file.",
            default="",
        ),
        option(
            "--strict",
            None,
            "Whether all of those weights must fit.",
            action=argparse.BooleanOptionalAction,
            default=True,
        ),
        switch("--wait", "Wait until the job has ended.", dest="wait_for_end"),
        switch("--no-ship", "Use the task's code installed on the workers."),
    ),
    command(
        "run",
        "submit:run_script",
        "Ship a script with what it imports from its folder, and run it on the workers as a job."
        "\n\nOne that calls dtd.join trains with them; any other one is started as torchrun does."
        "\n\nExample: dtdctl run --workers 4 -- python train.py --lr 0.1",
        argument("words", "[python] SCRIPT.py", "The script, and its arguments.", nargs="+"),
        option(
            "--workers", "N", "At most so many.", type=number(int, least=1, most=1024), default=64
        ),
        option("--name", "NAME", "Of the job; default: the script's.", default=""),
        _OVERRIDES,
        switch("--wait", "Wait until the job has ended.", dest="wait_for_end"),
    ),
    command(
        "wait",
        "jobs:wait",
        "Wait until a job has ended; exit 4 if it failed or was cancelled.",
        _JOB,
        option(
            "--timeout",
            "S",
            "Give up after S seconds.",
            dest="timeout_s",
            type=number(float, least=0.0),
            default=math.inf,
        ),
    ),
    command(
        "cancel", "jobs:cancel", "Stop a job at its next step boundary, keeping a checkpoint.", _JOB
    ),
    command(
        "resume",
        "submit:resume",
        "Continue a job that failed, was cancelled or is waiting.\n\n"
        "An ended job continues as a new one, from its newest checkpoint. A waiting one continues"
        " without waiting for absent workers that may hold newer state, which may lose steps.",
        _JOB,
        _OVERRIDES,
    ),
    command(
        "extend",
        "submit:extend",
        "Extend an ended job, as a new job; the schedule follows its new length.",
        _JOB,
        _length("--epochs"),
        _length("--steps"),
        _OVERRIDES,
    ),
    command(
        "jobs",
        "jobs:list_jobs",
        "List all jobs with their results, newest first.",
        option("--tag", "TAG", "Only jobs that have it.", default=""),
    ),
    command(
        "delete",
        "jobs:delete",
        "Delete an ended job with its checkpoints on all workers, or its checkpoints of one step.",
        _ENDED_JOB,
        _YES,
    ),
    command("logs", "jobs:logs", "Print what a job's own code printed, per rank.", _JOB),
    # Records of jobs.
    command(
        "show",
        "runs:show_job",
        "Show a job: settings, code, data, results, times, incidents, checkpoints.",
        _JOB,
    ),
    command(
        "compare",
        "runs:compare_jobs",
        "Compare jobs: settings, code, data, environment, final and best figures, curves.",
        argument("jobs", "JOB", "Two jobs or more, by their ids.", nargs="+"),
        option(
            "--names",
            "A,B",
            "These figures; default: the loss and evaluations.",
            type=names,
            default=(),
        ),
        option(
            "--points",
            "N",
            "Points of a curve; default: 60.",
            type=number(int, least=2, most=200),
            default=60,
        ),
    ),
    command("tag add", "runs:add_tags", "Add tags to a job.", _JOB, _TAGS),
    command("tag remove", "runs:remove_tags", "Remove tags from a job.", _JOB, _TAGS),
    command(
        "note",
        "runs:write_note",
        "Write a note about a job; it replaces the one before.",
        _JOB,
        argument("text", "TEXT", 'The note; "" removes the one that is there.'),
    ),
    command(
        "metrics",
        "metrics:show_metrics",
        "Show figures of a job over its steps; -o csv and -o parquet print them for other"
        " programs.",
        _JOB,
        option("--names", "A,B", "Only these figures; default: all.", type=names, default=()),
        switch("--workers", "Also those of each worker and link."),
        option("--from-step", "N", "The first step.", type=number(int, least=0), default=0),
        option(
            "--to-step", "N", "The last step; 0: the newest.", type=number(int, least=0), default=0
        ),
        option(
            "--points",
            "N",
            "At most so many of each figure; default: 1000.",
            type=number(int, least=1, most=20_000),
            default=1000,
        ),
    ),
    command(
        "report",
        "metrics:write_report",
        "Write a job's report: curves, rates, scaling, where time went, incidents, in words too.",
        _JOB,
        option("--against", "JOB", "Compare it with another job.", default=""),
        option(
            "--format",
            None,
            "A page to look at, or Markdown.",
            dest="form",
            choices=("html", "md"),
            default="html",
        ),
        option(
            ("-o", "--output"),
            "FILE",
            "Default: JOB.html or JOB.md; -: stdout.",
            dest="file",
            type=Path,
        ),
    ),
    command(
        "profile",
        "profile:profile_job",
        "Record steps on all workers as one trace for Perfetto, and say what limits them.",
        argument("job", "JOB", "A job that trains."),
        argument(
            "target", "FILE", "The trace; default: ./JOB.trace.json.gz.", nargs="?", type=Path
        ),
        option("--steps", "N", "Steps to record.", type=int, default=5),
        option(
            "--limit",
            "SECONDS",
            "Record no longer than this.",
            dest="limit_s",
            type=float,
            default=60.0,
        ),
    ),
    command(
        "checkpoints",
        "checkpoints:list_checkpoints",
        "List the checkpoints of all jobs, or of one: step, size, worker and directory.\n\n"
        "THERE: whether connected workers have all of it; `incomplete` if no disk has some part."
        " VERIFIED: `yes` if more than half of the ranks reported its digest, otherwise"
        " `unconfirmed`; one whose digest differs is `contradicted`. BRANCH: `left` if the job has"
        " since continued from an older state. Continue from a checkpoint with `dtdctl submit"
        " JOB.toml --resume-from JOB@STEP`; fetch its weights with `dtdctl fetch JOB@STEP`.",
        argument("job", "JOB", "Only those of this job.", nargs="?", default=""),
    ),
    command(
        "fetch",
        "checkpoints:fetch",
        "Fetch a job's weights as safetensors, and show how to load them.",
        argument("text", "JOB[@STEP]", "A job, or one of its checkpoints."),
        argument(
            "directory", "DIR", "Destination directory; default: ./JOB.", nargs="?", type=Path
        ),
        _BEST,
        _MODE,
    ),
    # The cluster.
    command(
        "status",
        "status:show_status",
        "Show the job, its loss and rate, the workers, the slowest one, and why the job waits.",
        switch("--watch", "Keep the display up to date."),
        switch("--memory", "Also each worker's memory by part."),
    ),
    command(
        "events",
        "status:show_events",
        "List incidents: cause, worker, time to detection and recovery, steps redone and lost.",
        switch("--follow", "Print each event when it happens."),
    ),
    command(
        "doctor",
        "doctor:doctor",
        "Examine coordinator, workers and links; with a job, forecast step time and memory.",
        argument("job_file", "JOB.toml", "Also forecast this job's step.", nargs="?", type=Path),
        switch("--force", "Measure bandwidths even while a job runs."),
    ),
    command(
        "kill-worker",
        "jobs:kill_worker",
        "Send a signal to a worker's process, to test recovery.",
        _WORKER,
        option(
            "--signal",
            None,
            "The signal to send; default: KILL.",
            type=str.upper,
            choices=("KILL", "TERM", "STOP"),
            default="KILL",
        ),
    ),
    command(
        "drain",
        "jobs:drain",
        "Let a worker leave at the next step boundary, losing nothing.",
        _WORKER,
    ),
    command(
        "web",
        "access:open_web",
        "Print the address of the coordinator's web page, with a code to log in once.",
    ),
    command(
        "install",
        "install:install",
        "Install the daemons as systemd services; repeatable, and keeps files that you changed.",
        *_SERVICES,
    ),
    command(
        "uninstall",
        "install:uninstall",
        "Stop the services and remove what `install` wrote.",
        *_SERVICES,
        switch("--purge", "Also remove settings, credentials, jobs and checkpoints."),
    ),
    # Access.
    command(
        "join",
        "access:join",
        "Get a credential, so that dtdctl can be used on this host.",
        argument("text", "TOKEN", "Token printed by `token create`."),
        option("--name", "NAME", "Name of the credential; default: user and host.", default=""),
    ),
    command(
        "token create",
        "access:create_token",
        "Create a token with which a host or a user can join; it is shown only once.",
        option(
            "--role",
            "worker|operator|viewer",
            "Role of hosts or users that join with it; default: worker.",
            default="worker",
        ),
        option(
            "--ttl",
            "24h|never",
            "Time until the token expires; default: 24h.",
            dest="life",
            default="24h",
        ),
        option(
            "--uses",
            "N",
            "Number of times it can be used; default: 1.",
            type=number(int, least=1, most=256),
            default=1,
        ),
        option(
            "--name",
            "NAME",
            "Name that can join with it, once; repeatable.",
            dest="names",
            action="append",
            default=[],
        ),
        switch("--replace", "Replace the credential of that name; needs --name.", dest="replaces"),
    ),
    command("token list", "access:list_tokens", "List all tokens, without their secrets."),
    command(
        "token revoke",
        "access:revoke_token",
        "Revoke a token, so that it can no longer be used to join; existing members remain.",
        argument("token", "ID", "As `token list` shows it."),
    ),
    command("credentials", "access:list_credentials", "List the credentials that were issued."),
    command(
        "revoke",
        "access:revoke",
        "Revoke a credential: its connections end at once, its workers are evicted.",
        argument("name", "NAME|SERIAL", "As `credentials` shows it."),
    ),
    command(
        "audit",
        "access:show_audit",
        "List the audit log: time, caller, host, request and result of every change.",
        option("--since", "AGO|TIME", 'Such as "90m", "2d", "2026-11-22".', default=""),
        option("--who", "NAME|SERIAL", "Only requests by this caller.", default=""),
        option("--what", "WORD", 'Only requests such as "cancel".', default=""),
    ),
    command(
        "authority show",
        "access:show_authority",
        "Show the authority's fingerprint and until when it is valid.",
    ),
    # Models.
    command(
        "models register",
        "models:register",
        "Register a job's checkpoint as the next version of a model.",
        argument("text", "JOB[@STEP]", "Its checkpoint of that step; without: the newest."),
        argument("name", "NAME", "The model; new or known."),
        _BEST,
        _MODE,
        option(
            "--copies",
            "N",
            "Number of workers that keep it; default: 2.",
            type=number(int, least=1, most=16),
            default=2,
        ),
        option("--card", "FILE.md", "Text for its model card.", type=Path),
        option("--export", "DIR", "Also write it to DIR/NAME/vN.", type=Path),
        option(
            "--timeout",
            "S",
            "Seconds to wait for a copy; default: 120.",
            dest="timeout_s",
            type=number(float, least=0.0),
            default=120.0,
        ),
    ),
    command("models list", "models:list_models", "List all versions of all models."),
    command(
        "models show",
        "models:show_model",
        "Show a version: files, metrics, job, data, code, copies; or its model card.",
        _VERSION,
        switch("--card", "Print its model card, as Markdown."),
    ),
    command(
        "models alias",
        "models:set_alias",
        "Have an alias stand for a version of a model.",
        argument("text", "NAME@ALIAS", "For example digits@production."),
        argument("version", "VERSION", "A number; 0 removes the alias.", type=number(int, least=0)),
    ),
    command(
        "models card",
        "models:write_card",
        "Replace the text of a version's model card; its record stays.",
        _VERSION,
        argument("file", "FILE.md", "The text; - reads it from stdin.", type=Path),
    ),
    command(
        "models fetch",
        "models:fetch",
        "Fetch a version, check its digest, and show how to load it.",
        _VERSION,
        argument("directory", "DIR", "Destination; default: ./NAME-vN.", nargs="?", type=Path),
    ),
    command(
        "models copy",
        "models:copy",
        "Have other workers make the copies that disconnected workers keep, or that failed.",
        _VERSIONS,
    ),
    command(
        "models delete",
        "models:delete",
        "Delete a version, or a model with all of its versions, and the copies on workers.",
        _VERSIONS,
        _YES,
    ),
    # Sweeps.
    command(
        "sweep begin",
        "sweeps:begin_sweep",
        "Check a sweep and begin it; the coordinator carries it out, also across its restarts.",
        argument("path", "SWEEP.toml", "The sweep.", type=Path),
        option(
            "--ship",
            None,
            "Send the task's own package along.",
            dest="ship_package",
            action=argparse.BooleanOptionalAction,
            default=True,
        ),
    ),
    command(
        "sweep status",
        "sweeps:show_sweep",
        "Show a sweep: its trials, the best one, and which settings matter.",
        _SWEEP,
    ),
    command("sweep list", "sweeps:list_sweeps", "List the sweeps, the newest first."),
    command(
        "sweep cancel", "sweeps:cancel_sweep", "Cancel a sweep and the jobs of its trials.", _SWEEP
    ),
)
