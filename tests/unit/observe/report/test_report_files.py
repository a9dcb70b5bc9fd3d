"""The files: well-formed, self-contained, and nothing in them that a peer could have put there."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest

from dtd.observe.report.charts import Line, line_chart
from dtd.observe.report.document import document_of
from dtd.observe.report.facts import facts_of
from dtd.observe.report.render import to_html, to_markdown
from tests.unit.observe.report.conftest import EVENTS, HOSTILE, details, metrics

VOID = {"meta", "br", "wbr"}


class Reader(HTMLParser):
    """Checks that every element ends, and collects what is there."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def page_of(facts, against=None) -> Reader:
    return Reader(to_html(document_of(facts, against, made="today")))


def test_a_page_shows_everything_and_loads_nothing(facts, alone) -> None:
    page = page_of(facts, alone)
    for heading in (
        *("Summary", "Convergence", "Throughput and scaling", "Where a step's time goes"),
        *("Communication", "Incidents", "Environment", "Configuration", "Model card"),
    ):
        assert heading in page.text
    for word in ("alone-2", "360/s", "80.0 %", "optimizer.lr", "0.25", "1,500 rows", "2.15.0"):
        assert word in page.text
    assert not page.seen & {"script", "img", "link", "iframe", "object", "a"}
    names = {name for name, _ in page.attributes}
    assert not names & {"src", "href", "style"}
    assert not any(name.startswith("on") for name in names)
    assert "default-src 'none'" in dict(page.attributes)["content"] or any(
        value and "default-src 'none'" in value for _, value in page.attributes
    )
    assert "url(" not in to_html(document_of(facts, alone, made="today"))


def test_the_result_is_said_in_words() -> None:
    result = {
        "replica_digests": {"w-0": "ab" * 16, "w-1": "ab" * 16},
        "metrics": {"accuracy": 0.5},
        "rows_missing": 0,
        "mean_step_s": 0.25,
    }
    text = page_of(facts_of(details(result=result), [metrics()], EVENTS)).text
    assert "2, all equal (abababab" in text
    assert "accuracy=0.5" in text
    assert "rows missing" in text
    assert "mean" not in text.split("Model card")[1].split("How these")[0]
    different = {"replica_digests": {"w-0": "ab", "w-1": "cd"}}
    odd = page_of(facts_of(details(result=different), [metrics()], EVENTS)).text
    assert "2, NOT equal: 2 different digests" in odd
    none = page_of(facts_of(details(result={"replica_digests": {}}), [metrics()], EVENTS)).text
    assert "replicas" not in none.split("Model card")[1]


def test_what_others_said_is_text(facts, untrained) -> None:
    for page in (page_of(facts), page_of(untrained)):
        assert "<script>alert(1)</script> & x | *y*" in page.text
        assert "script" not in page.seen
    markdown = to_markdown(document_of(facts, None, made="today"))
    assert "<script>" not in markdown
    assert r"\<script\>alert(1)\</script\> \& `x` \| \*y\*" in markdown


# --- charts ----------------------------------------------------------------------------------


def line(*values: float, name: str = "x") -> Line:
    return Line(name=name, points=[(at, v, v, v) for at, v in enumerate(values, 1)])


@pytest.mark.parametrize(
    "lines",
    [
        [line(1.0)],
        [line(0.0, 0.0)],
        [line(-5.0, 5.0)],
        [line(1e-9, 1e9)],
        [line(1.0, 1.0, 1.0)],
        [line(float("inf"), 1.0, float("nan"))],
        [line(*range(1, 200)), line(3.0, name=HOSTILE)],
    ],
)
def test_any_values_make_a_chart(lines) -> None:
    svg = line_chart(
        lines, title=HOSTILE, y_label=HOSTILE, marks=[(1.5, HOSTILE), (900.0, "outside")]
    )
    root = ET.fromstring(svg)
    numbers = re.findall(r"-?[0-9.]+(?:e-?[0-9]+)?|nan|inf", re.sub(r"<text.*?</text>", "", svg))
    assert "nan" not in numbers
    assert "inf" not in numbers
    assert root.attrib["aria-label"] == HOSTILE
    assert "outside" not in svg
