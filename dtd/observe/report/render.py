"""The pieces of a report, and their looks as HTML and as Markdown.

The HTML is one file: no script, nothing from elsewhere, light and dark, printable.  In Markdown,
for a repository or a terminal, curves are lines of characters.  Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list of sentences."""

    items: Sequence[str]


@dataclass(frozen=True, slots=True)
class Tiles:
    """A few figures that are seen first: (name, value)."""

    items: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Code:
    """A line to type."""

    line: str


@dataclass(frozen=True, slots=True)
class Table:
    """Columns; those from the number `numbers` on are figures."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: int = 1000


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture, and the same as lines of characters; `svg` is empty if nothing is to be seen."""

    title: str
    svg: str
    lines: Sequence[str] = field(default=())


Block = Text | Bullets | Tiles | Code | Table | Chart


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


_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_SHORT_CELL: Final = 24
"""Cells of so few characters stay on one line."""

_HTML_CODE: Final = re.compile(r"`([^`]+)`")
_STYLE: Final = """
:root{--bg:#fcfcfd;--fg:#1c2430;--soft:#5d6878;--rule:#e2e6ec;--card:#fff;--mark:#b4232f;
--c0:#1b6ca8;--c1:#d97706;--c2:#b4232f;--c3:#2f8f5b;--c4:#7c8798}
@media (prefers-color-scheme:dark){:root{--bg:#12161c;--fg:#e6eaf0;--soft:#9aa6b5;--rule:#2a323d;
--card:#1a2029;--mark:#ff7b84;--c0:#5aa9e6;--c1:#f2a541;--c2:#ff7b84;--c3:#5cc48d;--c4:#8b98a9}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.55 system-ui,-apple-system,
"Segoe UI",Roboto,"Noto Sans","DejaVu Sans",sans-serif}
main{max-width:860px;margin:0 auto;padding:40px 20px 64px}
h1{font-size:30px;line-height:1.2;margin:0;overflow-wrap:anywhere}
h2{font-size:19px;margin:44px 0 14px;padding-top:14px;border-top:1px solid var(--rule)}
h3{font-size:14px;font-weight:600;margin:22px 0 4px}
.sub{color:var(--soft);margin:6px 0 0}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:10px;
margin:16px 0}
.tile{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:10px 12px}
.tile dt{color:var(--soft);font-size:12.5px}
.tile dd{margin:2px 0 0;font-size:18px;font-weight:600;overflow-wrap:anywhere;
font-variant-numeric:tabular-nums}
ul{padding-left:20px;margin:12px 0}li{margin:5px 0}
.wide{overflow-x:auto;margin:12px 0}
table{border-collapse:collapse;font-size:13.5px;min-width:50%}
th{text-align:left;color:var(--soft);font-weight:500;white-space:nowrap}
th,td{padding:5px 14px 5px 0;border-bottom:1px solid var(--rule);vertical-align:top;
overflow-wrap:anywhere}
td:not(.s):not(.n){min-width:16ch}
.s{white-space:nowrap}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
code,pre{font:13px/1.5 ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace}
pre{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:10px 12px;
overflow-x:auto}
figure{margin:14px 0 22px}figcaption{font-size:14px;font-weight:600;margin-bottom:6px}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--soft);font-size:11.5px;font-family:inherit}
svg .label{fill:var(--fg)}
.grid{stroke:var(--rule)}.mark{stroke:var(--mark);stroke-width:1.2;stroke-dasharray:2 3}
.line{fill:none;stroke-width:1.7;stroke-linejoin:round}.dashed{stroke-dasharray:5 4}
.band{opacity:.22}
.f0{fill:var(--c0)}.f1{fill:var(--c1)}.f2{fill:var(--c2)}.f3{fill:var(--c3)}.f4{fill:var(--c4)}
.s0{stroke:var(--c0)}.s1{stroke:var(--c1)}.s2{stroke:var(--c2)}.s3{stroke:var(--c3)}
.s4{stroke:var(--c4)}
@media (max-width:560px){svg text{font-size:17px}}
@media print{:root{--bg:#fff;--fg:#000;--soft:#444;--rule:#ccc;--card:#fff;--mark:#b4232f;
--c0:#1b6ca8;--c1:#d97706;--c2:#b4232f;--c3:#2f8f5b;--c4:#7c8798}
main{max-width:none;padding:0}figure,table,.tile{break-inside:avoid}h2{break-after:avoid}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
"""


def to_html(document: Document) -> str:
    """The whole report as one file."""
    title = escape(document.title)
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{title}</title><style>{_STYLE}</style></head><body><main>",
            f'<header><h1>{title}</h1><p class="sub">{escape(document.subtitle)}</p></header>',
            *(line for section in document.sections for line in _html_section(section)),
            "</main></body></html>",
            "",
        ]
    )


def _html_section(section: Section) -> Iterator[str]:
    yield f"<section><h2>{escape(section.title)}</h2>"
    for block in section.blocks:
        yield from _html_block(block)
    yield "</section>"


def _html_block(block: Block) -> Iterator[str]:
    if isinstance(block, Text):
        yield f"<p>{_html_text(block.text)}</p>"
    elif isinstance(block, Bullets):
        yield f"<ul>{''.join(f'<li>{_html_text(item)}</li>' for item in block.items)}</ul>"
    elif isinstance(block, Code):
        yield f"<pre>{escape(block.line)}</pre>"
    elif isinstance(block, Table):
        yield from _html_table(block)
    elif isinstance(block, Chart):
        yield f"<figure><figcaption>{escape(block.title)}</figcaption>{block.svg}</figure>"
    else:
        tiles = (
            f'<div class="tile"><dt>{escape(name)}</dt><dd>{_breakable(value)}</dd></div>'
            for name, value in block.items
        )
        yield f'<dl class="tiles">{"".join(tiles)}</dl>'


def _html_table(table: Table) -> Iterator[str]:
    yield '<div class="wide"><table>'
    if any(table.headings):
        yield f"<thead><tr>{_html_cells('th', table.headings, table.numbers)}</tr></thead>"
    yield "<tbody>"
    for row in table.rows:
        yield f"<tr>{_html_cells('td', row, table.numbers)}</tr>"
    yield "</tbody></table></div>"


def _html_cells(tag: str, cells: Sequence[str], numbers: int) -> str:
    found = []
    for at, cell in enumerate(cells):
        short = ' class="s"' if len(cell) <= _SHORT_CELL else ""
        kind = ' class="n"' if at >= numbers else short
        found.append(f"<{tag}{kind}>{_html_text(cell)}</{tag}>")
    return "".join(found)


def _html_text(text: str) -> str:
    """Escape text; `...` becomes code."""
    return _HTML_CODE.sub(r"<code>\1</code>", escape(text))


def _breakable(value: str) -> str:
    """Allow a long value to break after a slash."""
    return escape(value).replace("/", "/<wbr/>")


_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>#|~&])")
_MOST_FENCE: Final = "```"


def to_markdown(document: Document) -> str:
    """The whole report as one text."""
    lines = [f"# {_md_plain(document.title)}", "", _md_plain(document.subtitle), ""]
    for section in document.sections:
        lines += [f"## {_md_plain(section.title)}", ""]
        for block in section.blocks:
            shown = list(_md_block(block))
            lines += [*shown, ""] if shown else []
    return "\n".join(lines).rstrip() + "\n"


def _md_block(block: Block) -> Iterator[str]:
    if isinstance(block, Text):
        yield _md_plain(block.text)
    elif isinstance(block, Bullets):
        yield from (f"- {_md_plain(item)}" for item in block.items)
    elif isinstance(block, Code):
        yield from (_MOST_FENCE, block.line, _MOST_FENCE)
    elif isinstance(block, Table):
        yield from _md_table(block.headings, block.rows, block.numbers)
    elif isinstance(block, Chart):
        if block.lines:
            yield from (
                f"{_md_plain(block.title)}:",
                "",
                _MOST_FENCE,
                *block.lines,
                _MOST_FENCE,
            )
    else:
        yield from _md_table(("", ""), block.items, 1)


def _md_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: int
) -> Iterator[str]:
    yield _md_row(headings)
    yield "|" + "|".join("--:" if at >= numbers else "---" for at in range(len(headings))) + "|"
    yield from map(_md_row, rows)


def _md_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_md_plain, cells)) + " |"


def _md_plain(text: str) -> str:
    """Escape markup in a text of one line, except code in `...`."""
    parts = " ".join(text.split()).split("`")
    if len(parts) % 2 == 0:
        return _SPECIAL.sub(r"\\\1", "`".join(parts))
    return "`".join(
        _SPECIAL.sub(r"\\\1", part) if at % 2 == 0 else part for at, part in enumerate(parts)
    )
