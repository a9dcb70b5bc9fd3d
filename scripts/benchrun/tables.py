"""The tables of docs/benchmarks.md, from the records: pure text."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, Final

from scripts.benchrun.allreduce import bus_factor
from scripts.benchrun.results import Record, Spread, paired_ratio, spread
from scripts.markdown import table

NOTHING: Final = "-"
_UNITS: Final = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_LINK_ORDER: Final = ("loopback", "1gbit", "100mbit")


def size_text(size_bytes: int) -> str:
    """4096 -> "4 KiB"."""
    for unit, name in _UNITS:
        if size_bytes >= unit:
            return f"{size_bytes / unit:g} {name}"
    return f"{size_bytes} B"


def time_text(seconds: float) -> str:
    """Three digits in the unit that fits."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def header(records: Sequence[Record]) -> str:
    """Describe the machines of the measurements, one a line."""
    loads: dict[str, list[float]] = {}
    for record in records:
        about = record["machine"]
        line = (
            f"{about['cpu']}, {about['cores']} cores, {about['memory_gib']} GiB; Linux"
            f" {about['kernel']}, Python {about['python']}, torch {about['torch']}, uvloop"
            f" {about['uvloop']}; dtd {about['dtd']}; congestion control"
            f" {about['congestion_control']}; one thread a rank; load before the runs"
        )
        loads.setdefault(line, []).append(float(about["load_before"]))
    return "\n".join(f"- {line} {min(values)} to {max(values)}." for line, values in loads.items())


# --- allreduce -----------------------------------------------------------------------------------


def allreduce_tables(records: Sequence[Record]) -> str:
    """A table for each world and type."""
    cases = sorted({(r["dtype"] != "float32", r["world"], r["dtype"]) for r in records})
    return "\n\n".join(
        f"#### {dtype}, {world} workers\n\n"
        + _allreduce_table([r for r in records if (r["world"], r["dtype"]) == (world, dtype)])
        for _, world, dtype in cases
    )


def _allreduce_table(records: Sequence[Record]) -> str:
    by_size: dict[int, dict[str, Record]] = {}
    for record in records:
        by_size.setdefault(record["bytes"], {})[record["side"]] = record
    head = [
        *("size", "dtd: time", "algorithm", "bus", "± MAD", "Gloo: bus", "± MAD"),
        *("**dtd : Gloo**", "sockets : Gloo", "other host : Gloo"),
        *("limit: bus", "limit, same tag", "sockets : that"),
        *("CPU s/GB dtd", "sockets", "Gloo", "limit"),
    ]
    return table(head, [_allreduce_row(size, by_size[size]) for size in sorted(by_size)])


def _allreduce_row(size_bytes: int, sides: dict[str, Record]) -> list[str]:
    dtd, gloo = sides["dtd"], sides["gloo"]
    ours = spread(dtd["times_s"])
    return [
        size_text(size_bytes),
        time_text(ours.median),
        _gigabytes(size_bytes / ours.median),
        *_bus(dtd),
        *_bus(gloo),
        f"**{_ratio(gloo, dtd)}**",
        _ratio(gloo, sides.get("dtd, sockets")),
        _ratio(gloo, sides.get("dtd, other host")),
        _bus(sides.get("limit"))[0],
        _bus(sides.get("limit, xxh3"))[0],
        _ratio(sides.get("limit, xxh3"), sides.get("dtd, sockets")),
        *(_cpu(sides.get(name)) for name in ("dtd", "dtd, sockets", "gloo", "limit")),
    ]


def bus_bytes_per_s(record: Record) -> float:
    """Bus bandwidth of the median time."""
    rate: float = bus_factor(record["world"]) * record["bytes"] / spread(record["times_s"]).median
    return rate


def _bus(record: Record | None) -> list[str]:
    if record is None:
        return [NOTHING, NOTHING]
    deviation = spread(record["times_s"]).relative
    return [_gigabytes(bus_bytes_per_s(record)), f"{100 * deviation:.0f} %"]


def _ratio(numerator: Record | None, denominator: Record | None) -> str:
    """Return the ratio of times, so of bandwidths the other way round."""
    if numerator is None or denominator is None:
        return NOTHING
    if len(numerator["times_s"]) != len(denominator["times_s"]):
        return NOTHING
    return f"{paired_ratio(numerator['times_s'], denominator['times_s']).median:.2f}"


def _cpu(record: Record | None) -> str:
    """Processor seconds of all ranks for each GB that a rank sends."""
    if record is None:
        return NOTHING
    sent_gb = bus_factor(record["world"]) * record["bytes"] / 1e9 * record["world"]
    return f"{statistics.median(record['cpu_s']) / sent_gb:.2f}"


def _gigabytes(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.3g} GB/s"


# --- train ---------------------------------------------------------------------------------------


def train_tables(records: Sequence[Record]) -> str:
    """For each workload: rates and steps, where the time goes, memory."""
    parts: list[str] = []
    for name in sorted({record["workload"] for record in records}):
        mine = sorted((r for r in records if r["workload"] == name), key=_train_order)
        parts.append(f"#### {mine[0]['what']}")
        parts.append(_steps_table(mine))
        parts.append(_where_table(mine))
        narrow = [record for record in mine if "dtd-bf16" in record["steps_s"]]
        if narrow:
            parts.append("Gradients as bfloat16, in DDP by its `bf16_compress_hook`:")
            parts.append(_bf16_table(narrow))
    return "\n\n".join(parts)


def _train_order(record: Record) -> tuple[int, int]:
    return _LINK_ORDER.index(record["link"]), record["world"]


def _steps_table(records: Sequence[Record]) -> str:
    head = [
        *("link", "workers", "rounds", "dtd: rows/s", "step", "± MAD", "DDP: step", "± MAD"),
        *("**DDP : dtd**", "DDP, same heap : dtd", "without sync", "dtd : that"),
        *("one process", "speed-up"),
    ]
    rows = []
    for record in records:
        steps_s = record["steps_s"]
        dtd, apart = spread(steps_s["dtd"]), spread(steps_s["apart"])
        ddp, heap = (paired_ratio(steps_s[side], steps_s["dtd"]) for side in ("ddp", "ddp-heap"))
        single_s = spread(steps_s.get("single", steps_s["apart"])).median
        rows.append(
            [
                record["link"],
                str(record["world"]),
                str(len(steps_s["dtd"])),
                f"{record['rows'] / dtd.median:.1f}",
                *_time(steps_s["dtd"]),
                *_time(steps_s["ddp"]),
                f"**{ddp.median:.2f}** ({_range(ddp)})",
                f"{heap.median:.2f} ({_range(heap)})",
                time_text(apart.median),
                f"{paired_ratio(steps_s['dtd'], steps_s['apart']).median:.2f}",
                time_text(single_s),
                f"{single_s / dtd.median:.2f}",
            ]
        )
    return table(head, rows)


def _bf16_table(records: Sequence[Record]) -> str:
    head = [
        *("link", "workers", "dtd: step", "± MAD", "DDP: step", "± MAD", "**DDP : dtd**"),
        *("dtd: float32 : bfloat16", "DDP: float32 : bfloat16", "DDP's buckets"),
    ]
    rows = []
    for record in records:
        steps_s = record["steps_s"]
        dtd_s, ddp_s = steps_s["dtd-bf16"], steps_s["ddp-bf16"]
        rows.append(
            [
                record["link"],
                str(record["world"]),
                *_time(dtd_s),
                *_time(ddp_s),
                f"**{paired_ratio(ddp_s, dtd_s).median:.2f}**",
                f"{paired_ratio(steps_s['dtd'], dtd_s).median:.2f}",
                f"{paired_ratio(steps_s['ddp'], ddp_s).median:.2f}",
                _ddp_buckets(record["ddp-bf16"]),
            ]
        )
    return table(head, rows)


def _ddp_buckets(choice: dict[str, Any]) -> str:
    return f"{choice['bucket_mib']} MiB{', batched' if choice['batched'] else ''}"


def _where_table(records: Sequence[Record]) -> str:
    head = [
        *("link", "workers", "compute", "communication", "exposed", "beyond no sync: dtd", "DDP"),
        *("DDP's buckets", "floor", "dtd : floor", "memory: dtd", "DDP", "above torch: dtd", "DDP"),
    ]
    rows = []
    for record in records:
        steps_s, parts_s, peak = record["steps_s"], record["parts_s"], record["peak_bytes"]
        dtd_s, ddp_s, apart_s = (spread(steps_s[s]).median for s in ("dtd", "ddp", "apart"))
        floor_s = record["floor"].get("floor_s", math.nan)
        rows.append(
            [
                record["link"],
                str(record["world"]),
                *(time_text(parts_s[part]) for part in ("compute_s", "comm_s", "exposed_s")),
                time_text(max(0.0, dtd_s - apart_s)),
                time_text(max(0.0, ddp_s - apart_s)),
                _ddp_buckets(record["ddp"]),
                NOTHING if math.isnan(floor_s) else time_text(floor_s),
                NOTHING if math.isnan(floor_s) else f"{dtd_s / floor_s:.2f}",
                *(_mebibytes(peak[side]) for side in ("dtd", "ddp")),
                *(_mebibytes(peak[side] - peak["apart"]) for side in ("dtd", "ddp")),
            ]
        )
    return table(head, rows)


def _range(one: Spread) -> str:
    return f"{one.lowest:.2f} to {one.highest:.2f}"


def _time(values: Sequence[float]) -> list[str]:
    one = spread(values)
    return [time_text(one.median), f"{100 * one.relative:.0f} %"]


def _mebibytes(size_bytes: float) -> str:
    return f"{size_bytes / 2**20:.0f} MiB"
