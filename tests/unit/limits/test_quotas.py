"""Each worker's share of output, notices and figures; what exceeds it is counted and said."""

from __future__ import annotations

import pytest

from dtd.limits import quotas as bounds
from dtd.limits.quotas import CHECKPOINTS, FIGURES, LINES, NOTICES, Quotas, first_lines


def test_output_within_the_share_is_kept_as_it_is() -> None:
    quotas = Quotas(1000)
    assert quotas.lines("w", "a\nä\n".encode(), 0.0) == ["a", "ä", ""]
    assert quotas.lines("w", b"\xff", 0.0) == ["\N{REPLACEMENT CHARACTER}"]
    assert not quotas.dropped
    assert not quotas.is_marked("w")
    assert quotas.mark("w", 0.0) == ""
    assert quotas.look_again_at(0.0) is None
    assert list(quotas.to_tell(0.0)) == []


def test_five_mebibytes_of_empty_lines_are_a_few_thousand_and_a_mark() -> None:
    quotas = Quotas(1000)
    kept = [len(quotas.lines("w", b"\n" * 2**20, 0.0)) for _ in range(5)]
    assert kept == [4000, 0, 0, 0, 0]
    dropped = 5 * (2**20 + 1) - 4000
    assert quotas.dropped == {("w", LINES): dropped}
    assert quotas.is_marked("w")
    assert quotas.mark("w", 0.0) == f"... {dropped} lines dropped: more than 1000 a second"
    assert not quotas.is_marked("w")
    assert len(quotas.lines("w", b"\n" * 5000, 1.0)) == 1000
    assert len(quotas.lines("other", b"\n" * 999, 1.0)) == 1000


def test_bytes_are_bounded_as_well_as_lines() -> None:
    quotas = Quotas(1)
    long = b"x" * (bounds.MEAN_LINE_BYTES * 4)
    assert [len(line) for line in quotas.lines("w", long + b"\nmore", 0.0)] == [len(long)]
    assert quotas.dropped == {("w", LINES): 1}
    assert quotas.lines("w", b"more", 0.0) == []


def test_a_line_is_cut_where_it_is_too_long() -> None:
    quotas = Quotas(1000)
    (line,) = quotas.lines("w", b"x" * 2**20, 0.0)
    assert len(line) == bounds.LINE_BYTES


def test_lines_left_out_are_marked_so_often_only() -> None:
    quotas = Quotas(1)
    quotas.drop("w", LINES, 3)
    assert quotas.look_again_at(5.0) == 5.0
    assert quotas.mark("w", 5.0).startswith("... 3 lines dropped")
    list(quotas.to_tell(5.0))
    quotas.drop("w", LINES, 2)
    assert quotas.mark("w", 5.5) == ""
    assert quotas.look_again_at(5.5) == 5.0 + bounds.MARK_EVERY_S
    assert quotas.mark("w", 6.0).startswith("... 2 lines dropped")
    assert quotas.look_again_at(6.0) == 5.0 + bounds.TELL_EVERY_S


@pytest.mark.parametrize(
    ("kind", "burst"),
    [
        (NOTICES, bounds.NOTICES_BURST),
        (FIGURES, bounds.FIGURES_BURST),
        (CHECKPOINTS, bounds.CHECKPOINTS_BURST),
    ],
)
def test_notices_figures_and_checkpoints_have_rates_of_their_own(kind: str, burst: float) -> None:
    quotas = Quotas(1)
    heeded = [quotas.allows("w", kind, 0.0) for _ in range(int(burst) + 5)]
    assert heeded.count(True) == burst
    assert quotas.dropped == {("w", kind): 5}
    assert not quotas.is_marked("w")
    assert quotas.allows("w", kind, 1.0)
    other = NOTICES if kind == FIGURES else FIGURES
    assert quotas.allows("w", other, 0.0)


def test_an_operator_hears_of_it_once_a_minute() -> None:
    quotas = Quotas(1)
    quotas.drop("w", NOTICES, 2)
    quotas.drop("w", LINES, 3)
    assert list(quotas.to_tell(10.0)) == [("w", {NOTICES: 2, LINES: 3})]
    quotas.drop("w", NOTICES, 1)
    assert list(quotas.to_tell(11.0)) == []
    assert list(quotas.to_tell(10.0 + bounds.TELL_EVERY_S)) == [("w", {NOTICES: 1})]


def test_workers_of_long_ago_are_forgotten_with_their_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounds, "MAX_REPORTERS", 2)
    quotas = Quotas(1)
    for worker in "abc":
        quotas.drop(worker, LINES, 1)
    assert set(quotas.dropped) == {("b", LINES), ("c", LINES)}


def test_first_lines() -> None:
    assert first_lines(b"a\nb\nc", 2, 100) == [b"a", b"b"]
    assert first_lines(b"a\nb\nc", 9, 100) == [b"a", b"b", b"c"]
    assert first_lines(b"aa\nbb\ncc", 9, 3) == [b"aa", b"bb"]
    assert first_lines(b"a", 0, 100) == []
    assert first_lines(b"a", 1, 0) == []
