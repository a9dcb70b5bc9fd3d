"""Messages: numbers, names, headers there and back, and everything a header may get wrong."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any, cast

import pytest

from dtd.errors import ErrorCode, LocalProtocolError, ProtocolError
from dtd.wire import fields
from dtd.wire import messages as m
from dtd.wire.messages.registry import message

TYPES = sorted(m.message_types().items())
SAMPLES: dict[str, Any] = {
    "u": 1,
    "generation": 1,
    "f": 0.5,
    "seconds": 0.5,
    "shards": [0, 1, 1, 2],
    "bool": True,
    "text": "x",
    "words": "x",
    "line": "x",
    "hosts": ["10.0.0.1", "fd00::1"],
    "host": "x",
    "names": ["x"],
    "name": "x",
    "notice": "row_retried",
    "octets<=16384": bytes(128),
    "octets": b"x",
    "map": {},
}


def sample(cls: type[Any]) -> dict[str, Any]:
    """Values for every field of a message."""
    return {name: value_of(kind) for name, kind, _check, _required in fields.layout(cls)}


def value_of(kind: str) -> Any:
    if kind.startswith("list"):
        record = getattr(m, kind.rpartition(" ")[2])
        return [sample(record)]
    return next(value for start, value in SAMPLES.items() if kind.startswith(start))


def refused(header: dict[str, Any]) -> ProtocolError:
    with pytest.raises(ProtocolError) as error:
        m.decode_message(header)
    return error.value


@pytest.mark.parametrize(("number", "cls"), TYPES)
def test_unknown_field_is_ignored(number: int, cls: type[Any]) -> None:
    header = {"t": number, **sample(cls)}
    assert m.decode_message({**header, "from_the_future": [1, {}]}) == m.decode_message(header)


@pytest.mark.parametrize(("number", "cls"), TYPES)
def test_every_field_is_checked(number: int, cls: type[Any]) -> None:
    for name, _kind, _check, required in fields.layout(cls):
        header = {"t": number, **sample(cls)}
        error = refused({**header, name: None})
        assert error.code is ErrorCode.BAD_FIELD
        assert f"{m.message_name(cls)}.{name}" in str(error)
        del header[name]
        if required:
            assert refused(header).code is ErrorCode.BAD_FIELD
        else:
            default = cls.__dataclass_fields__[name].default
            assert getattr(m.decode_message(header), name) == default


@pytest.mark.parametrize(
    "number",
    [0, 0x0F, 0x7F, 2**63, -1, True, 1.0, "HELLO", None, [1], {}, "x" * 60_000],
    ids=lambda n: str(n)[:10],
)
def test_unknown_types_are_refused(number: Any) -> None:
    error = refused({"t": number})
    assert error.code is ErrorCode.UNKNOWN_TYPE
    assert len(str(error)) < 100


def test_secrets_are_not_shown() -> None:
    enrol = m.Enrol(role="worker", name="w", token_id="1", token_secret="hush", request_pem="")
    assert "hush" not in repr(enrol)
    assert enrol != dataclasses.replace(enrol, token_secret="loud")


def declared(name: str, module: str) -> type[m.Message]:
    namespace = {"__annotations__": {}, "__module__": f"dtd.wire.messages.{module}"}
    return message(type(name, (m.Message,), namespace))


def test_message_is_declared_once_and_where_the_catalogue_says() -> None:
    assert m.message_types()[0x01] is m.Hello
    with pytest.raises(ValueError, match="Hello is declared twice"):
        declared("Hello", "connection")
    for name, module in (("Hello", "control"), ("Unheard", "connection")):
        with pytest.raises(ValueError, match=f"{name} of .*{module} is not in the catalogue"):
            declared(name, module)


LOADED = """
import sys
from dtd.wire import messages as m
loaded = lambda: {one.rpartition(".")[2] for one in sys.modules if one.startswith(m.__name__ + ".")}
before = loaded()
assert m.decode_message({"t": 0x13}) is not None
assert m.message_name(m.Chunk) == "CHUNK"
print(*sorted(before), *sorted(loaded() - before))
"""


def test_modules_are_loaded_when_their_messages_are_used_or_arrive() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["catalogue", "registry", "control", "data"]


# --- sending ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (m.ShowJob(job="x" * 256), r"SHOW_JOB cannot be sent: SHOW_JOB\.job: text of 256"),
        (m.Running(job="", generation=-1, step=0), r"RUNNING\.generation: -1 is not in"),
        (m.Running(job="", generation=1, step=2**64), r"RUNNING\.step"),
        (m.Running(job=cast("str", None), generation=1, step=0), r"RUNNING\.job: expected text"),
        (m.Evaluated(job="", step=0, metrics={"loss": object()}), "EVALUATED cannot be sent"),
        (m.Evaluated(job="", step=0, metrics={"n": 10**400}), "EVALUATED cannot be sent"),
    ],
)
def test_what_the_receiver_would_refuse_is_not_sent(message: Any, problem: str) -> None:
    with pytest.raises(LocalProtocolError, match=problem):
        m.encode_header(message)
