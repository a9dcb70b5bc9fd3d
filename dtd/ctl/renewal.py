"""Renews the credential of the dtdctl user after a command, when it is due.

Renewal is silent, except for a line on stderr when a credential that could not be renewed is about
to expire.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from dtd.ctl import output
from dtd.ctl.settings import CREDENTIAL_FILE, Settings
from dtd.errors import ConfigError, DtdError, RequestRefused
from dtd.security.clock import WARN_BEFORE_DAYS

TIMEOUT_S = 5.0


def renew_if_due(settings: Settings) -> None:
    """Renew the credential that a command has used, if the coordinator has said that it is time."""
    path = settings.credential_file()
    if path is None:
        return
    now = dt.datetime.now(dt.UTC)
    try:
        _renew(settings, path, now)
    except (DtdError, OSError) as error:
        _complain(path, now, str(error))


def _renew(settings: Settings, path: Path, now: dt.datetime) -> None:
    from dtd.net.blocking_link import BlockingLink
    from dtd.net.join_client import write_renewed
    from dtd.net.tls import tls_connect
    from dtd.security import certificates
    from dtd.security.credential import Credential
    from dtd.security.identity import COORDINATOR
    from dtd.wire import messages as m

    credential = Credential.load(path)
    target = next((one for one in settings.targets() if one.context is not None), None)
    if target is None or target.context is None:
        return
    key = certificates.new_key()
    link = BlockingLink(
        target.address,
        role=m.Role.CTL,
        name=CREDENTIAL_FILE,
        timeout_s=TIMEOUT_S,
        connect=tls_connect(target.context, COORDINATOR),
    )
    try:
        link.send(m.Renew(request_pem=certificates.request_pem(key).decode()))
        answer, _payload = link.receive(timeout_s=TIMEOUT_S)
    finally:
        link.close()
    if not isinstance(answer, m.Renewed) or not answer.certificate_pem:
        raise RequestRefused(getattr(answer, "reason", "") or "the coordinator did not answer")
    write_renewed(credential, key, answer, path, now=now)


def _complain(path: Path, now: dt.datetime, why: str) -> None:
    from dtd.security.credential import Credential

    try:
        days = Credential.load(path).days_left(now)
    except ConfigError:  # the command itself has said so
        return
    if days < WARN_BEFORE_DAYS:
        output.say(f"the credential {path} expires in {days} days and was not renewed: {why}")
