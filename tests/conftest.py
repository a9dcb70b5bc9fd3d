"""Fixtures for all tests.

Property tests have no deadline per example: a busy machine is not a failure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import settings
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

settings.register_profile("dtd", deadline=None)
settings.load_profile("dtd")

_GROUPS = ("token", "tag", "models", "sweep")
"""Commands of which the second word is part of the name."""
_REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def check_output() -> Callable[[Sequence[str], str], None]:
    """Holds what a command line of dtdctl printed as JSON against docs/output.schema.json."""
    documents = _REPOSITORY / "docs"
    schemas = {
        name: json.loads((documents / name).read_text("utf-8"))
        for name in ("output.schema.json", "status.schema.json")
    }
    registry: Registry = Registry().with_resources(
        [(name, Resource.from_contents(schema)) for name, schema in schemas.items()]
    )

    def check(arguments: Sequence[str], printed: str) -> None:
        words = [word for word in arguments if word not in ("-o", "json")]
        command = " ".join(words[:2]) if words[0] in _GROUPS else words[0]
        schema = {"$ref": f"output.schema.json#/$defs/{command.replace(' ', '%20')}"}
        for line in printed.splitlines():
            Draft202012Validator(schema, registry=registry).validate(json.loads(line))

    return check
