"""The commands of dtdctl: one table with names, functions, arguments and help.

A module of commands is imported only when one of its commands runs.  `--coordinator`,
`--credential` and `-o` may be anywhere on the line: `dtd.ctl.settings` takes them out before.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Final

from dtd.ctl.command_line import Argument, Command, argument, kinds, names, number, since_s, switch

_JOB = argument("job", "JOB", "A job's id, as `jobs` lists it.", named="job")
_ENDED_JOB = argument(
    "text", "JOB[@STEP]", "An ended job, or a checkpoint of it.", named="checkpoint"
)
_JOB_FILE = argument("path", "JOB.toml", "The job file.", type=Path)
_WORKER = argument("name", "NAME", "A worker's name.", named="worker")
_OVERRIDES = argument(
    "--set",
    "A.B=V",
    "Override a key of the job file; repeatable.",
    dest="overrides",
    action="append",
    default=[],
)
_YES = switch(("--yes", "-y"), "Do not ask for confirmation.", dest="confirmed")
_TAGS = argument("tags", "TAG", "Words to find jobs again by.", nargs="+")
_VERSION = argument(
    "text", "NAME[@VERSION|@ALIAS]", "A model; without @ its newest version.", named="model"
)
_VERSIONS = argument(
    "text", "NAME[@VERSION|@ALIAS]", "A version, or the whole model.", named="model"
)
_SWEEP = argument("sweep", "SWEEP", "A sweep's id, as `sweep list` shows it.", named="sweep")
_SINCE = argument(
    "--since",
    "AGO|TIME",
    'Only from then on: "90m", "2d", "14:00", "2026-11-22".',
    dest="since_s",
    type=since_s,
    default=0.0,
)
_BEST = argument(
    "--best", "METRIC", "The best checkpoint by this metric, not the newest.", dest="best_metric"
)
_MODE = argument(
    "--mode", None, "Which is better; default: the job's setting.", choices=("max", "min")
)


def _length(flag: str) -> Argument:
    return argument(
        flag, "N", "Total number, counted from the start.", type=number(int, least=1), default=0
    )


_SERVICES = (
    switch("--coordinator", "The coordinator; default: both."),
    switch("--worker", "The workers; default: both."),
    switch("--user", "Install as services of this user, without root."),
    argument("--prefix", "DIR", "Install into another root directory.", type=Path, default=None),
    switch("--dry-run", "Only print what would be done."),
)

GROUPS: Final = {
    "token": "Tokens with which hosts and people join.",
    "authority": "The cluster's certificate authority.",
    "tag": "Label jobs; `jobs --tag TAG` lists those with the label.",
    "models": "Versions of weights that outlive their jobs.",
    "sweep": "Try a job with many settings: `sweep SWEEP.toml` begins.",
}
"""Groups of commands, which have two words."""

TOPICS: Final = {
    "run jobs": (
        *("submit", "run", "validate", "wait", "cancel", "resume", "extend", "delete"),
        "sweep",
    ),
    "look at jobs": (
        *("jobs", "show", "logs", "metrics", "report", "compare", "profile", "tag", "note"),
    ),
    "checkpoints and models": ("checkpoints", "fetch", "models"),
    "the cluster": ("status", "events", "doctor", "drain", "kill-worker", "web"),
    "hosts and access": (
        *("install", "uninstall", "join", "token", "credentials", "revoke", "authority", "audit"),
    ),
}
"""Commands of one word and groups, as the help lists them."""

EXAMPLES: Final = (
    "submit job.toml --set optimizer.lr=0.05 --wait",
    "status --watch",
    "logs -f digits-1",
    "events -f --since 10m",
)

COMMANDS: Final = (
    # Jobs.
    Command(
        "validate",
        "submit:validate",
        "Check a job file: all errors at once, each with its line.",
        _JOB_FILE,
        _OVERRIDES,
    ),
    Command(
        "submit",
        "submit:submit",
        "Queue a job and print its id; ships the task's own package.",
        argument("path", "JOB.toml", "The job file.", nargs="?", type=Path),
        _OVERRIDES,
        argument(
            "--like", "JOB", "Repeat this job instead: its settings, code and origin.", named="job"
        ),
        argument(
            "--resume-from",
            "JOB[@STEP]",
            "Continue from another job's checkpoint: model, optimizer, data position.",
            named="checkpoint",
        ),
        argument(
            "--weights-from",
            "JOB[@STEP]|FILE.safetensors",
            "Start at step 0 with the weights of another job or of a file.",
            named="checkpoint",
        ),
        argument(
            "--strict",
            None,
            "Whether all of those weights must fit.",
            action=argparse.BooleanOptionalAction,
            default=True,
        ),
        switch("--wait", "Wait until the job has ended.", dest="wait_for_end"),
        switch("--no-ship", "Use the task's code installed on the workers."),
        examples=(
            "submit job.toml --set job.epochs=5",
            "submit --like digits-1 --set optimizer.lr=0.05",
            "submit job.toml --resume-from digits-1@200",
        ),
    ),
    Command(
        "run",
        "submit:run_script",
        "Run a script on the workers as a job; ships what it imports."
        "\n\nOne that calls dtd.join trains with them; any other one is started as torchrun does.",
        argument("words", "[python] SCRIPT.py", "The script, and its arguments.", nargs="+"),
        argument(
            "--workers", "N", "At most so many.", type=number(int, least=1, most=1024), default=64
        ),
        argument("--name", "NAME", "Of the job; default: the script's."),
        _OVERRIDES,
        switch("--wait", "Wait until the job has ended.", dest="wait_for_end"),
        examples=("run --workers 4 -- python train.py --lr 0.1",),
    ),
    Command(
        "wait",
        "jobs:wait",
        "Wait until a job ends; exit 4 if it failed or was cancelled.",
        _JOB,
        argument(
            "--timeout",
            "S",
            "Give up after S seconds.",
            dest="timeout_s",
            type=number(float, least=0.0),
            default=math.inf,
        ),
    ),
    Command(
        "cancel", "jobs:cancel", "Stop a job at its next step boundary, keeping a checkpoint.", _JOB
    ),
    Command(
        "resume",
        "submit:resume",
        "Continue a job that failed, was cancelled or is waiting.\n\n"
        "An ended job continues as a new one, from its newest checkpoint. A waiting one continues"
        " without waiting for absent workers that may hold newer state, which may lose steps.",
        _JOB,
        _OVERRIDES,
    ),
    Command(
        "extend",
        "submit:extend",
        "Train an ended job for longer, as a new job.\n\nThe schedule follows the new length.",
        _JOB,
        _length("--epochs"),
        _length("--steps"),
        _OVERRIDES,
        examples=("extend digits-1 --epochs 40",),
    ),
    Command(
        "jobs",
        "jobs:list_jobs",
        "List all jobs with their results, newest first.\n\n"
        "-o wide adds each job's task and when it was submitted.",
        argument("--tag", "TAG", "Only jobs that have it."),
        examples=("jobs --tag baseline -o wide",),
    ),
    Command(
        "delete",
        "jobs:delete",
        "Delete an ended job with its checkpoints, or those of one step.",
        _ENDED_JOB,
        _YES,
    ),
    Command(
        "logs",
        "jobs:logs",
        "Print what a job's own code printed, per rank.",
        _JOB,
        switch(("-f", "--follow"), "Print new lines as they come, until the job has ended."),
        argument(
            "--tail",
            "N",
            "Only the last N lines of the output so far.",
            type=number(int, least=0),
            default=None,
        ),
        argument("--worker", "NAME", "Only lines of this worker.", named="worker"),
        examples=("logs -f digits-1", "logs digits-1 --tail 20 --worker worker-1"),
    ),
    # Records of jobs.
    Command(
        "show", "runs:show_job", "Show a job: settings, code, data, results, checkpoints.", _JOB
    ),
    Command(
        "compare",
        "runs:compare_jobs",
        "Compare jobs: settings, code, data, best figures, curves.",
        argument("jobs", "JOB", "Two jobs or more, by their ids.", nargs="+", named="job"),
        argument(
            "--names",
            "A,B",
            "These figures; default: the loss and evaluations.",
            type=names,
            default=(),
        ),
        argument(
            "--points",
            "N",
            "Points of a curve; default: 60.",
            type=number(int, least=2, most=200),
            default=60,
        ),
        examples=("compare digits-1 digits-2 --names loss,accuracy",),
    ),
    Command("tag add", "runs:add_tags", "Add tags to a job.", _JOB, _TAGS),
    Command("tag remove", "runs:remove_tags", "Remove tags from a job.", _JOB, _TAGS),
    Command(
        "note",
        "runs:write_note",
        "Write a note about a job; it replaces the one before.",
        _JOB,
        argument("text", "TEXT", 'The note; "" removes the one that is there.'),
    ),
    Command(
        "metrics",
        "metrics:show_metrics",
        "Show a job's figures over its steps; -o csv or parquet exports them.",
        _JOB,
        argument("--names", "A,B", "Only these figures; default: all.", type=names, default=()),
        switch("--workers", "Also those of each worker and link."),
        argument("--from-step", "N", "The first step.", type=number(int, least=0), default=0),
        argument(
            "--to-step", "N", "The last step; 0: the newest.", type=number(int, least=0), default=0
        ),
        argument(
            "--points",
            "N",
            "At most so many of each figure; default: 1000.",
            type=number(int, least=1, most=20_000),
            default=1000,
        ),
        examples=("metrics digits-1 --names loss,step_s", "metrics digits-1 -o csv > digits-1.csv"),
    ),
    Command(
        "report",
        "metrics:write_report",
        "Write a job's report: curves, rates, where time went, incidents.\n\n"
        "-o (--format) is html, md or json. Without --output the file is JOB.html or JOB.md; JSON"
        " goes to stdout.",
        _JOB,
        argument("--against", "JOB", "Compare it with another job.", named="job"),
        argument("--output", "FILE", "The file; -: stdout.", dest="file", type=Path, default=None),
        examples=("report digits-2 --against digits-1", "report digits-1 --format md --output -"),
    ),
    Command(
        "profile",
        "profile:profile_job",
        "Record some steps as a trace for Perfetto; say what limits them.",
        argument("job", "JOB", "A job that trains.", named="job"),
        argument(
            "target", "FILE", "The trace; default: ./JOB.trace.json.gz.", nargs="?", type=Path
        ),
        argument("--steps", "N", "Steps to record.", type=int, default=5),
        argument(
            "--limit",
            "SECONDS",
            "Record no longer than this.",
            dest="limit_s",
            type=float,
            default=60.0,
        ),
    ),
    Command(
        "checkpoints",
        "checkpoints:list_checkpoints",
        "List checkpoints: step, size, worker, metrics.\n\n"
        "AVAILABLE: whether connected workers have all of it; `incomplete` if no disk has some"
        " part. VERIFIED: `yes` if more than half of the ranks reported its digest, otherwise"
        " `unconfirmed`; one whose digest differs is `contradicted`. BRANCH: `left` if the job has"
        " since continued from an older state. -o wide adds generation and directory.",
        argument("job", "JOB", "Only those of this job.", nargs="?", default="", named="job"),
        examples=(
            "checkpoints digits-1",
            "submit job.toml --resume-from digits-1@200",
            "fetch digits-1@200",
        ),
    ),
    Command(
        "fetch",
        "checkpoints:fetch",
        "Fetch a job's weights as safetensors, with lines that load them.",
        argument("text", "JOB[@STEP]", "A job, or one of its checkpoints.", named="checkpoint"),
        argument(
            "directory", "DIR", "Destination directory; default: ./JOB.", nargs="?", type=Path
        ),
        _BEST,
        _MODE,
        examples=("fetch digits-1", "fetch digits-1 weights --best accuracy"),
    ),
    # The cluster.
    Command(
        "status",
        "status:show_status",
        "Show jobs, workers, the slowest one, and what a job waits for."
        "\n\n-o wide adds each worker's process, its limit for a stalled step, and the bytes that"
        " it has sent to other workers: as they travelled, and before they were coded.",
        switch(("-w", "--watch"), "Keep the display up to date, until Ctrl-C."),
        switch("--memory", "Also each worker's memory by part."),
        examples=("status -w", "status -o json"),
    ),
    Command(
        "events",
        "status:show_events",
        "List incidents: cause, worker, time to recovery, steps lost."
        "\n\n-o wide has a column for each of them.",
        switch(("-f", "--follow"), "Also print new ones as they come, until Ctrl-C."),
        argument("--job", "JOB", "Only events of this job.", named="job"),
        argument(
            "--kind",
            "KIND,...",
            "Only events of these kinds; docs/events.md lists them.",
            dest="kinds",
            named="kind",
            type=kinds,
            default=(),
        ),
        _SINCE,
        examples=("events -f", "events --job digits-1 --kind worker_lost,recovered --since 2h"),
    ),
    Command(
        "doctor",
        "doctor:doctor",
        "Examine hosts and links; forecast a job's step time and memory.",
        argument("job_file", "JOB.toml", "Also forecast this job's step.", nargs="?", type=Path),
        switch("--force", "Measure bandwidths even while a job runs."),
        examples=("doctor", "doctor job.toml"),
    ),
    Command(
        "kill-worker",
        "jobs:kill_worker",
        "Send a signal to a worker's process, to test recovery.",
        _WORKER,
        argument(
            "--signal",
            None,
            "The signal to send; default: KILL.",
            type=str.upper,
            choices=("KILL", "TERM", "STOP"),
            default="KILL",
        ),
    ),
    Command(
        "drain",
        "jobs:drain",
        "Let a worker leave at the next step boundary, losing nothing.",
        _WORKER,
    ),
    Command("web", "access:open_web", "Print a link to the web page that logs you in once."),
    Command(
        "install",
        "install:install",
        "Install the daemons as systemd services.\n\nRepeatable; it keeps files that you changed.",
        *_SERVICES,
    ),
    Command(
        "uninstall",
        "install:uninstall",
        "Stop the services and remove what `install` wrote.",
        *_SERVICES,
        switch("--purge", "Also remove settings, credentials, jobs and checkpoints."),
    ),
    # Access.
    Command(
        "join",
        "access:join",
        "Get a credential for dtdctl on this host.",
        argument("text", "TOKEN", "Token printed by `token create`."),
        argument("--name", "NAME", "Name of the credential; default: user and host."),
    ),
    Command(
        "token create",
        "access:create_token",
        "Create a token for hosts or users to join with, shown once.",
        argument(
            "--role",
            "worker|operator|viewer",
            "Role of hosts or users that join with it; default: worker.",
            default="worker",
        ),
        argument(
            "--ttl",
            "24h|never",
            "Time until the token expires; default: 24h.",
            dest="life",
            default="24h",
        ),
        argument(
            "--uses",
            "N",
            "Number of times it can be used; default: 1.",
            type=number(int, least=1, most=256),
            default=1,
        ),
        argument(
            "--name",
            "NAME",
            "Name that can join with it, once; repeatable.",
            dest="names",
            action="append",
            default=[],
        ),
        switch("--replace", "Replace the credential of that name; needs --name.", dest="replaces"),
        examples=("token create --uses 8", "token create --role viewer --ttl 2h"),
    ),
    Command("token list", "access:list_tokens", "List all tokens, without their secrets."),
    Command(
        "token revoke",
        "access:revoke_token",
        "Revoke a token: nobody can join with it; members remain.",
        argument("token", "ID", "As `token list` shows it."),
    ),
    Command("credentials", "access:list_credentials", "List the credentials that were issued."),
    Command(
        "revoke",
        "access:revoke",
        "Revoke a credential: its connections end, its workers leave.",
        argument("name", "NAME|SERIAL", "As `credentials` shows it."),
    ),
    Command(
        "audit",
        "access:show_audit",
        "List the changes: when, by whom, from where, with which result.",
        _SINCE,
        argument("--who", "NAME|SERIAL", "Only requests by this caller."),
        argument("--what", "WORD", 'Only requests such as "cancel".'),
    ),
    Command(
        "authority show",
        "access:show_authority",
        "Show the authority's fingerprint and when it expires.",
    ),
    # Models.
    Command(
        "models register",
        "models:register",
        "Register a job's checkpoint as the next version of a model.",
        argument(
            "text",
            "JOB[@STEP]",
            "Its checkpoint of that step; without: the newest.",
            named="checkpoint",
        ),
        argument("name", "NAME", "The model; new or known."),
        _BEST,
        _MODE,
        argument(
            "--copies",
            "N",
            "Number of workers that keep it; default: 2.",
            type=number(int, least=1, most=16),
            default=2,
        ),
        argument("--card", "FILE.md", "Text for its model card.", type=Path, default=None),
        argument("--export", "DIR", "Also write it to DIR/NAME/vN.", type=Path, default=None),
        argument(
            "--timeout",
            "S",
            "Seconds to wait for a copy; default: 120.",
            dest="timeout_s",
            type=number(float, least=0.0),
            default=120.0,
        ),
        examples=("models register digits-1 digits --best accuracy",),
    ),
    Command("models list", "models:list_models", "List all versions of all models."),
    Command(
        "models show",
        "models:show_model",
        "Show a version: files, metrics, job, copies; or its model card.",
        _VERSION,
        switch("--card", "Print its model card, as Markdown."),
    ),
    Command(
        "models alias",
        "models:set_alias",
        "Point an alias at a version of a model.",
        argument("text", "NAME@ALIAS", "For example digits@production.", named="model"),
        argument("version", "VERSION", "A number; 0 removes the alias.", type=number(int, least=0)),
        examples=("models alias digits@production 3",),
    ),
    Command(
        "models card",
        "models:write_card",
        "Replace the text of a version's model card; its record stays.",
        _VERSION,
        argument("file", "FILE.md", "The text; - reads it from stdin.", type=Path),
    ),
    Command(
        "models fetch",
        "models:fetch",
        "Fetch a version, check its digest, and show how to load it.",
        _VERSION,
        argument("directory", "DIR", "Destination; default: ./NAME-vN.", nargs="?", type=Path),
    ),
    Command(
        "models copy",
        "models:copy",
        "Replace the copies that failed or are on disconnected workers.",
        _VERSIONS,
    ),
    Command(
        "models delete",
        "models:delete",
        "Delete a version, or a model with all of its versions.",
        _VERSIONS,
        _YES,
    ),
    # Sweeps.
    Command(
        "sweep begin",
        "sweeps:begin_sweep",
        "Check a sweep and begin it; the coordinator carries it out.",
        argument("path", "SWEEP.toml", "The sweep.", type=Path),
        argument(
            "--ship",
            None,
            "Send the task's own package along.",
            dest="ship_package",
            action=argparse.BooleanOptionalAction,
            default=True,
        ),
    ),
    Command(
        "sweep status",
        "sweeps:show_sweep",
        "Show a sweep: its trials, the best one, settings that matter.",
        _SWEEP,
    ),
    Command("sweep list", "sweeps:list_sweeps", "List the sweeps, the newest first."),
    Command(
        "sweep cancel", "sweeps:cancel_sweep", "Cancel a sweep and the jobs of its trials.", _SWEEP
    ),
)
