"""Names: one grammar, the same wherever one is made or received."""

from __future__ import annotations

import re

import pytest

from dtd.config import WorkerConfig
from dtd.job.tables import JobTable
from dtd.rules import fields_of
from dtd.text.names import NAME, is_name


@pytest.mark.parametrize("text", ["w", "0", "gpu-a.example_1", "x" * 64])
def test_a_name(text: str) -> None:
    assert is_name(text)


@pytest.mark.parametrize(
    "text",
    ["", "-w", ".w", "_w", "a b", "a/b", "a\n", "a\nb", "ä", "a\x1b[2J", "x" * 65, "a\u202eb"],
)
def test_no_name(text: str) -> None:
    assert not is_name(text)


@pytest.mark.parametrize("settings", [JobTable, WorkerConfig])
def test_job_files_and_settings_have_the_same_grammar(settings: type) -> None:
    assert fields_of(settings)["name"].rule.pattern == NAME
    assert re.fullmatch(NAME, "x" * 64)
