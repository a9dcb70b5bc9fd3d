"""Cost of reading rows of an ordinary folder of images, by thread and by process.

    python -m scripts.loading_cost --rounds 10

Rows are torchvision's `ImageFolder`: JPEGs of 256 x 256 pixels, cropped at random and mirrored.
They are read in the training thread, as dtd does without `fetch` and `loader_workers`; in one
thread that reads ahead, which such rows must not use since they draw from the process's generators;
and in loader processes.  A step either waits as if a GPU computed, or computes a ResNet-18 with one
thread.  All are used in turn, so all see the same noise.  Markdown on stdout: medians, the middle
half, and medians of the ratios within a round.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from PIL import Image
from torchvision import datasets, models, transforms

from dtd.train.data.loader import BatchSource, CallerSource, ProcessSource, ThreadSource
from dtd.train.data.rows import BatchRequest
from scripts import markdown

IMAGES: Final = 256
PIXELS: Final = 256
CROP: Final = 48
BATCH_ROWS: Final = 16
STEPS: Final = 6
USUAL: Final = "training thread"

Step = Callable[[Any], None]
Seconds = dict[str, dict[str, list[float]]]
"""Times of a step, for each case and source, one a round."""


def _folder(directory: Path) -> Any:
    """Images of smooth noise, which are as large and as slow to decode as photographs."""
    chance = np.random.default_rng(1)
    for number in range(IMAGES):
        place = directory / f"class-{number % 2}"
        place.mkdir(exist_ok=True)
        coarse = chance.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((PIXELS, PIXELS), Image.Resampling.BICUBIC)
        image.save(place / f"{number}.jpg", quality=90)
    crop = transforms.RandomResizedCrop(CROP)
    change = transforms.Compose([crop, transforms.RandomHorizontalFlip(), transforms.ToTensor()])
    return datasets.ImageFolder(directory, change)


def _requests() -> Iterator[BatchRequest]:
    for step in range(STEPS + 1):
        first = step * BATCH_ROWS
        rows = tuple(row % IMAGES for row in range(first, first + BATCH_ROWS))
        yield BatchRequest(step=step, epoch=0, rows=rows)


def _sources(rows: Any) -> dict[str, BatchSource]:
    return {
        USUAL: CallerSource(rows, seed=0),
        "thread that reads ahead": ThreadSource(rows, seed=0, pin=False),
        "loader_workers = 1": ProcessSource(rows, seed=0, processes=1, pin=False),
        "loader_workers = 2": ProcessSource(rows, seed=0, processes=2, pin=False),
    }


def _cases(sources: Mapping[str, BatchSource]) -> dict[str, Step]:
    """Return the uses of a step's batch; a GPU computes for as long as reading takes."""
    read_s = statistics.median(_step_s(sources[USUAL], _nothing) for _ in range(5))
    model = models.resnet18(num_classes=2)

    def computes(batch: Any) -> None:
        images, labels = batch
        torch.nn.functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]

    return {f"GPU, {1e3 * read_s:.0f} ms": partial(_waits, read_s), "CPU": computes}


def _nothing(_batch: Any) -> None:
    """Only reading is measured."""


def _waits(for_s: float, _batch: Any) -> None:
    time.sleep(for_s)


def _step_s(source: BatchSource, step: Step) -> float:
    """Mean time of a step, once the first one has been taken."""
    source.restart(_requests())
    step(source.take().batch)
    begun_s = time.perf_counter()
    for _ in range(STEPS):
        step(source.take().batch)
    return (time.perf_counter() - begun_s) / STEPS


def _table(seconds: Seconds) -> str:
    rows = []
    for case, kinds in seconds.items():
        for kind, values in kinds.items():
            low, middle, high = (
                f"{1e3 * value:.0f}" for value in statistics.quantiles(values, n=4)
            )
            ratios = [value / base for value, base in zip(values, kinds[USUAL], strict=True)]
            first, ratio, last = statistics.quantiles(ratios, n=4)
            spread = f"{ratio:.2f} ({first:.2f} to {last:.2f})"
            rows.append([case, kind, f"{middle} ms", f"{low} to {high}", spread])
    return markdown.table(["step", "rows read in", "time", "middle half", "of the first"], rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Cost of where rows are read.")
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="dtd-loading-"))
        sources = _sources(_folder(Path(directory)))
        for source in sources.values():
            stack.callback(source.close)
            _step_s(source, _nothing)  # starts it
        cases = _cases(sources)
        seconds: Seconds = {case: {kind: [] for kind in sources} for case in cases}
        for _ in range(options.rounds):
            for case, step in cases.items():
                for kind, source in sources.items():
                    seconds[case][kind].append(_step_s(source, step))
    print(_table(seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
