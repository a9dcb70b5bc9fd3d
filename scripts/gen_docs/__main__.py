"""Write the generated parts of the documentation; a test keeps them equal to the code.

python -m scripts.gen_docs              # all pages
python -m scripts.gen_docs events       # some of them
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scripts import markdown
from scripts.gen_docs import catalogues, events, fields, protocol

WRITER: Final = "scripts/gen_docs"
_ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page of the documentation.

    Attributes:
        place: path within the repository.
        renewed: the page's text from the text that it has now.
    """

    place: str
    renewed: Callable[[str], str]

    @property
    def path(self) -> Path:
        return _ROOT / self.place

    def is_current(self) -> bool:
        """Whether writing the page would change nothing."""
        text = self.path.read_text("utf-8")
        return self.renewed(text) == text

    def write(self) -> None:
        self.path.write_text(self.renewed(self.path.read_text("utf-8")), "utf-8")


def _whole(place: str, render: Callable[[], str]) -> Page:
    """A page all of which is written from the code."""
    return Page(place=place, renewed=lambda _text: render())


def _marked(place: str, mark: str, table: Callable[[], str]) -> Page:
    """A page written by people, with a table between two marks."""

    def renewed(text: str) -> str:
        return markdown.replaced(text, mark, WRITER, table())

    return Page(place=place, renewed=renewed)


PAGES: Final[Mapping[str, Page]] = {
    "events": _whole("docs/events.md", events.render),
    "job-file": _whole("docs/job-file.md", fields.job_file),
    "settings": _whole("docs/settings.md", fields.settings),
    "metrics": _marked("docs/metrics.md", "metrics", catalogues.metrics),
    "troubles": _marked("docs/operations.md", "troubles", catalogues.troubles_table),
    "transitions": _whole("docs/transitions.md", catalogues.transitions),
    "protocol": Page(place="protocol.md", renewed=protocol.renewed),
    "examples": Page(place="tests/protocol_examples.jsonl", renewed=protocol.examples),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages that are named, or all."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.gen_docs",
        description="Write the parts of the documentation that the code knows.",
    )
    parser.add_argument(
        "pages", nargs="*", choices=[*PAGES, []], metavar="PAGE", help=f"of {', '.join(PAGES)}"
    )
    options = parser.parse_args(arguments)
    for name in options.pages or PAGES:
        PAGES[name].write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
