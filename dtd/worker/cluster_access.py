"""A worker's registration, and its access to the cluster."""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from dtd import __version__
from dtd.address import ANY_IPV4, ANY_IPV6, Address
from dtd.config import DEFAULT_DATA_ADDRESS, WorkerConfig
from dtd.errors import ConfigError
from dtd.security.clock import WARN_BEFORE_DAYS
from dtd.security.credential import Credential, check_role, places_of_renewed, with_renewed
from dtd.security.identity import WORKER
from dtd.security.targets import Target, credential_places, find_credential, targets, targets_here
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
        config: the worker's settings.
        bound: where its data port listens.
        last_end: how the process before this one ended; empty: in good order.
        instance: of its state directory.
    """
    advertised = config.advertised(bound)
    host = advertised.host
    if advertised.is_wildcard:  # then as the coordinator sees it
        host = "" if ":" in host else ANY_IPV4
    return m.Register(
        name=config.name,
        incarnation=secrets.randbits(62) | 1,
        pid=os.getpid(),
        host=socket.gethostname(),
        device=config.device,
        data_host=host,
        data_port=advertised.port,
        version=__version__,
        last_end=one_line(last_end, NAME_CHARACTERS),
        instance=instance,
        serves=config.role == "server",
    )


# ---
# How a worker authenticates to the coordinator, and what that means for its settings.


log = structlog.get_logger()

FILE_NAME: Final = "worker.credential"
SYSTEM_FILE: Final = Path("/etc/dtd") / FILE_NAME
EVERYWHERE: Final = Address(ANY_IPV6, 0)
"""Serves IPv4 as well; its data port wants a secret of everyone."""


def places(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the files in which a worker's credential is looked for.

    The home directory is not searched if a service manager passes credentials: the unit's home
    is a directory to which jobs write.
    """
    managed = environ.get("CREDENTIALS_DIRECTORY")
    if managed:
        return Path(managed) / FILE_NAME, SYSTEM_FILE
    return credential_places(FILE_NAME, environ, system=(SYSTEM_FILE,))


def load_credential(
    config: WorkerConfig, environ: Mapping[str, str]
) -> tuple[Credential | None, tuple[ConfigError, ...]]:
    """The worker's credential, if it has one.

    Returns:
        the credential with its newest certificate, and for each file with a renewed certificate
        that does not count the reason.

    Raises:
        ConfigError: it is damaged, expired, or of another role.
    """
    path = config.credential or find_credential(places(environ))
    if path is None:
        return None, ()
    given = Credential.read(path, environ)
    check_role(given, WORKER)
    credential, ignored = with_renewed(given, places_of_renewed(config.state_dir))
    credential.check_life(dt.datetime.now(dt.UTC))
    return credential, ignored


def settled(config: WorkerConfig, credential: Credential | None) -> WorkerConfig:
    """The settings, completed from the credential.

    Raises:
        ConfigError: the worker would accept any connection, or its credential does not permit its
            name.
    """
    if credential is None:
        if config.listen.is_loopback:
            return config
        raise ConfigError(
            f"listen: {config.listen} is not a loopback address, and this host has no credential,"
            " so its data port could not authenticate connections",
            remedy="ask for a token: on the coordinator's host run `dtdctl token create`, then"
            " `dtd-worker join TOKEN` here; or listen on 127.0.0.1",
        )
    if config.name not in credential.workers:
        some = ", ".join(credential.workers[:3])
        ending = config.name.removeprefix(f"{credential.name}-")
        raise ConfigError(
            f"name: {config.name} is not a name that the credential {credential.path} permits",
            remedy=f"use a name that it permits ({some}, ...), or ask for a token of"
            f" `dtdctl token create --name {credential.name} --replace` and join with --instances"
            f" {ending}"
            if config.name.startswith(f"{credential.name}-")
            else f"use a name that it permits ({some}, ...), or join with --name {config.name}",
        )
    if config.listen is DEFAULT_DATA_ADDRESS:  # nobody has chosen an address, not even this one
        return dataclasses.replace(config, listen=EVERYWHERE)
    return config


def coordinator_targets(
    config: WorkerConfig, credential: Credential | None, environ: Mapping[str, str]
) -> Callable[[], tuple[Target, ...]]:
    """The coordinator's addresses and TLS context; on this host its socket is found each time.

    Raises:
        ConfigError: it is called over TCP, and there is no credential.
    """
    told = targets(config.coordinator, credential)
    return lambda: told or targets_here(environ)


def warn_of_certificates(credential: Credential, ignored: Iterable[ConfigError]) -> None:
    """Log files with renewed certificates that do not count, and a certificate that ends soon."""
    for error in ignored:
        log.warning("renewed_credential_ignored", reason=error.message, remedy=error.remedy)
    days = credential.days_left(dt.datetime.now(dt.UTC))
    if days < WARN_BEFORE_DAYS:
        log.warning("credential_expires_soon", days=days, credential=str(credential.key_path))
