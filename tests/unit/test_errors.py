"""The tree of exceptions: whose fault, which exit code, and how each speaks."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from dtd import errors
from dtd.errors import DtdError, ErrorCode, JobSpecError

CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, DtdError)
]
DTD = Path(errors.__file__).parent


@pytest.mark.parametrize(
    ("problems", "head"), [(("line 3: x",), "1 problem\n"), (("a", "b"), "2 problems\n")]
)
def test_job_spec_error_lists_every_problem(problems: tuple[str, ...], head: str) -> None:
    error = JobSpecError("job.toml", problems)
    assert str(error) == f"job.toml: {head}" + "\n".join(f"  {problem}" for problem in problems)
    assert (error.source, error.problems) == ("job.toml", problems)


def test_codes_are_consecutive_and_fit_the_wire() -> None:
    assert sorted(ErrorCode) == list(range(1, len(ErrorCode) + 1))


def test_exit_codes_are_those_promised_to_scripts() -> None:
    exits = {cls.__name__: cls.exit_code for cls in CLASSES if cls.exit_code != 1}
    assert exits == {
        "UsageError": 2,
        "JobSpecError": 2,
        "ConfigError": 78,
        "StoreDamaged": 78,
        "CoordinatorUnreachable": 3,
        "JobFailed": 4,
    }


def test_every_exception_of_dtd_is_in_the_tree() -> None:
    """No other module defines exceptions, so that one `except DtdError` is enough.

    An AssertionError says that dtd itself is broken; nobody catches it.
    """
    made = re.compile(r"^ *class \w+\(.*\b(?!AssertionError)\w+(?:Error|Exception)\)", re.MULTILINE)
    found = {path: made.findall(path.read_text()) for path in DTD.rglob("*.py")}
    assert {path.name for path, classes in found.items() if classes} == {"errors.py"}
