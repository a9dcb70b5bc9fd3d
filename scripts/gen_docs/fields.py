"""docs/job-file.md and docs/settings.md: from the dataclasses that describe the keys."""

from __future__ import annotations

import json
from pathlib import Path
from types import UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from dtd.address import Address
from dtd.config import (
    COORDINATOR_FILE,
    ENDPOINTS,
    NAMES,
    WORKER_FILE,
    CoordinatorConfig,
    WorkerConfig,
)
from dtd.ctl.settings import ADDRESS_VARIABLE, CREDENTIAL_VARIABLE
from dtd.job import JobSpec, load_job
from dtd.job.parse import MAX_DATA
from dtd.rules import FieldInfo, allowed, fields_of, without_none
from scripts import markdown

_EXAMPLE: Final = Path(__file__).resolve().parents[2] / "docs" / "examples" / "cifar10.toml"
_TYPE_NAMES: Final[dict[Any, str]] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    Literal: "string",
    dict: "table",
}

_JOB_INTRODUCTION: Final = """\
# The job file

<!-- Written by scripts/gen_docs; change the tables in dtd/job, not this page. -->

A job is described by one TOML file (at most 24 KiB). `dtdctl validate JOB.toml` reports all
mistakes in it at once, with the line and the nearest known key; `dtdctl submit JOB.toml` starts it.
`--set table.key=value` overrides a value on the command line: it is parsed as TOML if possible,
else taken as a string; the last of several takes effect, and setting one of `job.epochs` and
`job.steps` removes the other.

Types are strict: neither `true` nor `1.0` is an integer, `1` is accepted where a number is
expected, and `nan` and `inf` are refused. Unknown tables and keys are errors. A field that has no
effect with the chosen optimizer or schedule is an error when it differs from its default. Only
`[job]` has required fields.

```toml
"""

_TASK: Final = """\
## [task]

Keyword arguments of the task: `depth = 3` becomes `depth=3` in the call of the class or function
that `job.task` names. Values are booleans, 64-bit integers, finite numbers, strings, arrays and
tables, at most eight levels deep and 4096 in all; dates are written as strings. The task itself
determines which arguments exist, when a worker builds it.
"""

_DATA: Final = f"""\
## [data]

Data of the job, each a directory or a file: `images = "/data/images"`. The path is absolute, and
something has to be there on at least one worker's host; the others copy it. The task finds the path
on its host with `dtd.data_path("images")`. At most {MAX_DATA} names; not with `elastic.by_hand`.
[Data on every host](guide/data.md) has the rest.
"""

_FREE_TABLES: Final = {"task": _TASK, "data": _DATA}

_SETTINGS_INTRODUCTION: Final = f"""\
# Settings of the daemons

<!-- Written by scripts/gen_docs; change dtd/config.py, not this page. -->

Every setting can be given in three ways, in this order of precedence:

1. a flag of the command: `--log-level debug`,
2. a variable of the environment: `DTD_LOG_LEVEL=debug` (an empty one counts as not set),
3. a line of the TOML file: `log_level = "debug"` in `{COORDINATOR_FILE}` or
   `{WORKER_FILE}`, or in the file that `--config` or `DTD_CONFIG` names.

Otherwise the default applies. All invalid settings are reported at once, with the flag, the
variable or the line of the file, and the daemon exits with code 78, after which systemd does not
restart it. A changed setting takes effect after `systemctl restart`; workers keep training while
the coordinator restarts, and a restarted worker leaves and joins again between two steps.

Settings of a job, rather than of a host, are in [the job file](job-file.md).
"""

_SERVICES: Final = """\
## As services

The units read `/etc/dtd/coordinator.env`, `/etc/dtd/worker.env` and `/etc/dtd/worker-INSTANCE.env`
as well: `DTD_*` variables, one per line; later files override earlier ones. The instance name, as
in `dtd-worker@cuda0`, sets the worker's device and its name; `DTD_DEVICE` and `DTD_NAME` in
`worker-cuda0.env` override these. `STATE_DIRECTORY`, which systemd sets, is the default of
`state_dir`.
"""

_OTHER: Final = f"""\
## dtdctl, and scripts of the checkout

| variable | flag | default | meaning |
|---|---|---|---|
| `{ADDRESS_VARIABLE}` | `--coordinator` | as the credential says, else a \
coordinator of this host | \
Where the coordinator listens, `HOST:PORT` or `unix:/PATH`, several with commas between. |
| `{CREDENTIAL_VARIABLE}` | `--credential` | `~/.config/dtd/ctl.credential` | Proves who asks. |
| `NO_COLOR` |  |  | Logs and views on a terminal have no colours. |
| `DTD_VENV` |  | `.venv` | Where `scripts/test` and `scripts/quickstart` make their environment. |
| `DTD_TORCH` |  |  | `cpu`: those scripts install torch without CUDA where the index has it. |
| `DTD_DATA` |  |  | Paths of data by name, as JSON: where `dtd.data_path` looks. Workers set it. |
| `DTD_TEST_DATA` |  |  | Directory of the real data that some tests read. |
"""


# --- the job file --------------------------------------------------------------------------------


def job_file() -> str:
    """The whole page."""
    load_job(_EXAMPLE)  # an example that does not parse must not be printed
    parts = [_JOB_INTRODUCTION + _EXAMPLE.read_text(encoding="utf-8") + "```\n"]
    for name, table in get_type_hints(JobSpec).items():
        parts.append(_FREE_TABLES.get(name) or _job_table(name, table))
    return "\n".join(parts)


def _job_table(name: str, table: type) -> str:
    rows = [
        [f"`{info.name}`", _type_name(info.hint), _default(info), _allowed(info), info.rule.meaning]
        for info in fields_of(table).values()
    ]
    made = markdown.table(["key", "type", "default", "allowed", "meaning"], rows)
    return f"## [{name}]\n\n{table.__doc__}\n\n{made}\n"


def _type_name(hint: Any) -> str:
    kind = without_none(hint)
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(_type_name(one) for one in get_args(kind))
    return _TYPE_NAMES[get_origin(kind) or kind]


def _default(info: FieldInfo) -> str:
    if info.required:
        return "required"
    return "none" if info.default is None else f"`{json.dumps(info.default)}`"


def _allowed(info: FieldInfo) -> str:
    kind = without_none(info.hint)
    if get_origin(kind) is Literal:
        words = ", ".join(f'`"{choice}"`' for choice in get_args(kind))
    elif kind is bool:
        words = "`true`, `false`"
    else:
        words = info.rule.wording or info.rule.bounds
    if info.rule.only_for:
        words += f"; only with {' or '.join(f'`{name}`' for name in info.rule.only_for)}"
    return words


# --- settings of the daemons ---------------------------------------------------------------------


def settings() -> str:
    """The whole page."""
    parts = [
        _SETTINGS_INTRODUCTION,
        _settings_table("dtd-coordinator", CoordinatorConfig),
        _settings_table("dtd-worker", WorkerConfig),
        _SERVICES,
        _OTHER,
    ]
    return "\n".join(parts)


def _settings_table(name: str, table: type) -> str:
    rows = [
        [
            f"`{key}`",
            f"`--{key.replace('_', '-')}`",
            f"`DTD_{key.upper()}`",
            _setting_default(info),
            _takes(info),
            info.rule.meaning,
        ]
        for key, info in fields_of(table).items()
    ]
    head = ["key", "flag", "variable", "default", "takes", "meaning"]
    return f"## {name}\n\n{markdown.table(head, rows)}\n"


def _setting_default(info: FieldInfo) -> str:
    if info.required or info.default in (None, (), ""):
        return "see meaning"
    if isinstance(info.default, tuple):
        return f"`{','.join(info.default)}`"
    return f"`{info.default}`"


def _takes(info: FieldInfo) -> str:
    kind: Any = without_none(info.hint)
    if kind is Address:
        return "`HOST:PORT`"
    if kind == ENDPOINTS:
        return "`HOST:PORT[,...]` or `unix:/PATH`, in the file also an array"
    if kind == NAMES:
        return f"{info.rule.wording}, with commas between, in the file also an array"
    if kind is Path:
        return "a path"
    if get_origin(kind) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(kind))
    return allowed(info.hint, info.rule).replace("|", "\\|")
