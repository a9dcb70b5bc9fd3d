from __future__ import annotations

import math
import struct

import pytest

from dtd.errors import ProtocolError
from dtd.wire import messages as m
from dtd.wire.step_rows import (
    MAX_STEP_ROWS,
    STEP_ROW_BYTES,
    StepRow,
    pack_step_rows,
    unpack_step_rows,
)
from tests.unit.observe.reports import row

PROGRESS = {
    "job": "digits-1", "generation": 2, "step": 7, "epoch": 1, "loss": 0.5, "learning_rate": 0.1,
    "grad_norm": 3.0, "rows": 64, "step_s": 0.5, "compute_s": 0.25, "comm_s": 0.125,
    "exposed_s": 0.0625, "skipped": False, "skipped_steps": 0,
}  # fmt: skip


def test_rows_survive_the_way():
    rows = [row(1), row(2, 3, loss=math.inf, sent_bytes=2**62, skipped=1)]
    packed = pack_step_rows(rows)
    assert len(packed) == 2 * STEP_ROW_BYTES == 256
    assert unpack_step_rows(packed) == rows
    assert unpack_step_rows(b"") == []


def test_integers_beyond_63_bits_are_left_out():
    for place in (0, 8 * 4, 8 * 8):
        octets = bytearray(pack_step_rows([row(1), row(2)]))
        struct.pack_into("<Q", octets, place, 2**63)
        assert [StepRow(*one).step for one in unpack_step_rows(bytes(octets))] == [2]


def received(steps):
    return m.decode_message({"t": 33, **PROGRESS, "steps": steps})


@pytest.mark.parametrize("length", [1, STEP_ROW_BYTES - 1, (MAX_STEP_ROWS + 1) * STEP_ROW_BYTES])
def test_octets_that_are_no_rows_are_refused(length):
    with pytest.raises(ProtocolError, match="octets"):
        received(bytes(length))
