"""Coded payloads: the same bytes come back, whatever they are; anything else is refused."""

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtd.errors import ProtocolError
from dtd.planes import ELEMENT_BYTES, MIN_CODED_BYTES, PlaneCoder, check_coded

CODER = PlaneCoder()
WIDTHS = st.sampled_from(ELEMENT_BYTES)


def gradient(item_bytes: int, seed: int, elements: int = 5000) -> memoryview:
    """Floats whose sizes differ as a gradient's do, with some zeros, NaNs and infinities."""
    random = np.random.default_rng(seed)
    wide = random.standard_normal(elements) * np.exp(random.standard_normal(elements))
    wide[random.integers(elements, size=3)] = [0.0, np.nan, -np.inf]
    return memoryview(wide.astype(f"<f{item_bytes}").tobytes())


@given(item_bytes=WIDTHS, seed=st.integers(0, 2**32 - 1))
def test_a_gradient_is_shorter_and_comes_back(item_bytes: int, seed: int) -> None:
    payload = gradient(item_bytes, seed)
    coded = CODER.encode(payload, item_bytes)
    assert coded is not None
    assert len(coded) < len(payload)
    back = memoryview(bytearray(len(payload)))
    CODER.decode(coded, back, item_bytes)
    assert back == payload


@given(item_bytes=WIDTHS, filling=st.binary(min_size=1, max_size=64), more=st.integers(0, 9))
def test_any_bytes_come_back_or_travel_as_they_are(
    item_bytes: int, filling: bytes, more: int
) -> None:
    payload = memoryview(filling * (MIN_CODED_BYTES // len(filling) + 1) + bytes(more))
    coded = CODER.encode(payload, item_bytes)
    if coded is None:
        return
    back = memoryview(bytearray(len(payload)))
    CODER.decode(coded, back, item_bytes)
    assert back == payload


def test_the_example_of_the_protocol_decodes_to_its_numbers() -> None:
    lines = (Path(__file__).parents[1] / "protocol_examples.jsonl").read_text().splitlines()
    (example,) = (one for one in map(json.loads, lines) if one["message"] == "CODED_CHUNK")
    header, numbers = example["header"], np.empty(32, "<f4")
    assert header["plain_bytes"] == numbers.nbytes
    CODER.decode(
        memoryview(bytes.fromhex(example["payload"])),
        memoryview(numbers.view(np.uint8)),
        header["item_bytes"],
    )
    assert (numbers == 1 + np.arange(32) / 32).all()


def test_noise_travels_as_it_is() -> None:
    noise = np.random.default_rng(0).bytes(64 * 1024)
    assert CODER.encode(memoryview(noise), 4) is None


@given(item_bytes=WIDTHS, at=st.integers(0), bit=st.integers(0, 7), cut=st.integers(0, 40))
def test_damage_is_an_error_or_other_bytes_of_the_same_length(
    item_bytes: int, at: int, bit: int, cut: int
) -> None:
    payload = gradient(item_bytes, 1)
    coded = CODER.encode(payload, item_bytes)
    assert coded is not None
    damaged = bytearray(coded)
    damaged[-1 - at % len(damaged)] ^= 1 << bit
    back = memoryview(bytearray(len(payload)))
    with contextlib.suppress(ProtocolError):
        CODER.decode(memoryview(damaged)[: len(damaged) - cut], back, item_bytes)


@pytest.mark.parametrize(
    ("coded_bytes", "payload_bytes", "item_bytes"),
    [(3 * 1024, 4096, 4), (4096, 4096, 4), (4000, 4097, 4), (4000, 4096, 3), (4000, 4096, 0)],
)
def test_impossible_lengths_are_refused(
    coded_bytes: int, payload_bytes: int, item_bytes: int
) -> None:
    with pytest.raises(ProtocolError, match="coded payload"):
        check_coded(coded_bytes, payload_bytes, item_bytes)


def test_a_plane_of_another_length_is_refused_before_it_is_decompressed() -> None:
    payload = gradient(4, 2)
    coded = CODER.encode(payload, 4)
    longer = CODER.encode(gradient(4, 2, elements=5001), 4)
    assert coded is not None
    assert longer is not None
    mixed = memoryview(bytes(coded[: 3 * 5000]) + bytes(longer[3 * 5001 :]))
    with pytest.raises(ProtocolError, match="5001 bytes, not 5000"):
        CODER.decode(mixed, memoryview(bytearray(len(payload))), 4)
