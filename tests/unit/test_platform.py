"""dtd says where it runs."""

from __future__ import annotations

import pytest

from dtd.errors import ConfigError
from dtd.places import require_linux


def test_linux_is_accepted() -> None:
    require_linux("linux")


def test_anything_else_is_refused_in_one_sentence() -> None:
    with pytest.raises(ConfigError, match="runs on Linux only, and this is darwin"):
        require_linux("darwin")
