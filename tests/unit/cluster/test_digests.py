"""When replicas that differ are no chance any more."""

from __future__ import annotations

from dtd.cluster.digests import MAX_DIVERGENCES, Divergence, noted, remembered, why_hopeless


def run(*points: tuple[int, str]) -> list[str]:
    known: list[Divergence] = []
    verdicts = []
    for generation, point in enumerate(points, 1):
        known = noted(known, Divergence(generation, *point))
        verdicts.append(why_hopeless(known))
    return verdicts


def test_the_same_entry_at_the_same_step_twice_is_no_chance() -> None:
    assert run((50, "model.d"), (50, "model.d")) == [
        "",
        "replicas differ again after step 50, again in model.d",
    ]


def test_what_differs_may_be_unknown() -> None:
    assert run((50, ""), (50, ""))[1] == "replicas differ again after step 50"


def test_bits_that_flip_at_different_points_are_chance() -> None:
    assert not any(run((50, "model.w"), (100, "model.w"), (150, "model.w"), (200, "model.w")))
    assert not any(run((50, "model.w"), (50, "model.b")))


def test_what_was_passed_does_not_count() -> None:
    assert not any(run((50, "model.w"), (100, "model.b"), (50, "model.w")))
    assert not any(run((50, "model.w"), (100, "model.b"), (51, "model.w")))


def test_differing_without_end_is_no_chance_whatever_differs() -> None:
    verdicts = run(*((50, f"model.{number}") for number in range(MAX_DIVERGENCES)))
    assert verdicts[-1] == "replicas have differed 4 times, the last time after step 50"
    assert not any(verdicts[:-1])


def test_members_of_one_generation_report_one_divergence() -> None:
    """Also to a coordinator that has just started, and knows it from its store."""
    known = remembered([[3, 50, ""]])
    for entry in ("model.w", "", "model.w"):
        known = noted(known, Divergence(3, 50, entry))
        assert why_hopeless(known) == ""
    assert known == [Divergence(3, 50, "model.w")]
    assert why_hopeless(noted(known, Divergence(4, 50, "model.w")))
