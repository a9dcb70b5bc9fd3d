"""Tests that boot hosts: all of them are marked `system`, and skipped where none can be booted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.host import why_not

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.system)


@pytest.fixture(scope="session", autouse=True)
def hosts_can_be_booted() -> None:
    reason = why_not()
    if reason:
        pytest.skip(reason)
