from __future__ import annotations

import numpy as np

from dtd.tasks.cifar10 import crop_and_flip


def test_each_image_is_one_of_the_possible_crops() -> None:
    draw = np.random.default_rng(0)
    images = draw.integers(1, 256, (300, 8, 8, 3), dtype=np.uint8)
    moved = crop_and_flip(images, list(range(300)), epoch=0, seed=0)
    seen = set()
    for before, after in zip(images, moved, strict=True):
        padded = np.pad(before, ((4, 4), (4, 4), (0, 0)))
        found = [
            (down, right, flip)
            for down in range(9)
            for right in range(9)
            for flip in (False, True)
            if np.array_equal(crop(padded, down, right, flip=flip), after)
        ]
        assert len(found) == 1
        seen.add(found[0])
    assert {down for down, _, _ in seen} == set(range(9))
    assert {right for _, right, _ in seen} == set(range(9))
    assert 130 < len(seen) <= 162  # 300 draws of 9 * 9 * 2 possibilities


def crop(padded: np.ndarray, down: int, right: int, *, flip: bool) -> np.ndarray:
    cut = padded[down : down + 8, right : right + 8]
    return cut[:, ::-1] if flip else cut


def test_draws_depend_on_seed_epoch_and_row_only() -> None:
    images = np.tile(np.arange(64, dtype=np.uint8).reshape(1, 8, 8, 1) + 1, (50, 1, 1, 3))
    rows = list(range(50))
    first = crop_and_flip(images, rows, epoch=1, seed=2)
    np.random.seed(5)  # the process's generators do not matter
    assert np.array_equal(crop_and_flip(images, rows, epoch=1, seed=2), first)
    for other in (
        crop_and_flip(images, rows, epoch=2, seed=2),
        crop_and_flip(images, rows, epoch=1, seed=3),
        crop_and_flip(images, rows[::-1], epoch=1, seed=2),
    ):
        assert not np.array_equal(other, first)
