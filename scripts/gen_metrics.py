"""Write the table of docs/metrics.md from the catalogue; the rest of the page stays as it is.

python -m scripts.gen_metrics [FILE]
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

from dtd.metrics.catalogue import METRICS

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"
_TABLE: Final = re.compile(r"^\| metric \|.*?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)


def table() -> str:
    """All metrics."""
    rows = ["| metric | type | labels | served by | meaning |", "|---|---|---|---|---|"]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        by = " and ".join(metric.served_by)
        rows.append(f"| `{metric.name}` | {metric.kind} | {labels} | {by} | {metric.meaning} |")
    return "\n".join(rows)


def render(text: str) -> str:
    """The page with its table brought up to date."""
    rendered, count = _TABLE.subn(lambda _: table(), text)
    if count != 1:
        raise SystemExit(f"{PAGE.name} has {count} tables of metrics, not one")
    return rendered


def main() -> None:
    """Rewrite the page in place, or into the given file."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    target.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
