"""The pieces of a report, and its HTML and Markdown from the templates beside this file.

The HTML is one file: no script, nothing from elsewhere, light and dark, printable.  In Markdown,
for a repository or a terminal, curves are lines of characters.  The templates escape every text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import jinja2
from markupsafe import Markup, escape

from dtd.observe.step_parts import OTHER, STEP_PARTS, stylesheet


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph; `...` in it is code."""

    kind: ClassVar = "text"
    text: str


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list of sentences."""

    kind: ClassVar = "bullets"
    items: Sequence[str]


@dataclass(frozen=True, slots=True)
class Tiles:
    """A few figures that are seen first: (name, value)."""

    kind: ClassVar = "tiles"
    items: Sequence[tuple[str, str]]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Columns; those from the number `numbers` on are figures."""

    kind: ClassVar = "table"
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: int = 1000


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture, and the same as lines of characters; `svg` is empty if nothing is to be seen."""

    kind: ClassVar = "chart"
    title: str
    svg: Markup
    lines: Sequence[str] = field(default=())


Block = Text | Bullets | Tiles | Table | Chart


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and the blocks below it."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A whole report."""

    title: str
    subtitle: str
    sections: Sequence[Section]


def to_html(document: Document) -> str:
    """The whole report as one file."""
    return _TEMPLATES.get_template("report.html").render(document=document)


def to_markdown(document: Document) -> str:
    """The whole report as one text."""
    return _TEMPLATES.get_template("report.md").render(document=document).rstrip() + "\n"


def to_svg(template: str, **values: Any) -> Markup:
    """A chart."""
    return Markup(_TEMPLATES.get_template(template).render(values))  # noqa: S704 - it has escaped them


_CODE: Final = re.compile(r"`([^`]+)`")
_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>#|~&])")


def _code(text: str) -> Markup:
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped here


def _breakable(value: str) -> Markup:
    """Allow a long value to break after a slash."""
    return escape(value).replace("/", Markup("/<wbr>"))


def _md(text: str) -> str:
    """Escape markup in a text of one line, except code in `...`."""
    parts = " ".join(text.split()).split("`")
    if len(parts) % 2 == 0:
        return _SPECIAL.sub(r"\\\1", "`".join(parts))
    return "`".join(
        _SPECIAL.sub(r"\\\1", part) if at % 2 == 0 else part for at, part in enumerate(parts)
    )


def _path(points: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("dtd.observe.report"),
        autoescape=jinja2.select_autoescape(("html", "svg")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"breakable": _breakable, "code": _code, "md": _md, "path": _path}
    made.filters["px"] = "{:.1f}".format
    made.globals |= {"parts": (*STEP_PARTS, OTHER), "part_colours": stylesheet()}
    return made


_TEMPLATES: Final = _environment()
