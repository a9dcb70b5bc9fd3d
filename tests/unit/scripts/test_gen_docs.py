"""Generated pages equal the code, and the flags that they name exist."""

from __future__ import annotations

import dataclasses
import re

import pytest

from dtd.config import CoordinatorConfig, WorkerConfig
from dtd.coordinator import main as coordinator
from dtd.rules import fields_of
from dtd.worker import main as worker
from scripts.gen_docs import __main__ as gen_docs


@pytest.mark.parametrize("name", gen_docs.PAGES)
def test_the_page_is_up_to_date(name):
    assert gen_docs.PAGES[name].is_current(), f"run `python -m scripts.gen_docs {name}`"


def test_pages_that_are_named_are_written_and_no_others(tmp_path, monkeypatch):
    pages = {
        name: dataclasses.replace(page, place=str(tmp_path / name))
        for name, page in gen_docs.PAGES.items()
    }
    for name, page in pages.items():
        page.path.write_text("old" if name in ("events", "settings") else name)
    monkeypatch.setattr(gen_docs, "PAGES", pages)
    assert gen_docs.main(["settings"]) == 0
    assert pages["settings"].path.read_text().startswith("# Settings of the daemons")
    assert pages["events"].path.read_text() == "old"
    with pytest.raises(SystemExit):
        gen_docs.main(["unknown"])


@pytest.mark.parametrize(
    ("program", "table"), [(coordinator, CoordinatorConfig), (worker, WorkerConfig)]
)
def test_every_setting_has_its_flag(program, table, capsys):
    with pytest.raises(SystemExit):
        program._parse(["--help"])
    flags = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    assert {f"--{name.replace('_', '-')}" for name in fields_of(table)} <= flags
