"""Names of models, versions and aliases."""

from __future__ import annotations

import pytest

from dtd.errors import RequestRefused, UsageError
from dtd.registry.names import check_alias, check_name, parse_reference, resolved, version_id

ALIASES = {"production": 2}


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("digits", ("digits", "")),
        ("digits@3", ("digits", "3")),
        ("digits@production", ("digits", "production")),
    ],
)
def test_references(text: str, read: tuple[str, str]) -> None:
    assert parse_reference(text) == read


@pytest.mark.parametrize("text", ["", "@", "digits@", "@3", "a b", "a@b@c", "../x"])
def test_what_is_no_reference(text: str) -> None:
    with pytest.raises(UsageError, match="names no model"):
        parse_reference(text)


def test_which_version_is_meant() -> None:
    assert resolved("digits", "", [3, 1, 2], ALIASES) == 3
    assert resolved("digits", "1", [3, 1, 2], ALIASES) == 1
    assert resolved("digits", "production", [3, 1, 2], ALIASES) == 2
    with pytest.raises(RequestRefused, match="no version 4") as said:
        resolved("digits", "4", [3, 1, 2], ALIASES)
    assert said.value.remedy == "its versions: 1, 2, 3"
    with pytest.raises(RequestRefused, match='did you mean "production"'):
        resolved("digits", "prodution", [3, 1, 2], ALIASES)


def test_new_names() -> None:
    check_name("digits-2.1", "a model")
    check_alias("production")
    with pytest.raises(RequestRefused, match="is not a name of a model"):
        check_name("a/b", "a model")
    with pytest.raises(RequestRefused, match="taken for the number"):
        check_alias("7")


def test_ids_of_different_stores_differ() -> None:
    ids = {
        version_id("s", 1, "m", 1),
        version_id("s", 2, "m", 1),
        version_id("t", 1, "m", 1),
        version_id("s", 1, "m", 2),
    }
    assert len(ids) == 4
    assert all(one.startswith("m.v") for one in ids)
