"""A sweep: many trials of one job, each with other settings, as `SWEEP.toml` describes it.

    [sweep]   how trials are chosen and judged, and how many there are
    [space]   which settings of the job vary, and over what
    [base]    the tables of a job file (`dtdctl sweep` also reads them from `job = "JOB.toml"`)

Checked as a whole before anything is submitted: each setting must be one of a job file, and the
ends of each range, and each choice, must make a valid job.  Pure.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from dtd.errors import JobSpecError
from dtd.job.parse import (
    Problem,
    assign,
    default_settings,
    from_mapping,
    located,
    read_table,
    to_mapping,
)
from dtd.job.tables import MOST_WORKERS, RANGE, RANGE_WORDS, JobSpec, least_and_most
from dtd.rules import did_you_mean, fields_of, rule, setting
from dtd.text.names import NAME, NAME_WORDS
from dtd.text.shown import INTEGER_LIMIT, shown

MAX_TRIALS: Final = 1000
MAX_CHOICES: Final = 64
MAX_SETTINGS: Final = 32
MAX_DEPTH: Final = 8
MAX_STEPS: Final = 10**9
"""Values of a range with a step; a smaller step is as good as none."""
_RANGE: Final = ("low", "high", "log", "step", "choices")

Scalar = bool | int | float | str


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTable:
    """The choice and comparison of trials."""

    metric: str = field(metadata=rule("The evaluation metric by which trials are judged."))
    direction: Literal["minimize", "maximize"] = setting(
        "minimize", "Whether less of it is better, or more."
    )
    method: Literal["grid", "random", "tpe"] = setting(
        "tpe", "How settings are chosen: all combinations, at random, or by TPE."
    )
    trials: int = setting(20, "At most so many trials.", minimum=1, maximum=MAX_TRIALS)
    parallel: int = setting(1, "At most so many trials at once.", minimum=1, maximum=32)
    workers_per_trial: int | str = setting(
        0,
        '`elastic.workers` of each trial, such as 2, or "1-4" for trials that grow into idle'
        " workers; 0 = that of the job.",
        minimum=0,
        maximum=MOST_WORKERS,
        pattern=RANGE,
        wording=RANGE_WORDS,
    )
    seed: int = setting(0, "Makes the choice of settings repeatable.", minimum=0, maximum=2**31 - 1)
    pruner: Literal["none", "median", "asha"] = setting(
        "none", "Whether trials that do worse than others are cancelled early, and how."
    )
    warmup_evaluations: int = setting(
        1, "No trial is cancelled before so many evaluations.", minimum=0, maximum=1000
    )
    model: str = setting(
        "",
        "Name under which the best trial's weights are registered when the sweep is done;"
        " empty: they are not.",
        pattern=f"({NAME})?",
        wording=NAME_WORDS,
    )
    max_failures: int = setting(
        3, "The sweep stops after so many failures in a row.", minimum=1, maximum=1000
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting "table.key" that varies: choices, or a range of numbers, ends included.

    Attributes:
        log: whether the range is searched on a logarithmic scale.
        step: distance of the values in the range; 0: any.
        whole: whether the values are integers.
    """

    name: str
    choices: tuple[Scalar, ...] = ()
    low: float = 0
    high: float = 0
    log: bool = False
    step: float = 0
    whole: bool = False

    @property
    def count(self) -> int:
        """Return the number of values; 0 for a range that has no step."""
        if self.choices or not self.step:
            return len(self.choices)
        return math.floor((self.high - self.low) / self.step + 1e-9) + 1

    @property
    def grid(self) -> tuple[Scalar, ...]:
        """All values; empty for a range that has no step."""
        if self.choices or not self.step:
            return self.choices
        values = (self.low + index * self.step for index in range(self.count))
        return tuple(int(value) if self.whole else value for value in values)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSpec:
    """A valid sweep.

    Attributes:
        base: the job of which these settings vary, as a map of tables.
    """

    sweep: SweepTable
    space: tuple[Setting, ...]
    base: dict[str, Any]

    @property
    def trials(self) -> int:
        if self.sweep.method != "grid":
            return self.sweep.trials
        return min(self.sweep.trials, math.prod(one.count for one in self.space))

    def combination(self, number: int) -> dict[str, Scalar]:
        """The settings of a trial of a grid, counted from 0."""
        values = itertools.product(*(one.grid for one in self.space))
        chosen = next(itertools.islice(values, number, None))
        return dict(zip((one.name for one in self.space), chosen, strict=True))

    def job_of(self, name: str, params: Mapping[str, Scalar]) -> JobSpec:
        """The job of a trial.

        Raises:
            JobSpecError: these settings together make no valid job.
        """
        raw = with_settings(self.base, params)
        raw["job"]["name"] = name
        if self.sweep.workers_per_trial:
            workers = self.sweep.workers_per_trial
            raw.setdefault("elastic", {})["workers"] = workers
            needed, (least, _) = raw["elastic"].get("min_workers", 1), least_and_most(workers)
            raw["elastic"]["min_workers"] = min(needed, least)
        return from_mapping(raw, source=name)

    def to_mapping(self) -> dict[str, Any]:
        space = {one.name: _plain(one) for one in self.space}
        return {"sweep": asdict(self.sweep), "space": space, "base": self.base}


def read_sweep(mapping: object, *, source: str) -> SweepSpec:
    """Check a sweep.

    Raises:
        JobSpecError: with every problem.
    """
    if not isinstance(mapping, Mapping):
        raise JobSpecError(source, (f"must be a map of tables, not {shown(mapping)}",))
    faults = [
        f"[{name}]: unknown table" + did_you_mean(str(name), ("sweep", "space", "base"))
        for name in mapping
        if name not in ("sweep", "space", "base")
    ]
    given, table = mapping.get("sweep", {}), SweepTable(metric="loss")
    if isinstance(given, Mapping):
        problems: list[Problem] = []
        table = read_table("sweep", SweepTable, given, problems)
        faults += located(problems)
    else:
        faults.append(f"[sweep]: must be a table, not {shown(given)}")
    base = _read_base(mapping.get("base", {}), faults)
    space = _read_space(mapping.get("space", {}), base, faults)
    if base is not None and not faults:
        made = SweepSpec(sweep=table, space=space, base=to_mapping(base))
        faults += _conflicts(made)
    if faults:
        raise JobSpecError(source, tuple(faults))
    return made


def stored_sweep(mapping: Mapping[str, Any]) -> SweepSpec:
    """A sweep that was valid when `to_mapping` wrote it; it is not checked again."""
    known = fields_of(SweepTable)
    table = {key: value for key, value in mapping["sweep"].items() if key in known}
    space = tuple(_read_setting(name, values)[0] for name, values in mapping["space"].items())
    return SweepSpec(sweep=SweepTable(**table), space=space, base=mapping["base"])


def with_settings(base: Mapping[str, Any], params: Mapping[str, Scalar]) -> dict[str, Any]:
    """A job's map with other values of some settings, named "table.key"."""
    raw = copy.deepcopy(dict(base))
    for name, value in params.items():
        assign(raw, tuple(name.split(".")), value)
    return raw


def _read_base(given: object, faults: list[str]) -> JobSpec | None:
    try:
        return from_mapping(given, source="base")
    except JobSpecError as error:
        faults += (f"[base] {one}" for one in error.problems)
    return None


def _read_space(given: object, base: JobSpec | None, faults: list[str]) -> tuple[Setting, ...]:
    if not isinstance(given, Mapping) or not given:
        faults.append('[space]: must name at least one setting, such as "optimizer.lr"')
        return ()
    flat = dict(_flat(given))
    if len(flat) > MAX_SETTINGS:
        faults.append(f"[space]: at most {MAX_SETTINGS} settings may vary, not {len(flat)}")
        return ()
    space = []
    for name, values in flat.items():
        setting, why = _read_setting(name, values)
        within = next((one for one in flat if name.startswith(f"{one}.")), "")
        if not why and within:
            why = f"cannot vary beside {shown(within)}, which holds it"
        if not why and base is not None:
            why = _why_no_setting(setting, base)
        if why:
            faults.append(f"[space] {shown(name)}: {why}")
        space.append(setting)
    return tuple(space)


def _flat(given: Mapping[Any, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """The settings by dotted name, also where TOML made tables of it."""
    is_deep = before.count(".") >= MAX_DEPTH
    for key, value in given.items():
        name = f"{before}{key}"
        holds_tables = isinstance(value, Mapping) and any(
            isinstance(one, Mapping) for one in value.values()
        )
        if holds_tables and not is_deep:
            yield from _flat(value, f"{name}.")
        else:
            yield name, value


def _read_setting(name: str, given: object) -> tuple[Setting, str]:
    """The setting, and its faults."""
    none = Setting(name=name)
    if not isinstance(given, Mapping):
        return none, "must be { low = ..., high = ... } or { choices = [...] }"
    for key in given:
        if key not in _RANGE:
            return none, f"unknown key {shown(key)}{did_you_mean(str(key), _RANGE)}"
    if "choices" in given:
        return _read_choices(name, given)
    low: Any = given.get("low")
    high: Any = given.get("high")
    step: Any = given.get("step", 0)
    log = given.get("log", False)
    if not all(map(_is_number, (low, high, step))) or not isinstance(log, bool):
        return none, "low and high, and step if given, must be numbers; log is true or false"
    if not low < high or step < 0 or (log and (low <= 0 or step)):
        return none, "low must be below high; with log it is above 0, and there is no step"
    if not math.isfinite(high - low):
        return none, "low and high are too far apart"
    if step and not (high - low) / step < MAX_STEPS:
        return none, f"step gives more than {MAX_STEPS} values; remove it, and any value is taken"
    whole = all(type(one) is int for one in (low, high, step))
    step = step or int(whole and not log)
    made = Setting(name=name, low=low, high=high, log=log, step=step, whole=whole)
    return made, ""


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= INTEGER_LIMIT if isinstance(value, int) else math.isfinite(value)


def _read_choices(name: str, given: Mapping[str, Any]) -> tuple[Setting, str]:
    choices = given["choices"]
    if (
        len(given) > 1
        or not isinstance(choices, list | tuple)
        or not 1 <= len(choices) <= MAX_CHOICES
        or not all(isinstance(one, bool | int | float | str) for one in choices)
    ):
        return Setting(name=name), (
            f"choices must be a list of 1 to {MAX_CHOICES} numbers, texts, true or false, alone"
        )
    return Setting(name=name, choices=tuple(choices)), ""


def _why_no_setting(setting: Setting, base: JobSpec) -> str:
    """Why a job cannot have these values; empty if it can."""
    table, dot, _ = setting.name.partition(".")
    known = [*default_settings(), "job.steps", "job.global_batch_size"]
    if not dot or (table != "task" and setting.name not in known):
        return "is no setting of a job file" + did_you_mean(setting.name, known)
    if setting.name == "elastic.workers":
        return "does not vary in a sweep: set [sweep] workers_per_trial"
    for value in setting.choices or (_number(setting, setting.low), _number(setting, setting.high)):
        raw = to_mapping(base)
        if not assign(raw, tuple(setting.name.split(".")), value):
            return "is within a setting of the job that is no table"
        try:
            from_mapping(raw, source=setting.name)
        except JobSpecError as error:
            return f"{shown(value)} makes no valid job: {'; '.join(error.problems)}"
    return ""


def _number(setting: Setting, value: float) -> Scalar:
    return int(value) if setting.whole else float(value)


def _conflicts(spec: SweepSpec) -> Iterator[str]:
    if spec.sweep.method == "grid":
        for one in spec.space:
            if not one.count:
                yield f"[space] {one.name}: a grid takes choices, integers, or a range with a step"
            elif one.count > MAX_TRIALS:
                yield f"[space] {one.name}: a grid takes at most {MAX_TRIALS} values"
    try:
        spec.job_of("trial", {})
    except JobSpecError as error:
        yield f"[sweep] workers_per_trial: {'; '.join(error.problems)}"


def _plain(setting: Setting) -> dict[str, Any]:
    if setting.choices:
        return {"choices": list(setting.choices)}
    ends = {"low": _number(setting, setting.low), "high": _number(setting, setting.high)}
    return {**ends, "log": setting.log, **({"step": setting.step} if not setting.log else {})}
