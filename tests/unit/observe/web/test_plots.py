"""The page's script prepares series for its charts, run by the interpreter that is here."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

MODULES = """
const { best, known, smoothed, thinned, withGaps } = await import("./figures/points.js");
const { Curves } = await import("./figures/curves.js");
const at = (step) => [step, step, 1, step, step, step];
"""
pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="needs node")


def test_a_line_has_a_gap_where_nothing_was_reported(evaluate: Any) -> None:
    drawn = evaluate("withGaps([1, 2, 3, 4, 30, 31].map(at)).map((point) => point[4])")
    assert drawn == [1, 2, 3, 4, None, 30, 31]


def test_what_rounding_leaves_is_not_drawn(evaluate: Any) -> None:
    assert evaluate("known({ points: [[1, 1, 1, 0.1 + 0.2, 0.1 + 0.2, 0.3]] })[0].slice(3)") == [
        0.3,
        0.3,
        0.3,
    ]


def test_smoothing_keeps_gaps_and_begins_at_the_first_value(evaluate: Any) -> None:
    assert evaluate("smoothed([4, null, 4, 1], 0)") == [4, None, 4, 1]
    first, gap, second, third = evaluate("smoothed([4, null, 4, 1], 0.5)")
    assert (first, gap, second) == (4, None, 4)
    assert third == pytest.approx((0.5 * 1 + 0.25 * 4 + 0.125 * 4) / 0.875)


def test_the_best_value_is_the_extreme_of_a_stretch(evaluate: Any) -> None:
    points = "[[1, 1, 1, 3, 3, 3], [2, 5, 4, 1, 2, 9], [6, 6, 1, 4, 4, 4]]"
    assert evaluate(f"best({points}, true)") == [5, 1]
    assert evaluate(f"best({points}, false)") == [5, 9]
    assert evaluate("best([], true)") is None


def test_fewer_points_keep_sums_and_extremes(evaluate: Any) -> None:
    points = "[1, 2, 3, 4, 5].map(at)"
    assert evaluate(f"thinned({points}, 5).length") == 5
    assert evaluate(f"thinned({points}, 4)") == [
        [1, 2, 2, 1, 1.5, 2],
        [3, 4, 2, 3, 3.5, 4],
        [5, 5, 1, 5, 5, 5],
    ]


LOOKS = """await (async () => {
    const asked = [], steps = STEPS;
    const curves = new Curves(async (query) => {
        asked.push([query.from ?? null, query.points]);
        const newest = steps.shift();
        const all = Array.from({ length: newest }, (_, place) => at(place + 1));
        const points = all.filter((point) => point[0] >= (query.from ?? 0));
        return { steps: newest, series: [{ name: "loss", source: "", to: "", points }] };
    });
    while (steps.length) await curves.look();
    return [asked, curves.named("loss").points.map((point) => point[0])];
})()"""


def test_steps_that_were_lost_are_not_shown(evaluate: Any) -> None:
    asked, drawn = evaluate(LOOKS.replace("STEPS", "[9, 6, 6]"))
    assert [begin for begin, _points in asked] == [None, 9, None]
    assert drawn == [1, 2, 3, 4, 5, 6]


def test_new_steps_get_their_share_of_the_points(evaluate: Any) -> None:
    asked, drawn = evaluate(LOOKS.replace("STEPS", "[500, 600, 600, 700]"))
    assert asked == [[None, 300], [500, 300], [600, 50], [600, 1]]
    assert len(drawn) == 350


PLACES = """(() => {
    const curves = new Curves();
    const T = 1800000000;
    const series = (name, points) => ({ name, source: "", to: "", points });
    const point = (begin, end, ...figures) => [begin, end, end - begin + 1, ...figures];
    const times = [point(1, 1, T, T, T), point(2, 4, T + 1, T + 2, T + 3)];
    curves.series = [series("epoch", EPOCHS), series("unix_s", times)];
    return [curves.steps_per_epoch, [0, 1, 2.5, 4, 9].map(curves.seconds_of)];
})()"""


def test_where_a_step_lies_by_epoch_and_by_time(evaluate: Any) -> None:
    single = "[0, 0, 0, 1, 1, 1, 2].map((one, at) => point(at + 1, at + 1, one, one, one))"
    assert evaluate(PLACES.replace("EPOCHS", single)) == [3, [0, 0, 1.5, 3, 3]]
    stretch = "[point(1, 8, 0, 0.25, 1), point(9, 10, 1, 1, 1)]"
    assert evaluate(PLACES.replace("EPOCHS", stretch))[0] == 6
    assert evaluate(PLACES.replace("EPOCHS", "[point(1, 8, 0, 0, 0)]"))[0] is None
