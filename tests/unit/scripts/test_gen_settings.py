"""docs/settings.md: equal to what the dataclasses say, and the flags that it names exist."""

from __future__ import annotations

import re

import pytest

from dtd.config import CoordinatorConfig, WorkerConfig
from dtd.coordinator import main as coordinator
from dtd.rules import fields_of
from dtd.worker import main as worker
from scripts import gen_settings


def test_the_page_is_up_to_date():
    assert gen_settings.PAGE.read_text("utf-8") == gen_settings.render()


@pytest.mark.parametrize(
    ("program", "table"), [(coordinator, CoordinatorConfig), (worker, WorkerConfig)]
)
def test_every_setting_has_its_flag(program, table, capsys):
    with pytest.raises(SystemExit):
        program._parse(["--help"])
    flags = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    assert {f"--{name.replace('_', '-')}" for name in fields_of(table)} <= flags
