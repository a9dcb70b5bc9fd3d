"""Write docs/settings.md from the daemons' settings dataclasses; a test keeps the two equal.

python -m scripts.gen_settings [FILE]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from dtd.address import Address
from dtd.config import COORDINATOR_FILE, WORKER_FILE, CoordinatorConfig, WorkerConfig
from dtd.ctl.settings import ADDRESS_VARIABLE, CREDENTIAL_VARIABLE
from dtd.rules import FieldInfo, allowed, fields_of, without_none
from dtd.setting_values import ENDPOINTS, NAMES

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "settings.md"

_INTRODUCTION: Final = f"""\
# Settings of the daemons

<!-- Written by scripts/gen_settings.py; change dtd/config.py, not this page. -->

Every setting can be given in three ways, and the first of them that is there counts:

1. a flag of the command: `--log-level debug`,
2. a variable of the environment: `DTD_LOG_LEVEL=debug` (an empty one counts as not set),
3. a line of the TOML file: `log_level = "debug"` in `{COORDINATOR_FILE}` or
   `{WORKER_FILE}`, or in the file that `--config` or `DTD_CONFIG` names.

Otherwise the default holds. Everything that is wrong is reported at once, with the flag, the
variable or the line of the file, and the daemon ends with exit code 78: systemd does not start it
again. A changed setting counts after `systemctl restart`; workers train on while the coordinator
restarts, and a worker leaves and joins again between two steps.

What belongs to one job, and not to a host, stands in [the job file](job-file.md).
"""

_SERVICES: Final = """\
## As services

The units read `/etc/dtd/coordinator.env`, `/etc/dtd/worker.env` and `/etc/dtd/worker-INSTANCE.env`
as well: `DTD_*` variables, one a line, the later file wins. The instance of `dtd-worker@cuda0`
gives the worker its device and its name; `DTD_DEVICE` and `DTD_NAME` in `worker-cuda0.env` say
otherwise.
`STATE_DIRECTORY`, which systemd sets, is the default of `state_dir`.
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
| `DTD_TEST_DATA` |  |  | Directory of the real data that some tests read. |
"""


def render() -> str:
    """The whole page."""
    parts = [
        _INTRODUCTION,
        _table("dtd-coordinator", CoordinatorConfig),
        _table("dtd-worker", WorkerConfig),
        _SERVICES,
        _OTHER,
    ]
    return "\n".join(parts)


def _table(name: str, table: type) -> str:
    rows = [
        f"| `{key}` | `--{key.replace('_', '-')}` | `DTD_{key.upper()}` | {_default(info)} |"
        f" {_takes(info)} | {info.rule.meaning} |"
        for key, info in fields_of(table).items()
    ]
    head = "| key | flag | variable | default | takes | meaning |\n|---|---|---|---|---|---|\n"
    return f"## {name}\n\n{head}" + "\n".join(rows) + "\n"


def _default(info: FieldInfo) -> str:
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


def main() -> None:
    """Write the page to the given file, or to its place in docs/."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    target.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
