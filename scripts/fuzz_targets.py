"""Targets of the fuzzer: a name, a function of its bytes, and inputs to begin with.

A function returns how many frames (or files, or words) its input stood for.  It raises only for a
defect: dtd's own errors are the right answer to most inputs.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dtd.address import Address
from dtd.checkpoint.format import MANIFEST_FILE, Manifest, encode_manifest, read_manifest
from dtd.checkpoint.tensor_file import FileInfo
from dtd.errors import CheckpointError, ConfigError, ProtocolError, TaskError, UsageError
from dtd.packages.archive import unpack
from dtd.planes import ELEMENT_BYTES, MIN_CODED_BYTES, PlaneCoder, check_coded
from dtd.security.credential import Credential
from dtd.security.token import Token
from dtd.wire import messages as m
from dtd.wire.session import DATA_ROLES
from scripts.fuzz_links import (
    CONTROL_ROLES,
    acceptor,
    attack,
    opener,
    prove_to,
    welcome_to,
)

MAX_INPUT_BYTES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One thing to fuzz.

    Attributes:
        run: raises for a defect only; returns how much the input stood for.
        seeds: inputs to begin with.
        authenticated: whether the other side has proved its identity before the input.
    """

    run: Callable[[bytes], int]
    seeds: tuple[bytes, ...] = ()
    authenticated: bool = False


# --- links -------------------------------------------------------------------------------------


def _call_before(roles: frozenset[m.Role]) -> Callable[[bytes], int]:
    def run(data: bytes) -> int:
        link, _wire, witness = acceptor(roles)
        count = attack(link, data)
        if roles is DATA_ROLES:
            assert witness.delivered == 0, "a caller without the key was heard"
        return count

    return run


def _call_after(role: m.Role, roles: frozenset[m.Role]) -> Callable[[bytes], int]:
    def run(data: bytes) -> int:
        link, wire, _witness = acceptor(roles)
        return attack(link, data, prove_to(link, wire, role))

    return run


def _answer_before(role: m.Role) -> Callable[[bytes], int]:
    def run(data: bytes) -> int:
        link, _wire, witness = opener(role)
        count = attack(link, data)
        if role in DATA_ROLES:
            assert witness.delivered == 0, "a caller without the key was heard"
        return count

    return run


def _answer_after(role: m.Role) -> Callable[[bytes], int]:
    def run(data: bytes) -> int:
        link, wire, _witness = opener(role)
        return attack(link, data, welcome_to(link, wire, role))

    return run


# --- words and files ---------------------------------------------------------------------------


def _token(data: bytes) -> int:
    with contextlib.suppress(UsageError):
        token = Token.parse(data.decode("utf-8", "replace"))
        assert Token.parse(token.word()) == token
    return 1


def _address(data: bytes) -> int:
    with contextlib.suppress(UsageError):
        address = Address.parse(data.decode("utf-8", "replace"))
        assert Address.parse(str(address)) == address
    return 1


def _coded(data: bytes) -> int:
    """Width of an element, length of the payload in 4 bytes, and its code."""
    item_bytes, plain_bytes, code = data[:1], int.from_bytes(data[1:5]), memoryview(data)[5:]
    coder, width = PlaneCoder(), int.from_bytes(item_bytes)
    with contextlib.suppress(ProtocolError):
        check_coded(len(code), plain_bytes, width)
        assert plain_bytes <= 2 * len(code), "a few bytes reserve much memory"
        payload, again = (memoryview(bytearray(plain_bytes)) for _ in range(2))
        coder.decode(code, payload, width)
        if (own := coder.encode(payload, width)) is not None:
            coder.decode(own, again, width)
            assert again == payload
    return 1


def _coded_seed(width: int) -> bytes:
    payload = bytes(range(1, width)) + b"\x3f"
    code = PlaneCoder().encode(memoryview(payload * (MIN_CODED_BYTES // width)), width)
    assert code is not None
    return bytes([width]) + MIN_CODED_BYTES.to_bytes(4) + code


def _in_directory(work: Callable[[Path, bytes], object]) -> Callable[[bytes], int]:
    def run(data: bytes) -> int:
        directory = Path(tempfile.mkdtemp(prefix="dtd-fuzz-"))
        try:
            work(directory, data)
        finally:
            for one in directory.rglob("*"):
                if one.is_dir() and not one.is_symlink():
                    one.chmod(0o700)
            shutil.rmtree(directory)
        return 1

    return run


def _credential(directory: Path, data: bytes) -> None:
    file = directory / "worker.credential"
    file.touch(mode=0o600)
    file.write_bytes(data)
    with contextlib.suppress(ConfigError):
        Credential.load(file, {})


def _package(directory: Path, data: bytes) -> None:
    with contextlib.suppress(TaskError, OSError):  # OSError: a name too long
        unpack(data, directory / "package")
    made = {path.relative_to(directory).parts[0] for path in directory.rglob("*")}
    assert made <= {"package"}, f"files beside the package: {made}"
    assert not any(path.is_symlink() for path in directory.rglob("*"))


def _manifest(directory: Path, data: bytes) -> None:
    (directory / MANIFEST_FILE).write_bytes(data)
    with contextlib.suppress(CheckpointError):
        read_manifest(directory)


def _tar(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, body in files.items():
            member = tarfile.TarInfo(name.replace("__", "/"))
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
    return buffer.getvalue()


def _sample_manifest() -> bytes:
    info = FileInfo(size_bytes=3, hash="0" * 32)
    state: dict[str, Any] = {"offset": 3}
    return encode_manifest(
        Manifest(
            format=1,
            job="j-1",
            job_name="j",
            task="digits",
            generation=1,
            step=2,
            epoch=0,
            offset=3,
            digest="0" * 32,
            parent="",
            metrics={"accuracy": 0.5},
            world_size=2,
            files={"model.safetensors": info, "optimizer.safetensors": info},
            state=state,
            tensors=("a",),
        )
    )


_TOKEN: Final = b"dtd1/worker/10.0.0.1:7117,[::1]:7117/" + b"0" * 64 + b"/01234567." + b"s" * 32
_CREDENTIAL: Final = (
    b"# dtd credential 1\n# role: worker\n# name: h\n# coordinator: 10.0.0.1:7117\n"
    b"# expires: 2099-01-01T00:00:00+00:00\n"
    b"-----BEGIN PRIVATE KEY-----\nMA==\n-----END PRIVATE KEY-----\n"
    b"-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n"
    b"-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n"
)

LINKS: Final[Mapping[str, Target]] = {
    "control-acceptor": Target(run=_call_before(CONTROL_ROLES)),
    "data-acceptor": Target(run=_call_before(DATA_ROLES)),
    "control-opener": Target(run=_answer_before(m.Role.WORKER)),
    "data-opener": Target(run=_answer_before(m.Role.RING)),
    **{
        f"{role.value}-acceptor": Target(
            run=_call_after(role, DATA_ROLES if role in DATA_ROLES else CONTROL_ROLES),
            authenticated=True,
        )
        for role in m.Role
    },
    **{
        f"{role.value}-opener": Target(run=_answer_after(role), authenticated=True)
        for role in m.Role
    },
}
"""Frames on connections, before and after the other side has proved its identity."""

TARGETS: Final[Mapping[str, Target]] = {
    **LINKS,
    "token": Target(run=_token, seeds=(_TOKEN,)),
    "address": Target(run=_address, seeds=(b"10.0.0.1:7117", b"[::1]:7117", b"host:1")),
    "credential": Target(run=_in_directory(_credential), seeds=(_CREDENTIAL,)),
    "package": Target(
        run=_in_directory(_package),
        seeds=(_tar(task__init__py=b"x = 1\n", task__a=b""), _tar(a=b"1", a__b=b"2")),
    ),
    "coded-payload": Target(run=_coded, seeds=tuple(map(_coded_seed, ELEMENT_BYTES))),
    "manifest": Target(run=_in_directory(_manifest), seeds=(_sample_manifest(),)),
}
"""Everything."""
