"""The measurement of lossless coding (`dtd.planes`) on a job's own gradients.

What is left of their bytes depends on the values, and the coder's rate on the host.  From both the
doctor forecasts links that code (`dtd.doctor.transfer.Coder`).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from dtd.exchange.api import BucketMemory
from dtd.planes import MIN_CODED_BYTES, PlaneCoder
from dtd.strategy.wire_memory import tensor_bytes

NARROW: Final = (torch.bfloat16, torch.float16)
"""Types in which a codec may let gradients travel."""

MOST_BYTES: Final = 16 * 1024 * 1024
PIECE_BYTES: Final = 256 * 1024


def measure_coding(buckets: Sequence[BucketMemory]) -> dict[str, Any]:
    """Code pieces from all buckets, bounded in bytes.

    Returns:
        {"dtype": type of most elements; empty if none can be coded, "coding": {type: {"share": of
        the bytes that is left, "encode_bytes_per_s", "decode_bytes_per_s": of bytes before
        coding}}}, for gradients in this type, and rounded to each narrow one.
    """
    pieces = _pieces(buckets)
    types = [piece.dtype for piece in pieces]
    if not types:
        return {"dtype": "", "coding": {}}
    own = statistics.mode(types)
    coding = {_name(dtype): _coded(pieces, dtype) for dtype in {own, *NARROW}}
    return {"dtype": _name(own), "coding": {name: one for name, one in coding.items() if one}}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _pieces(buckets: Sequence[BucketMemory]) -> list[Tensor]:
    pieces: list[Tensor] = []
    for bucket in buckets:
        if bucket.dtype and len(bucket.view) >= MIN_CODED_BYTES:
            flat = torch.frombuffer(bucket.view, dtype=getattr(torch, bucket.dtype))
            if flat.is_floating_point():
                pieces += torch.split(flat, PIECE_BYTES // bucket.shape.item_bytes)
    every = -(-sum(piece.nbytes for piece in pieces) // MOST_BYTES)
    return pieces[:: max(1, every)]


def _coded(pieces: Sequence[Tensor], dtype: torch.dtype) -> dict[str, float]:
    """Medians of the rates; empty where nothing gets shorter."""
    coder = PlaneCoder()
    plain_bytes = coded_bytes = 0
    encode_rates: list[float] = []
    decode_rates: list[float] = []
    for piece in pieces:
        payload = tensor_bytes(piece.to(dtype, copy=True))
        begun_s = time.perf_counter()
        code = coder.encode(payload, dtype.itemsize)
        encoded_s = time.perf_counter()
        encode_rates.append(len(payload) / (encoded_s - begun_s))
        plain_bytes += len(payload)
        coded_bytes += len(payload) if code is None else len(code)
        if code is not None:
            coder.decode(code, payload, dtype.itemsize)
            decode_rates.append(len(payload) / (time.perf_counter() - encoded_s))
    if not decode_rates:
        return {}
    return {
        "share": coded_bytes / plain_bytes,
        "encode_bytes_per_s": statistics.median(encode_rates),
        "decode_bytes_per_s": statistics.median(decode_rates),
    }
