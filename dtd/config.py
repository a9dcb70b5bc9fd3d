"""The daemons' settings: flag, then `DTD_*` environment, then TOML file, then default.

All errors are reported together in one `ConfigError` that names the flag, the variable or the
file's line.  Reading the file is the only operation here that is not pure: the daemons themselves
create directories and open addresses.

A file holds top-level keys named like the fields below.  A variable is the field's name in capital
letters after `DTD_`; an empty one counts as not set.
"""

from __future__ import annotations

import argparse
import contextlib
import platform
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin

from dtd.address import Address, Endpoint, is_host, parse_endpoint
from dtd.errors import ConfigError, UsageError
from dtd.host.places import COORDINATOR, socket_place, state_directory
from dtd.logs import LogFormat, LogLevel
from dtd.rules import (
    FieldInfo,
    did_you_mean,
    fault,
    fields_of,
    rule,
    setting,
    without_none,
)
from dtd.text.names import NAME, NAME_WORDS, name_of
from dtd.text.shown import counted, shown
from dtd.text.toml_source import CONTENT_ERRORS, content_fault, key_lines, read_text

ENDPOINTS: Final = tuple[Endpoint, ...]
NAMES: Final = tuple[str, ...]
DEFAULT_DATA_ADDRESS: Final = Address("127.0.0.1", 0)
COORDINATOR_FILE: Final = Path("/etc/dtd/coordinator.toml")
WORKER_FILE: Final = Path("/etc/dtd/worker.toml")
WORKER_USER: Final = "dtd-worker"
"""The user as which the workers' units run."""
_LIMIT_BYTES: Final = 64 * 1024
_TRACKING_ADDRESS: Final = re.compile(r"https?://[\w.\-\[\]:]{1,255}(/[\w.\-/~%]{0,500})?")

Sandbox = Literal["normal", "strict"]
Role = Literal["worker", "server"]
WandbMode = Literal["off", "offline"]
MetricsFor = Literal["anybody", "members"]

_LOG_FORMAT: Final = rule("One JSON object per line, or console; auto: console on a terminal.")
_LOG_LEVEL: Final = rule("Lowest level that is logged; debug logs a line for each training step.")
_LISTEN: Final = rule(
    "Data address to listen on; beyond loopback it requires a credential of the cluster, with which"
    " the default is `[::]:0`: all addresses, IPv6 and IPv4."
)
_METRICS: Final = rule("Address at which Prometheus can read metrics; default: none.")
_METRICS_FOR: Final = rule(
    "Readers: anyone who can connect, or, over TLS, only holders of a credential of the cluster."
)
_USERS: Final = {
    "pattern": r"@?[^\s@,:][^\s,:]{0,255}",
    "wording": "users and @groups of this host, by name or number",
}
_STATE_DIR: Final = rule(
    "Directory for everything that must survive a restart; default: systemd's STATE_DIRECTORY, "
    "otherwise under ~/.local/state/dtd (for root: /var/lib/dtd)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig:
    """Settings of `dtd-coordinator`."""

    listen: Address | None = setting(
        None,
        "Additional TCP address to listen on, for holders of a credential of the cluster;"
        " default: none, so that only users and workers of this host connect, at the socket.",
    )
    state_dir: Path = field(metadata=_STATE_DIR)
    socket: Path = field(
        metadata=rule(
            "Path of the Unix socket for this host; default: control.sock in systemd's "
            "RUNTIME_DIRECTORY, otherwise in the state directory."
        )
    )
    local_operators: tuple[str, ...] = setting(
        (), "Users and @groups of this host that may do everything.", **_USERS
    )
    local_workers: tuple[str, ...] = setting(
        (WORKER_USER,), "Users and @groups of this host whose processes may be workers.", **_USERS
    )
    local_viewers: tuple[str, ...] = setting(
        (), "Users and @groups of this host that have read-only access.", **_USERS
    )
    heartbeat_interval_s: float = setting(
        0.25, "Interval at which workers send heartbeats.", above=0, maximum=60
    )
    heartbeat_timeout_s: float = setting(
        1.5, "Silence after which a worker is suspected.", above=0, maximum=3600
    )
    advertise: str = setting(
        "",
        "HOST or HOST:PORT at which other hosts reach it, separated by commas; empty: the "
        "listening"
        " address, or this host's own address.",
    )
    credential_days: int = setting(
        30,
        "Lifetime of newly issued credentials; they are renewed automatically after two "
        "thirds of it.",
        minimum=1,
        maximum=825,
    )
    output_lines_per_s: int = setting(
        1000,
        "Lines of a job's output that are kept per worker and second; the excess is dropped and"
        " counted.",
        minimum=1,
        maximum=100_000,
    )
    metrics_store_mib: int = setting(
        1024,
        "Largest size, in MiB, of the file in which figures of jobs and workers are kept for"
        " `dtdctl metrics`; when it is reached, the oldest become coarser.",
        minimum=64,
        maximum=1024 * 1024,
    )
    mlflow: str = setting(
        "",
        "Address of an MLflow tracking server that receives the figures of jobs, as"
        " http://HOST:PORT; a password belongs in MLFLOW_TRACKING_PASSWORD. Needs the package"
        " mlflow-skinny; empty: none.",
    )
    mlflow_experiment: str = setting(
        "dtd",
        "Name of the MLflow experiment in which each job is a run.",
        pattern=r"[^\x00-\x1f\x7f]{1,250}",
        wording="1 to 250 characters of one line",
    )
    wandb: WandbMode = setting(
        "off",
        "`offline`: write the figures of jobs to files for Weights & Biases, for `wandb sync`;"
        " needs the package wandb.",
    )
    wandb_project: str = setting(
        "dtd",
        "Name of the W&B project in which each job is a run.",
        pattern=r"[\w.\-]{1,128}",
        wording="1 to 128 letters, digits, dots, hyphens and underscores",
    )
    metrics: Address | None = field(default=None, metadata=_METRICS)
    metrics_for: MetricsFor = field(default="anybody", metadata=_METRICS_FOR)
    web: Address | None = setting(
        None,
        "Address at which browsers find the web page, for those who log in; beyond loopback it"
        " requires `listen` and is served over TLS; default: none.",
    )
    log_format: LogFormat = field(default="auto", metadata=_LOG_FORMAT)
    log_level: LogLevel = field(default="info", metadata=_LOG_LEVEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Settings of `dtd-worker`."""

    coordinator: tuple[Endpoint, ...] = setting(
        (),
        "Addresses of the coordinator, separated by commas; default: those in the credential;"
        " without a credential, a coordinator on this host.",
    )
    credential: Path | None = setting(
        None,
        "Credential of this host; default: where `dtd-worker join` stores it, which obeys the"
        " variable, too.",
    )
    name: str = field(
        metadata=rule(
            "Stable name of this worker, unique in the cluster; default: host name and device.",
            pattern=NAME,
            wording=NAME_WORDS,
        )
    )
    device: str = setting(
        "cpu",
        "Device on which the worker trains.",
        pattern=r"cpu|cuda:(0|[1-9][0-9]{0,2})",
        wording='"cpu" or "cuda:N"',
    )
    role: Role = setting(
        "worker",
        "`worker`: trains. `server`: a parameter server, which trains no rows; it takes part in"
        ' jobs with `[strategy] owners = "servers"`.',
    )
    threads: int = setting(
        0, "CPU threads; 0: the number that the job sets.", minimum=0, maximum=1024
    )
    listen: Address = field(default=DEFAULT_DATA_ADDRESS, metadata=_LISTEN)
    advertise: str = setting(
        "",
        "The only HOST or HOST:PORT at which other workers reach this one; empty: where it listens,"
        " or, if that is [::] or 0.0.0.0, at the first address of the host that answers them.",
    )
    state_dir: Path = field(metadata=_STATE_DIR)
    sandbox: Sandbox = setting(
        "normal",
        "`strict`: start only inside a sandbox in which jobs write only to this worker's own"
        " directories and reach no address outside the cluster; accepts jobs that require one.",
    )
    data_cache_gib: float = setting(
        100.0,
        "Most GiB of copies of jobs' data (`[data]`) in `state_dir`; the least recently used go.",
        minimum=0,
        maximum=2**20,
    )
    environments_gib: float = setting(
        20.0,
        "Most GiB of packages that jobs require (`requirements`) in `state_dir`; the least recently"
        " used go; 0: this worker installs none.",
        minimum=0,
        maximum=2**20,
    )
    drain_timeout_s: float = setting(
        20.0,
        "Time that a worker has to leave when it is told to: for the step boundary, for passing its"
        " state on and, as the last one, for writing it.",
        above=0,
        maximum=3600,
    )
    drain_when: Path | None = setting(
        None,
        "Command that is run every 5 s; while its exit code is 0 the worker leaves and stands by;"
        " its first line of output is the reason; default: none.",
    )
    metrics: Address | None = field(default=None, metadata=_METRICS)
    metrics_for: MetricsFor = field(default="anybody", metadata=_METRICS_FOR)
    log_format: LogFormat = field(default="auto", metadata=_LOG_FORMAT)
    log_level: LogLevel = field(default="info", metadata=_LOG_LEVEL)

    def advertised(self, bound: Address) -> Address:
        """Return the address at which other workers reach the data port bound to `bound`."""
        if not self.advertise:
            return bound
        if is_host(self.advertise):
            return Address(self.advertise, bound.port)
        return Address.parse(self.advertise)


METAVARS: Final[dict[Any, str]] = {
    Address: "HOST:PORT",
    Path: "PATH",
    ENDPOINTS: "HOST:PORT[,...]",
    NAMES: "NAME[,...]",
    float: "SECONDS",
    int: "N",
}


def add_flags(parser: argparse.ArgumentParser, settings: type, *names: str) -> None:
    """Add `--config`, and the flag of each setting, or of those that are named."""
    parser.add_argument("--config", metavar="FILE", help="TOML settings")
    known = fields_of(settings)
    for name in names or known:
        kind, flag = without_none(known[name].hint), f"--{name.replace('_', '-')}"
        text = known[name].rule.meaning.replace("%", "%%")
        if get_origin(kind) is Literal:
            parser.add_argument(flag, choices=get_args(kind), help=text)
        else:
            metavar = "GIB" if name.endswith("_gib") else METAVARS.get(kind, "TEXT")
            parser.add_argument(flag, metavar=metavar, help=text)


class _Origin(NamedTuple):
    """A value, a description of where it was found, and whether it is text to be converted."""

    value: object
    place: str
    is_text: bool


def load_coordinator_config(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    *,
    default_file: Path = COORDINATOR_FILE,
) -> CoordinatorConfig:
    """Settings of the coordinator.

    Args:
        flags: by field name, plus "config"; None stands for a flag that was not given.
        environ: the environment.
        default_file: read when it exists and no other file is named.

    Raises:
        ConfigError: with everything that is wrong.
    """
    values, problems = _gather(CoordinatorConfig, flags, environ, default_file)
    values.setdefault("state_dir", state_directory(COORDINATOR, environ))
    values.setdefault("socket", socket_place(values["state_dir"], environ))
    config = CoordinatorConfig(**values)
    problems |= _bad_hosts(config.advertise, many=True)
    if config.mlflow and not _TRACKING_ADDRESS.fullmatch(config.mlflow):
        # Not repeated: it may have a password in it.
        problems["mlflow"] = (
            "mlflow: must be http:// or https:// with a host, and no user name, password or"
            " question mark: MLflow reads MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        )
    if (
        config.heartbeat_timeout_s < 2 * config.heartbeat_interval_s
        and "heartbeat_interval_s" not in problems
        and "heartbeat_timeout_s" not in problems
    ):
        problems["heartbeat_timeout_s"] = (
            "heartbeat_timeout_s: must be at least twice heartbeat_interval_s ="
            f" {config.heartbeat_interval_s}, not {config.heartbeat_timeout_s}"
        )
    _raise_if_any(problems)
    return config


def load_worker_config(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    *,
    default_file: Path = WORKER_FILE,
    hostname: str | None = None,
) -> WorkerConfig:
    """Settings of a worker, as `load_coordinator_config`; `hostname` begins the default name."""
    values, problems = _gather(WorkerConfig, flags, environ, default_file)
    device, role = values.get("device", "cpu"), values.get("role", "worker")
    suffix = (device if role == "worker" else role).replace(":", "")
    host = name_of(hostname or platform.node(), most=48) or "worker"
    values.setdefault("name", f"{host}-{suffix}")
    values.setdefault("state_dir", state_directory(f"worker-{values['name']}", environ))
    config = WorkerConfig(**values)
    for address in config.coordinator:
        if isinstance(address, Address) and address.port == 0:
            problems["coordinator"] = f"coordinator: must name a port, not {address}"
    problems |= _bad_hosts(config.advertise, many=False)
    if config.role == "server" and config.device != "cpu":
        problems["device"] = f'device: must be "cpu" for a parameter server, not "{config.device}"'
    _raise_if_any(problems)
    return config


def _gather(
    settings: type, flags: Mapping[str, object], environ: Mapping[str, str], default_file: Path
) -> tuple[dict[str, Any], dict[str, str]]:
    """The values that were given, converted, and the faults of the others, by key."""
    known = fields_of(settings)
    from_file, problems = _from_file(flags, environ, default_file, known)
    values: dict[str, Any] = {}
    for name, info in known.items():
        variable = f"DTD_{name.upper()}"
        origin = from_file.get(name)
        if environ.get(variable):
            origin = _Origin(environ[variable], variable, is_text=True)
        if flags.get(name) is not None:
            origin = _Origin(flags[name], f"--{name.replace('_', '-')}", is_text=True)
        if origin is None:
            continue
        try:
            values[name] = _read(info, origin.value, is_text=origin.is_text)
        except UsageError as error:
            problems[name] = f"{origin.place}: {error.message}"
    return values, problems


def _from_file(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    default_file: Path,
    known: Mapping[str, FieldInfo],
) -> tuple[dict[str, _Origin], dict[str, str]]:
    named = flags.get("config") or environ.get("DTD_CONFIG")
    path = Path(str(named)) if named else default_file
    try:
        text = read_text(path, limit_bytes=_LIMIT_BYTES)
        raw = tomllib.loads(text)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not named:
            return {}, {}
        return {}, {"config": f"{path}: cannot be read: {error.strerror or error}"}
    except CONTENT_ERRORS as error:
        return {}, {"config": f"{path}: {content_fault(error)}"}
    lines = key_lines(text)

    def place(key: str) -> str:
        return f"{path}: line {lines[(key,)]}: {key}" if (key,) in lines else f"{path}: {key}"

    problems = {
        key: f"{place(key)}: unknown key{did_you_mean(key, known)}"
        for key in raw
        if key not in known
    }
    origins = {
        key: _Origin(value, place(key), is_text=False) for key, value in raw.items() if key in known
    }
    return origins, problems


def _read(info: FieldInfo, value: object, *, is_text: bool) -> Any:
    """The value of a field.

    Raises:
        UsageError: it is none; the message is a clause.
    """
    kind = without_none(info.hint)
    if kind in (ENDPOINTS, NAMES):
        return _read_several(info, kind, value)
    if kind in _READERS:
        if isinstance(value, kind):
            return value
        if not isinstance(value, str) or not value:
            raise UsageError(f"must be a string, not {shown(value)}")
        return _READERS[kind](value)
    if is_text and isinstance(value, str) and info.hint in (int, float):
        with contextlib.suppress(ValueError):
            value = info.hint(value)
    _check(fault(info.hint, info.rule, value))
    return float(value) if info.hint is float else value  # type: ignore[arg-type]


def _check(text: str) -> None:
    if text:
        raise UsageError(text)


def _read_several(info: FieldInfo, kind: object, value: object) -> tuple[Any, ...]:
    """Addresses or names as text with commas between, or as an array of texts."""
    words: object = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not (words or kind == NAMES):
        raise UsageError(f"must be a string or an array of strings, not {shown(value)}")
    found = [word.strip() if isinstance(word, str) else word for word in words]
    if kind == ENDPOINTS:
        return tuple(parse_endpoint(str(word)) for word in found)
    for word in found:
        _check(fault(str, info.rule, word))
    return tuple(found)


def _read_path(text: str) -> Path:
    if not text.isprintable():
        raise UsageError(f"must be a path without control characters, not {shown(text)}")
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError:
        raise UsageError(f"names an unknown user: {shown(text)}") from None


_READERS: Final[Mapping[Any, Callable[[str], object]]] = {Address: Address.parse, Path: _read_path}


def _bad_hosts(advertise: str, *, many: bool) -> dict[str, str]:
    words = [word.strip() for word in advertise.split(",")] if many else [advertise]
    for word in words if advertise else ():
        if not is_host(word):
            try:
                Address.parse(word)
            except UsageError as error:
                return {"advertise": f"advertise: {error.message}, and is not a host name alone"}
    return {}


def _raise_if_any(problems: Mapping[str, str]) -> None:
    if problems:
        lines = "\n".join(f"  {problem}" for problem in problems.values())
        raise ConfigError(f"{counted(len(problems), 'problem')} in the settings\n{lines}")
