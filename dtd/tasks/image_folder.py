"""Reads a folder of small images, `<folder>/<class>/<image>`, into one array, once.

A class's number is its place among the sorted class names.  Decoding releases the interpreter, so
a thread pool does it.  What comes out goes to `dtd.tasks.cifar10`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dtd.errors import TaskError

_SUFFIXES = frozenset({".jpg", ".jpeg", ".png"})


def class_names(folder: Path) -> list[str]:
    """Sorted names of the class folders.

    Raises:
        TaskError: there is none.
    """
    try:
        names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    except OSError as error:
        raise TaskError(
            f"the image folder {folder.absolute()} cannot be read: {error.strerror}",
            remedy="it should hold one folder for each class",
        ) from error
    if not names:
        raise TaskError(
            f"the image folder {folder.absolute()} holds no class",
            remedy="put each class's images into a folder of its own",
        )
    return names


def load_image_folder(
    folder: Path, classes: Sequence[str], size: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """All images, (rows, size, size, 3), and their class numbers, in the order of their names.

    Raises:
        TaskError: the classes are not `classes`, there is no image, or one cannot be used.
    """
    found = class_names(folder)
    if found != list(classes):
        odd = ", ".join(sorted(set(found) ^ set(classes)))
        raise TaskError(
            f"the classes under {folder.absolute()} are not those of the training images: {odd}",
            remedy="train/ and test/ must hold the same class folders",
        )
    paths, labels = _listing(folder, classes)
    images = np.empty((len(paths), size, size, 3), dtype=np.uint8)
    _decode_all(paths, images)
    return images, np.array(labels, dtype=np.int64)


def _listing(folder: Path, classes: Sequence[str]) -> tuple[list[Path], list[int]]:
    paths: list[Path] = []
    labels: list[int] = []
    for number, name in enumerate(classes):
        inside = sorted(p for p in (folder / name).iterdir() if p.suffix.lower() in _SUFFIXES)
        paths += inside
        labels += [number] * len(inside)
    if not paths:
        raise TaskError(
            f"the image folder {folder.absolute()} holds no .jpg or .png image",
            remedy="set data in the [task] table to the folder that holds train/ and test/",
        )
    return paths, labels


def _decode_all(paths: Sequence[Path], images: npt.NDArray[np.uint8]) -> None:
    try:
        from PIL import Image
    except ImportError as error:
        raise TaskError(
            "reading an image folder needs the package pillow", remedy="type: pip install pillow"
        ) from error

    def decode(number: int) -> None:
        path = paths[number]
        try:
            with Image.open(path) as image:
                pixels = np.asarray(image.convert("RGB"))
        except (OSError, SyntaxError, ValueError) as error:
            raise TaskError(
                f"the image {path.absolute()} cannot be decoded: {error}",
                remedy="replace or remove the file",
            ) from error
        if pixels.shape != images.shape[1:]:
            height, width, _ = pixels.shape
            wanted = f"{images.shape[2]}x{images.shape[1]}"
            raise TaskError(
                f"the image {path.absolute()} is {width}x{height}, not {wanted}",
                remedy=f"resize it to {wanted}",
            )
        images[number] = pixels

    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        for _ in pool.map(decode, range(len(paths)), chunksize=64):
            pass  # a failed decode is raised here
