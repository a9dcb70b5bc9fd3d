"""The resource that links are measured with."""

from __future__ import annotations

import pytest

from dtd.errors import RequestRefused
from dtd.net.data_server import MAX_FETCH_BYTES, MAX_MEASURED_BYTES, ZEROS_BYTES, zeros


def test_any_range_of_it_is_zeros_from_one_buffer():
    [blob] = zeros(f"measure/{MAX_MEASURED_BYTES}").blobs
    assert (blob.size_bytes, blob.in_memory) == (MAX_MEASURED_BYTES, True)
    assert bytes(blob.read(MAX_MEASURED_BYTES - 5, 5)) == bytes(5)
    first, second = blob.read(0, 1), zeros("measure/1").blobs[0].read(0, 1)
    assert first.obj is second.obj
    assert ZEROS_BYTES >= MAX_FETCH_BYTES


@pytest.mark.parametrize(
    "name", ["measure/", "measure/0", "measure/-1", "measure/1e3", "measure/٣"]
)
def test_a_size_that_makes_no_sense_is_refused(name):
    with pytest.raises(RequestRefused):
        zeros(name)


def test_too_much_is_refused():
    with pytest.raises(RequestRefused, match="not in 1"):
        zeros(f"measure/{MAX_MEASURED_BYTES + 1}")
    with pytest.raises(RequestRefused):
        zeros("measure/" + "9" * 5000)
