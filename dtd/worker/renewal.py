"""Renews the worker's credential when the coordinator asks for it.

The coordinator decides when, by its own clock.  The connection to the coordinator and the ring stay
open; new connections show the new credential.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from dtd.errors import ConfigError
from dtd.security.credential import Credential, place_of_renewed
from dtd.wire import messages as m

if TYPE_CHECKING:  # takes long to load, and a credential is seldom renewed
    from cryptography.hazmat.primitives.asymmetric import ec

log = structlog.get_logger()


class CredentialRenewal:
    """Renews one credential, again and again.

    Args:
        credential: the worker's credential.
        state_dir: where the new one goes if the old one's file must not be written.
        send: sends a message to the coordinator.
        renewed: told of each new one.
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
    """Blocking.

    Raises:
        ConfigError: the new credential is no good, or cannot be written.
    """
    from dtd.net.join_client import write_renewed

    path = place_of_renewed(credential.path, state_dir)
    return write_renewed(credential, key, answer, path, now=dt.datetime.now(dt.UTC))
