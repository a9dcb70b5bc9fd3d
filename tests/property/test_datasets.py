"""Manifests of any bytes, and fetches in any order of events."""

from __future__ import annotations

import contextlib
import json
import random

from hypothesis import given
from hypothesis import strategies as st

from dtd.datasets.manifest import CHUNK_BYTES, Manifest, parse
from dtd.datasets.plan import Plan
from dtd.errors import TaskError

PARTS = st.sampled_from(["a", "b", "..", ".", "", "é", "\ud800", "\0", "x" * 5000])
PATHS = st.lists(PARTS, min_size=1, max_size=4).map("/".join)
SIZES = st.integers(min_value=-1, max_value=3 * CHUNK_BYTES)
JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), st.lists)


@given(
    st.booleans(),
    st.lists(st.tuples(PATHS, SIZES), max_size=5) | JSON,
    st.lists(st.just("0" * 64), max_size=5) | JSON,
)
def test_a_manifest_is_parsed_or_refused(single: bool, files: object, chunks: object) -> None:
    content = {"single": single, "files": files, "chunks": chunks}
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    with contextlib.suppress(TaskError):
        manifest = parse(text.encode(errors="surrogatepass"))
        assert all(".." not in path.split("/") and path[0] != "/" for path, _ in manifest.files)
        assert manifest.size_bytes <= len(manifest.chunks) * CHUNK_BYTES


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(encoded: bytes) -> None:
    with contextlib.suppress(TaskError):
        parse(encoded)


@given(st.lists(st.integers(min_value=0, max_value=50), max_size=12), st.data())
def test_pieces_of_a_range_are_its_bytes(sizes: list[int], data: st.DataObject) -> None:
    files = tuple((f"{index:02}", size) for index, size in enumerate(sizes))
    chunks = ("0" * 64,) * (sum(sizes) > 0)
    manifest = Manifest(single=False, files=files, chunks=chunks)
    content = {path: bytes([index] * size) for index, (path, size) in enumerate(files)}
    row = b"".join(content.values())
    offset = data.draw(st.integers(0, len(row)))
    length = data.draw(st.integers(0, len(row) - offset))
    pieces = [*manifest.pieces(offset, length)]
    assert all(piece.length for piece in pieces)
    found = b"".join(content[p.path][p.offset : p.offset + p.length] for p in pieces)
    assert found == row[offset : offset + length]


@given(
    chunks=st.integers(0, 40),
    fetchers=st.integers(1, 5),
    seeds=st.integers(1, 2),
    seed=st.integers(0, 2**32),
)
def test_a_swarm_ends_with_all_chunks_everywhere(
    chunks: int, fetchers: int, seeds: int, seed: int
) -> None:
    """In any order of events, with sources that are lost and come back."""
    draws = random.Random(seed)
    plans = [Plan(chunks, 0) for _ in range(fetchers)]
    sources = [f"seed-{index}" for index in range(seeds)]
    open_requests: list[tuple[int, str, int]] = []
    for share, plan in enumerate(plans):
        plan.share_out(share, fetchers)
        for name in sources:
            plan.holds(name, None)
    left = 40 * (chunks + 1) * fetchers * (fetchers + seeds)
    while not all(plan.complete for plan in plans):
        left -= 1
        assert left, "it makes no progress"
        by = draws.randrange(fetchers)
        plan = plans[by]
        kind = draws.random()
        if kind < 0.4 and open_requests:
            done = open_requests.pop(draws.randrange(len(open_requests)))
            plans[done[0]].received(done[2])
        elif kind < 0.45:
            name = draws.choice(sources)
            plan.lost(name)
            open_requests = [one for one in open_requests if one[:2] != (by, name)]
            plan.holds(name, None)
        elif kind < 0.6:
            other = draws.randrange(fetchers)
            if other != by:
                plan.holds(f"fetcher-{other}", plans[other].have)
        else:
            names = [*sources, *(f"fetcher-{one}" for one in range(fetchers) if one != by)]
            name = draws.choice(names)
            chunk = plan.next(name)
            if chunk is not None:
                assert not plan.have >> chunk & 1
                assert not any(one[0] == by and one[2] == chunk for one in open_requests)
                if name.startswith("fetcher"):
                    assert plans[int(name.partition("-")[2])].have >> chunk & 1
                open_requests.append((by, name, chunk))


@given(st.integers(1, 60), st.integers(2, 6))
def test_equal_fetchers_take_each_chunk_once_from_a_single_complete_source(
    chunks: int, fetchers: int
) -> None:
    plans = [Plan(chunks, 0) for _ in range(fetchers)]
    for share, plan in enumerate(plans):
        plan.share_out(share, fetchers)
        plan.holds("seed", None)
    delivered = 0
    while not all(plan.complete for plan in plans):
        for by, plan in enumerate(plans):
            for other, peer in enumerate(plans):
                if other != by:
                    plan.holds(str(other), peer.have)
                    while (chunk := plan.next(str(other))) is not None:
                        plan.received(chunk)
        for plan in plans:
            chunk = plan.next("seed")
            if chunk is not None:
                plan.received(chunk)
                delivered += 1
    assert delivered < chunks + fetchers
