"""Write docs/job-file.md from the job file's dataclasses; a test keeps the two equal.

python -m scripts.gen_job_reference [FILE]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from dtd.job import JobSpec, load_job
from dtd.rules import FieldInfo, fields_of, without_none

_ROOT = Path(__file__).resolve().parent.parent
_EXAMPLE = _ROOT / "docs" / "examples" / "cifar10.toml"
_TYPE_NAMES: dict[Any, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}

_INTRODUCTION = """\
# The job file

<!-- Written by scripts/gen_job_reference.py; change the tables in dtd/job, not this page. -->

A job is one TOML file (at most 24 KiB). `dtdctl validate JOB.toml` reports everything that is wrong
with it at once, with the line and the nearest known key; `dtdctl submit JOB.toml` starts it.
`--set table.key=value` changes a value on the command line: the value is read as TOML, else as a
string; the last of several counts, and setting one of `job.epochs` and `job.steps` takes the other
one away.

Types are strict: `true` is no integer, `1.0` is no integer, `1` is accepted where a number is
meant, and `nan` and `inf` are refused. Unknown tables and keys are errors. A field that has no
effect with the chosen optimizer or schedule is an error when it differs from its default. Only
`[job]` has required fields.

```toml
"""

_TASK = """\
## [task]

Keyword arguments of the task: `depth = 3` becomes `depth=3` in the call of the class or function
that `job.task` names. Values are booleans, integers of 64 bits, finite numbers, strings, arrays
and tables, at most eight levels deep; dates are written as strings. Which arguments exist, the
task itself decides when a worker builds it.
"""


def render() -> str:
    """The whole page."""
    load_job(_EXAMPLE)  # an example that does not parse must not be printed
    parts = [_INTRODUCTION + _EXAMPLE.read_text(encoding="utf-8") + "```\n"]
    for name, table in get_type_hints(JobSpec).items():
        parts.append(_TASK if name == "task" else _table(name, table))
    return "\n".join(parts)


def _table(name: str, table: type) -> str:
    rows = [
        f"| `{info.name}` | {_type_name(info.hint)} | {_default(info)} | {_allowed(info)} |"
        f" {info.rule.meaning} |"
        for info in fields_of(table).values()
    ]
    head = "| key | type | default | allowed | meaning |\n|---|---|---|---|---|\n"
    return f"## [{name}]\n\n{table.__doc__}\n\n{head}" + "\n".join(rows) + "\n"


def _type_name(hint: Any) -> str:
    kind = without_none(hint)
    return _TYPE_NAMES[str if get_origin(kind) is Literal else kind]


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


def main() -> None:
    """Write the page to the given file, or to its place in docs/."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else _ROOT / "docs" / "job-file.md"
    target.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
