"""A job file with all that it must have, and what is wrong with it."""

from __future__ import annotations

import pytest

from dtd.errors import JobSpecError
from dtd.job import parse_job

MINIMAL = """\
[job]
name = "first"
task = "digits"
epochs = 5
global_batch_size = 128
"""


def problems_of(text: str, *overrides: str) -> tuple[str, ...]:
    with pytest.raises(JobSpecError) as caught:
        parse_job(text, source="job.toml", overrides=overrides)
    return caught.value.problems
