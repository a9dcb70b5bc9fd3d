"""What a worker says of itself when it calls the coordinator."""

from __future__ import annotations

import os
import secrets
import socket

from dtd import __version__
from dtd.address import Address
from dtd.config import WorkerConfig
from dtd.wire import messages as m


def registration(
    config: WorkerConfig, bound: Address, *, last_end: str = "", instance: str = ""
) -> m.Register:
    """REGISTER of this process, with an incarnation of its own (protocol.md, REGISTER).

    Args:
        config: who it is.
        bound: where its data port listens.
        last_end: how the process before this one ended; empty: in good order.
        instance: of its state directory.
    """
    advertised = config.advertised(bound)
    return m.Register(
        name=config.name,
        incarnation=secrets.randbits(62) | 1,
        pid=os.getpid(),
        host=socket.gethostname(),
        device=config.device,
        data_host="" if advertised.is_wildcard else advertised.host,  # then as it is seen
        data_port=advertised.port,
        version=__version__,
        last_end=last_end,
        instance=instance,
    )
