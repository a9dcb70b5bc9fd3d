"""The page's copy of the coordinator's events, run by node against a coordinator's pages."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

MODULES = """
globalThis.localStorage = { getItem: () => "" };
const OLDEST = 201, NEWEST = 1500;
const cut = { rows: 500 };  // what fits into a page by its size
globalThis.fetch = async (path) => {
  const after = Number(new URLSearchParams(path.split("?")[1]).get("after") ?? 0);
  const from = after ? Math.max(after + 1, OLDEST) : NEWEST - cut.rows + 1;
  const length = Math.max(0, Math.min(cut.rows, NEWEST - from + 1));
  const events = Array.from({ length }, (_, at) => ({ seq: from + at }));
  return { ok: true, json: async () => ({ events, next: events.at(-1)?.seq ?? after }) };
};
const { events, hasOlder, readEvents, readOlder } = await import("./incidents/eventlog.js");
const shown = () => [events()[0].seq, events().at(-1).seq, events().length, hasOlder()];
"""
pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="needs node")


def test_the_newest_events_come_first_and_older_ones_when_asked_for(evaluate: Any) -> None:
    assert evaluate(
        "await (async () => { await readEvents(); const seen = [shown()];"
        " while (await readOlder()) seen.push(shown()); return [...seen, shown()]; })()"
    ) == [
        [1001, 1500, 500, True],
        [501, 1500, 1000, True],
        [201, 1500, 1300, True],
        [201, 1500, 1300, False],  # the coordinator keeps no more
    ]


def test_a_page_that_is_cut_short_leaves_no_gap(evaluate: Any) -> None:
    assert evaluate(
        "await (async () => { await readEvents(); cut.rows = 30; await readOlder();"
        " const found = events().map((one) => one.seq);"
        " return [found[0], found.every((one, at) => !at || one === found[at - 1] + 1)]; })()"
    ) == [501, True]
