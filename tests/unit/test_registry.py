"""Names of models, versions and aliases; cards, whose form nobody's text can change."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.errors import UsageError
from dtd.job import parse_job, to_mapping
from dtd.registry import card, parse_reference, plain


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


# --- cards ---------------------------------------------------------------------------------------

SPEC = to_mapping(
    parse_job(
        '[job]\nname="digits"\ntask="digits"\nepochs=1\nglobal_batch_size=64\n[task]\nwidth=8\n',
        source="test",
    )
)


def version(**changed: Any) -> dict[str, Any]:
    record = {
        "job": "digits-1",
        "step": 20,
        "generation": 3,
        "digest": "ab",
        "confirmation": "verified",
        "metrics": {"accuracy": 0.9375, "loss": None},
        "task": "digits",
        "spec": SPEC,
        "package": "",
        "dataset_rows": 100,
        "dataset_fingerprint": "f|f",
        "environment": {"torch": "2.14"},
        "registered_by": "operator/ann",
        "registered_s": 0.0,
    }
    made = {
        "name": "digits",
        "number": 2,
        "aliases": ["production"],
        "card": "Reads **digits**.\n",
        "files": [{"name": "model.safetensors", "size_bytes": 2048, "sha256": "cd"}],
        "record": record,
    }
    record |= changed.pop("record", {})
    return {**made, **changed}


def test_the_text_comes_first_and_the_record_follows() -> None:
    lines = card(version()).splitlines()
    assert lines[:5] == [
        "# digits, version 2 (production)",
        "",
        "Reads **digits**.",
        "",
        "## Record",
    ]
    assert "| registered | 1970-01-01 00:00 UTC by operator/ann |" in lines
    assert "| job | digits-1, step 20, generation 3 |" in lines
    assert "| state digest | ab (verified) |" in lines
    assert "| model.safetensors | sha256 cd, 2.0 KiB |" in lines
    assert "| data | 100 rows, fingerprint f\\|f |" in lines
    assert "| code package | none: built in, or installed on the workers |" in lines
    assert "| torch | 2.14 |" in lines
    assert "| accuracy | 0.9375 |" in lines
    assert "| loss | not finite |" in lines
    at = lines.index("## Settings that are not the default")
    assert lines[at + 4 :] == [
        "| job.name | digits |",
        "| job.task | digits |",
        "| job.epochs | 1 |",
        "| job.global\\_batch\\_size | 64 |",
        "| task.width | 8 |",
    ]


def test_what_others_wrote_stays_text() -> None:
    assert plain("a|b\n# <i>`x`\x1b[2J") == "a\\|b \\# \\<i\\>\\`x\\`\\\\x1b\\[2J"
