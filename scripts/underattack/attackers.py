"""Attackers, each a process of its own that runs until it is killed.

    python -m scripts.underattack.attackers half-open HOST:PORT
    python -m scripts.underattack.attackers member HOST:PORT CREDENTIAL NAME
    python -m scripts.underattack.attackers viewer HOST:PORT CREDENTIAL

*half-open*: 2,000 connections from as many addresses of 127.0.0.0/8 with half of a TLS greeting;
what is closed is opened again.  *member*: a worker's credential, and output, notices, heartbeats as
fast as they are taken.  *viewer*: a viewer's credential, as many connections as are let in, and
requests on all of them whose answers nobody reads.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from dtd import __version__
from dtd.address import Address
from dtd.errors import DtdError
from dtd.net.blocking_link import BlockingLink
from dtd.net.tls import tls_connect
from dtd.security.credential import Credential
from dtd.security.identity import COORDINATOR
from dtd.wire import messages as m

HALF_OPEN: Final = 2000
OPENED_AT_ONCE: Final = 20
PAUSE_S: Final = 0.05
HALF_A_GREETING: Final = b"\x16\x03\x01\x02\x00\x01"
"""The head of a TLS record that claims 512 bytes, and the first of them."""

VIEWER_CONNECTIONS: Final = 64
REQUESTS: Final = 60
PATIENCE_S: Final = 5.0
LINES: Final = b"\n" * (1024 * 1024)
MESSAGES_AT_ONCE: Final = 100


def half_open(address: Address) -> None:
    """Keep as many connections as there are addresses to call from."""
    open_ones = selectors.DefaultSelector()
    for number in range(HALF_OPEN):
        _open(address, number, open_ones)
        if number % OPENED_AT_ONCE == 0:
            time.sleep(PAUSE_S)
    while True:
        for key, _ in open_ones.select()[:OPENED_AT_ONCE]:
            open_ones.unregister(key.fileobj)
            _closed(key.fileobj)
            _open(address, key.data, open_ones)
        time.sleep(PAUSE_S)


def _open(address: Address, number: int, open_ones: selectors.BaseSelector) -> None:
    made = socket.socket()
    made.bind((f"127.{1 + number // 62500}.{number // 250 % 250}.{number % 250 + 1}", 0))
    made.settimeout(PATIENCE_S)
    with contextlib.suppress(OSError):
        made.connect((address.host, address.port))
        made.send(HALF_A_GREETING)
    made.settimeout(0.0)
    open_ones.register(made, selectors.EVENT_READ, number)


def _closed(connection: object) -> None:
    assert isinstance(connection, socket.socket)
    connection.close()


def member(address: Address, credential: Credential, name: str) -> None:
    """Register, and then send as much as is taken; again whenever the connection is ended."""
    while True:
        with contextlib.suppress(OSError, DtdError):
            _flood(_link(address, credential, m.Role.WORKER, "127.0.0.2"), name)
        time.sleep(PAUSE_S)


def _flood(link: BlockingLink, name: str) -> None:
    link.send(
        m.Register(
            name=name,
            incarnation=1,
            pid=1,
            host="here",
            device="cpu",
            data_host="127.0.0.1",
            data_port=4000,
            version=__version__,
        )
    )
    job = _job_of(link)
    reading = threading.Thread(target=_read, args=(link,), daemon=True)
    reading.start()
    notice = m.Notice(job=job, event="row_retried", message="x" * 1000)
    beat = m.Heartbeat(state="warming")
    try:
        while reading.is_alive():
            link.send_payload(m.JobOutput(job=job, rank=0), LINES)
            link.send(*[notice] * MESSAGES_AT_ONCE, *[beat] * MESSAGES_AT_ONCE)
    finally:
        link.abort()
        reading.join()
        link.close()


def _job_of(link: BlockingLink) -> str:
    """The job that this worker is told to warm up for, and now seems to."""
    while True:
        message, _payload = link.receive(timeout_s=PATIENCE_S)
        if isinstance(message, m.Prepare):
            return message.job


def _read(link: BlockingLink) -> None:
    with contextlib.suppress(OSError, DtdError):
        while True:
            link.receive()


def viewer(address: Address, credential: Credential) -> None:
    """Ask for the longest answers on every connection, and read none of them."""
    idle: list[BlockingLink] = []
    while True:
        idle = [link for link in idle if not _asked(link)]
        with contextlib.suppress(OSError, DtdError):
            if len(idle) < VIEWER_CONNECTIONS:
                idle.append(_link(address, credential, m.Role.CTL, "127.0.0.3"))
        time.sleep(PAUSE_S)


def _asked(link: BlockingLink) -> bool:
    """Ask for more than is answered at once; True when the connection is gone."""
    try:
        questions: list[m.Message] = [m.ReadEvents(), m.ListJobs(), m.GetFigures()]
        link.send(*questions * (REQUESTS // len(questions)))
    except TimeoutError:
        return False
    except OSError:
        link.close()
        return True
    return False


def _link(address: Address, credential: Credential, role: m.Role, source: str) -> BlockingLink:
    def connect(where: Address, timeout_s: float) -> socket.socket:
        return socket.create_connection((where.host, where.port), timeout_s, (source, 0))

    return BlockingLink(
        address,
        role=role,
        name="attacker",
        timeout_s=PATIENCE_S,
        connect=tls_connect(credential.client_context(), COORDINATOR, under=connect),
    )


KINDS: Final[Mapping[str, Callable[[Address, list[str]], None]]] = {
    "half-open": lambda address, _more: half_open(address),
    "member": lambda address, more: member(address, Credential.load(Path(more[0])), more[1]),
    "viewer": lambda address, more: viewer(address, Credential.load(Path(more[0]))),
}


if __name__ == "__main__":
    KINDS[sys.argv[1]](Address.parse(sys.argv[2]), sys.argv[3:])
