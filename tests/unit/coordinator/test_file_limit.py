"""The coordinator opens as many files as the system lets it."""

from __future__ import annotations

import resource
import sys

import pytest

from dtd.coordinator.process_limits import MOST_FILES, allowed_files, raise_file_limit
from scripts.cluster.processes import Child, stop_all

ASKING = (
    "from dtd.coordinator.process_limits import *;"
    " raise_file_limit(); print(allowed_files(), end='')"
)


@pytest.mark.parametrize(("soft", "hard"), [(256, 512), (256, 256)])
def test_the_soft_limit_becomes_the_hard_one(tmp_path, soft, hard):
    command = ["/usr/bin/prlimit", f"--nofile={soft}:{hard}", sys.executable, "-c", ASKING]
    child = Child("asking", command, tmp_path / "log")
    child.start()
    assert child.wait(30) == 0
    stop_all([child])
    assert (tmp_path / "log").read_text() == str(hard)


def test_no_limit_is_taken_for_enough(monkeypatch):
    endless = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _what: endless)
    monkeypatch.setattr(resource, "setrlimit", lambda *_what: pytest.fail("nothing is to be set"))
    raise_file_limit()
    assert allowed_files() == MOST_FILES
