"""The blocking client: answers, refusals, and a sentence for every way to fail."""

from __future__ import annotations

import threading

import msgpack
import pytest

from dtd.errors import CoordinatorUnreachable, RequestRefused
from dtd.net.clients.control_client import ControlClient
from dtd.wire import messages as m


def test_an_answer_that_takes_long_is_waited_for_as_long_as_is_asked(server, result):
    go = threading.Event()

    def script(_message: m.Message) -> bytes:
        go.wait(10)
        return result({"file": "a"})

    server.script = script
    with ControlClient(server.control) as client:
        with pytest.raises(CoordinatorUnreachable, match=r"no answer within 0\.02 s"):
            client.request(m.Profile(job="a"), within_s=0.02)
        go.set()
    with ControlClient(server.control) as client:
        client._timeout_s = 0.0  # once it is connected, which takes its time
        assert client.request(m.Profile(job="a"), within_s=10) == {"file": "a"}


def test_a_refusal_carries_its_remedy(server, refusal):
    server.script = lambda _message: refusal
    with ControlClient(server.control) as client, pytest.raises(RequestRefused) as caught:
        client.request(m.CancelJob(job="x"))
    assert caught.value.message == "job 'x' does not exist"
    assert caught.value.remedy == "see `dtdctl jobs`"
    assert caught.value.exit_code == 1


def test_no_answer_in_time(server):
    server.script = lambda _message: b""
    with ControlClient(server.control) as client:
        client._timeout_s = 0.02  # once it is connected, which takes its time
        with pytest.raises(CoordinatorUnreachable, match=r"no answer within 0\.02 s") as caught:
            client.request(m.GetStatus())
    assert caught.value.remedy == "it may still be starting, be busy or be stuck: read its log"


@pytest.mark.parametrize(
    ("bytes_", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "frame begins with 48545450"),
        (
            m.message_bytes(m.Registered(heartbeat_interval_s=1, heartbeat_timeout_s=2)),
            "REGISTERED",
        ),
        (m.message_bytes(m.Result(), b"\xc1"), "not valid msgpack"),
        (m.message_bytes(m.Result(), msgpack.packb([1])), "does not carry a map"),
        (m.message_bytes(m.Error(code=2, message="protocol 3..3, not 1")), r"protocol 3\.\.3"),
        (m.message_bytes(m.Error(code=999, message="from the future")), "from the future"),
    ],
)
def test_what_answers_is_no_coordinator(server, bytes_, why):
    server.script = lambda _message: bytes_
    with (
        ControlClient(server.control) as client,
        pytest.raises(CoordinatorUnreachable, match=why) as caught,
    ):
        client.request(m.GetStatus())
    assert caught.value.remedy
