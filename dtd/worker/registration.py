"""What a worker says of itself when it calls the coordinator."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import replace

from dtd import __version__
from dtd.address import Address
from dtd.config import WorkerConfig
from dtd.shown import one_line
from dtd.wire import messages as m
from dtd.wire.data_keys import membership_proof
from dtd.wire.fields import NAME_CHARACTERS


def proved(register: m.Register, assign: m.Assign | None) -> m.Register:
    """The registration with the proof that the coordinator has made this process a member.

    Args:
        register: how this process introduces itself.
        assign: of the generation that it takes part in, if any.
    """
    if assign is None or not register.generation:
        return register
    proof = membership_proof(
        assign.secret,
        job=register.job,
        generation=register.generation,
        roster_id=register.roster_id,
        name=register.name,
        incarnation=register.incarnation,
    )
    return replace(register, proof=proof)


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
        last_end=one_line(last_end, NAME_CHARACTERS),
        instance=instance,
    )
