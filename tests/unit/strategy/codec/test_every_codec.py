"""Rules that hold for every codec that a job can name."""

from __future__ import annotations

import math
from typing import get_args, get_type_hints

import pytest

from dtd.job import parse_job
from dtd.job.strategy_table import StrategyTable
from dtd.strategy.choice import CODECS
from dtd.strategy.codec.narrow import NarrowCodec
from dtd.strategy.wire_memory import tensor_bytes
from tests.unit.strategy.codec.narrowed import Encoded

JOB = '[job]\nname = "any"\ntask = "digits"\nepochs = 1\nglobal_batch_size = 8\n'
MADE = {name: make(parse_job(JOB, source="test")) for name, make in CODECS.items() if make}
NARROW = {name: codec for name, codec in MADE.items() if isinstance(codec, NarrowCodec)}


@pytest.fixture(params=NARROW)
def narrow(request):
    return NARROW[request.param]


def test_a_job_can_name_what_there_is_and_nothing_else():
    assert set(get_args(get_type_hints(StrategyTable)["codec"])) == set(CODECS)


def test_what_is_not_finite_does_not_become_so(narrow):
    """Else the ranks would not skip the step: a type that saturates is no wire type."""
    values = Encoded(narrow, math.inf, -math.inf, math.nan, 1.0).decoded().tolist()
    assert [math.isfinite(value) for value in values] == [False, False, False, True]


def test_a_sum_in_the_narrow_type_comes_back_wide(narrow):
    bucket, other = Encoded(narrow, 1.0, -0.5), Encoded(narrow, 2.0, 0.25)
    bucket.memory.add(0, 2, memoryview(bytearray(tensor_bytes(other.wire))))
    assert bucket.decoded().tolist() == [3.0, -0.25]
