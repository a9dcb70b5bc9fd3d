"""Small packages, as an index or a directory offers them."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Sequence
from pathlib import Path


def write_wheel(
    place: Path, name: str, version: str = "1.0", *, requires: Sequence[str] = (), code: str = ""
) -> str:
    """Write a wheel with one module, whose `VERSION` is the package's; returns its sha256."""
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
    files = {
        f"{name}.py": f'VERSION = "{version}"\n{code}',
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},{_hash(text)},{len(text)}\n" for file, text in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    place.mkdir(parents=True, exist_ok=True)
    wheel = place / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


def _hash(text: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
    return f"sha256={digest.decode().rstrip('=')}"
