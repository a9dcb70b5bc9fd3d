"""Which workers are told to keep a copy of a version, and which count."""

from __future__ import annotations

from dtd.coordinator.services.model_copies import Copies
from dtd.engine.shards import WHOLE


def cluster(*workers: str, hosts: dict[str, str] | None = None) -> Copies:
    """Connected workers without any copy, each on a host of its own unless said otherwise."""
    made = Copies()
    for name in workers:
        made.arrived(name, (hosts or {}).get(name, name), ())
    return made


def want(copies: Copies, version: str = "v", count: int = 2, origin: str = "abc") -> None:
    copies.add(version, copies=count, origin=dict.fromkeys(origin, WHOLE))


def ordered(copies: Copies) -> list[str]:
    """The workers that are given a copy of "v"."""
    return [order.worker for order in copies.decide() if order.version == "v"]


def kept(copies: Copies, count: int) -> None:
    """Version "v" has as many copies as are asked for."""
    want(copies, count=count)
    while given := ordered(copies):
        assert all(copies.made("v", name) for name in given)


def test_the_first_copy_comes_alone_and_then_the_others() -> None:
    copies = cluster("a", "b", "c", "d")
    want(copies, count=3, origin="b")
    assert ordered(copies) == ["b"]  # which has the files
    assert ordered(copies) == []
    assert copies.made("v", "b")
    assert ordered(copies) == ["a", "c"]
    assert copies.made("v", "c")
    assert ordered(copies) == []
    told = copies.explain("v")
    assert (told["copies"], told["holders"], told["copying"]) == (3, ["b", "c"], ["a"])
    assert copies.held_by("c") == ("v",)


def test_a_disconnected_worker_keeps_its_copy_until_an_operator_asks_for_others() -> None:
    copies = cluster("a", "b", "c")
    kept(copies, 2)
    copies.left("b")
    assert ordered(copies) == []
    assert copies.explain("v")["connected"] == ["a"]
    assert copies.request("v") == ("b",)
    assert ordered(copies) == ["c"]
    copies.arrived("b", "b", ("v",))
    assert copies.made("v", "c")
    assert copies.holders("v") == ("a", "b", "c")


def test_what_fails_is_made_elsewhere_and_tried_again_when_an_operator_asks() -> None:
    copies = cluster("a", "b")
    want(copies, count=2)
    copies.failed("v", ordered(copies)[0], "no room")
    assert ordered(copies) == ["b"]
    assert copies.made("v", "b")
    assert ordered(copies) == []
    assert copies.explain("v")["failed"] == {"a": "no room"}
    copies.request("v")
    assert ordered(copies) == ["a"]


def test_a_version_that_is_deleted_goes_from_all_workers_that_are_there_or_come() -> None:
    copies = cluster("a", "b")
    kept(copies, 2)
    copies.left("b")
    assert copies.delete("v") == ["a"]
    assert copies.arrived("b", "b", ("v", "strange")) == (["v"], ("strange",))
    assert copies.holders("v") == ()
    assert ordered(copies) == []
