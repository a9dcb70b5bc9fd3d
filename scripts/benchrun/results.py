"""Figures as JSON in docs/benchmarks: one file a subcommand, one record a case.

A later run replaces the records of the cases that it measured and keeps the others, so that a long
benchmark can be made in pieces.  Every record says on what it was measured.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from dtd.errors import DtdError

SCHEMA: Final = 1
DIRECTORY: Final = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
_DIGITS: Final = 5

Record = dict[str, Any]


def load(kind: str, directory: Path) -> list[Record]:
    """The records of one subcommand; empty when it was never run.

    Raises:
        DtdError: the file is of another schema.
    """
    path = directory / f"{kind}.json"
    if not path.exists():
        return []
    content = json.loads(path.read_text())
    if content.get("schema") != SCHEMA:
        raise DtdError(
            f"{path.name} has schema {content.get('schema')}, not {SCHEMA}",
            remedy=f"remove it and run scripts/bench {kind} again",
        )
    return list(content["records"])


def merge(old: Sequence[Record], new: Sequence[Record], key: Sequence[str]) -> list[Record]:
    """New records in place of old ones of the same case, the others kept, in a stable order."""
    cases = {_case(record, key): record for record in (*old, *new)}
    return [cases[case] for case in sorted(cases, key=str)]


def save(kind: str, records: Sequence[Record], key: Sequence[str], directory: Path) -> Path:
    """Add records to the file; one line each, so that changes can be read."""
    directory.mkdir(parents=True, exist_ok=True)
    merged = merge(load(kind, directory), records, key)
    lines = ",\n".join(_lines(merged))
    path = directory / f"{kind}.json"
    path.write_text(f'{{"schema": {SCHEMA}, "records": [\n{lines}\n]}}\n')
    return path


def keep(
    kind: str,
    records: Sequence[Record],
    key: Sequence[str],
    options: argparse.Namespace,
    line: str,
) -> None:
    """Save records where the options say, and tell them: this line, or each as JSON on its own."""
    save(kind, records, key, options.directory)
    if options.json:
        line = "\n".join(_lines(records))
    print(line, flush=True)


def rounded(value: Any) -> Any:
    """The same with numbers cut to what they are good for."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    return value


def _lines(records: Sequence[Record]) -> list[str]:
    return [json.dumps(rounded(record), sort_keys=True) for record in records]


def _case(record: Record, key: Sequence[str]) -> tuple[Any, ...]:
    return tuple(record[name] for name in key)
