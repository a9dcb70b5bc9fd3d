"""How a worker joins a cluster, authenticates to its coordinator, and renews its credential."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import datetime as dt
import functools
import os
import platform
import secrets
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from dtd import __version__
from dtd.address import ANY_IPV4, ANY_IPV6, Address
from dtd.config import DEFAULT_DATA_ADDRESS, WorkerConfig
from dtd.errors import ConfigError, UsageError
from dtd.host.places import config_home, find_sockets
from dtd.net.addresses.interfaces import interfaces, offered
from dtd.security.certificate_life import WARN_BEFORE_DAYS
from dtd.security.credential import (
    Credential,
    check_role,
    place_of_renewed,
    places_of_renewed,
    with_renewed,
)
from dtd.security.identity import (
    USUAL_INSTANCES,
    WORKER,
    check_names,
    split_names,
    worker_names,
)
from dtd.security.targets import Target, credential_places, find_credential, targets, targets_here
from dtd.security.token import Token
from dtd.text.names import name_of
from dtd.text.shown import one_line
from dtd.wire import messages as m
from dtd.wire.fields import NAME_CHARACTERS
from dtd.worker.process.host_checks import best_instructions

if TYPE_CHECKING:  # takes long to load, and a credential is seldom renewed
    from cryptography.hazmat.primitives.asymmetric import ec

log = structlog.get_logger()


def registration(
    config: WorkerConfig, bound: Address, *, last_end: str = "", instance: str = ""
) -> m.Register:
    """REGISTER of this process, with an incarnation of its own (protocol.md, REGISTER)."""
    advertised = config.advertised(bound)
    host = advertised.host
    if advertised.is_wildcard:  # then as the coordinator sees it, and at all of the host's
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
        instructions=best_instructions(config.device, os.environ),
    )


def with_hosts(register: m.Register) -> m.Register:
    """REGISTER with the present addresses of this host, if the worker listens on all of them."""
    if register.data_host not in ("", ANY_IPV4):
        return register
    others = offered(interfaces(), ipv4_only=register.data_host == ANY_IPV4)
    return dataclasses.replace(register, others=others)


# --- how a worker authenticates to the coordinator, and what that means for its settings ---------


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


ALONE: Final = "none"
"""The value of DTD_COORDINATOR with which a script is trained alone, wherever it is."""


def is_in_cluster(environ: Mapping[str, str]) -> bool:
    """Whether scripts that this user starts by hand are workers of a cluster.

    They are where a coordinator is named, by the environment or the host's credential, or has its
    socket on this host.
    """
    named = environ.get("DTD_COORDINATOR", "")
    if named:
        return named != ALONE
    if environ.get("DTD_CREDENTIAL") or find_credential(places(environ)) is not None:
        return True
    return any(os.access(one.path, os.W_OK) for one in find_sockets(environ))


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


# --- renewal, when the coordinator asks for it ---------------------------------------------------


class CredentialRenewal:
    """Renews one credential, again and again.

    Args:
        state_dir: where the new one goes if the old one's file must not be written.
    """

    def __init__(
        self,
        credential: Credential,
        state_dir: Path,
        *,
        send: Callable[[m.Message], None],
        renewed: Callable[[Credential], None],
    ) -> None:
        self._credential = credential
        self._state_dir = state_dir
        self._send = send
        self._renewed = renewed
        self._key: ec.EllipticCurvePrivateKey | None = None
        self._task: asyncio.Task[None] | None = None

    def received(self, answer: m.Renewed) -> None:
        """Handle the coordinator's request to renew, or its answer."""
        if answer.reason:
            log.info("credential_not_renewed", reason=answer.reason)
        elif not answer.certificate_pem:
            self._task = asyncio.create_task(self._ask())
        elif self._key is not None:
            self._task = asyncio.create_task(self._take(self._key, answer))
            self._key = None

    async def _ask(self) -> None:
        loop = asyncio.get_running_loop()
        self._key, request = await loop.run_in_executor(None, _request)
        self._send(m.Renew(request_pem=request))

    async def _take(self, key: ec.EllipticCurvePrivateKey, answer: m.Renewed) -> None:
        loop = asyncio.get_running_loop()
        take = functools.partial(_write, self._credential, key, answer, self._state_dir)
        try:
            self._credential = await loop.run_in_executor(None, take)
        except ConfigError as error:
            log.warning("credential_not_renewed", reason=str(error))
            return
        log.info(
            "credential_taken_over",
            credential=str(self._credential.key_path),
            expires=self._credential.expires.isoformat(),
        )
        self._renewed(self._credential)
        self._send(m.Renew(taken=self._credential.serial))


def _request() -> tuple[ec.EllipticCurvePrivateKey, str]:
    """A new key, and the request for its certificate.  Blocking."""
    from dtd.security import certificates

    key = certificates.new_key()
    return key, certificates.request_pem(key).decode()


def _write(
    credential: Credential, key: ec.EllipticCurvePrivateKey, answer: m.Renewed, state_dir: Path
) -> Credential:
    """Blocking."""
    from dtd.net.clients.join_client import write_renewed

    path = place_of_renewed(credential.path, state_dir)
    return write_renewed(credential, key, answer, path, now=dt.datetime.now(dt.UTC))


# --- `dtd-worker join TOKEN` ---------------------------------------------------------------------


COMMAND = "join"


def run_join(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code.

    Raises:
        DtdError: it failed; the sentence is for the person who typed it.
    """
    parser = argparse.ArgumentParser(
        prog="dtd-worker join", description="Exchange a token for a credential of this host."
    )
    parser.add_argument("token", metavar="TOKEN", help="token printed by `dtdctl token create`")
    parser.add_argument("--name", help="the host's name in the cluster; default: its host name")
    parser.add_argument(
        "--instances",
        metavar="LIST",
        help="its workers, separated by commas: what follows dtd-worker@, or any other suffix of "
        "their names; default: cpu, cuda0 to cuda15, server, hand0 to hand15",
    )
    parser.add_argument(
        "--credential",
        metavar="FILE",
        type=Path,
        default=os.environ.get("DTD_CREDENTIAL") or None,
        help="where to store the credential; default: DTD_CREDENTIAL, then as the worker looks for"
        " it",
    )
    given = parser.parse_args(arguments)
    from dtd.net.clients.join_client import join  # with cryptography, as above

    token = Token.parse(given.token)
    if token.role != WORKER:
        raise UsageError(
            f"the token is for the role {token.role}",
            remedy=f"run `dtdctl join TOKEN`, or ask for a token of the role {WORKER}",
        )
    path = (given.credential or own_place()).expanduser()
    name = given.name or host_name()
    instances = USUAL_INSTANCES if given.instances is None else split_names(given.instances)
    workers = worker_names(name, instances)
    check_names(name, workers)
    credential = join(token, name=name, path=path.absolute(), workers=workers)
    sys.stderr.write(
        f"{credential.path}: this host is {credential.name} until {credential.expires:%Y-%m-%d};"
        " start dtd-worker, or restart it\n"
    )
    return 0


def own_place() -> Path:
    """Return the path for a credential that this user makes."""
    if os.geteuid() == 0:
        return SYSTEM_FILE
    return config_home(remedy="name the file with --credential FILE") / "dtd" / FILE_NAME


def host_name() -> str:
    """This machine's name as a name in the cluster."""
    return name_of(platform.node(), most=40) or WORKER
