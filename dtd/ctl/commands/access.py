"""Commands for access control: join, token, credentials, revoke, audit, web.

Also renews the credential of the dtdctl user after a command, when that is due.
"""

from __future__ import annotations

import datetime as dt
import getpass
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from dtd.ctl import output
from dtd.ctl.answers import Answer, ask_and_show, items
from dtd.ctl.settings import CREDENTIAL_FILE, Settings
from dtd.errors import ConfigError, DtdError, RequestRefused, UsageError
from dtd.host.places import config_home
from dtd.security.certificate_life import WARN_BEFORE_DAYS
from dtd.security.identity import COORDINATOR, JOINABLE, WORKER
from dtd.security.token import Token, parse_life_s
from dtd.text.figures import NOTHING, duration, moment
from dtd.text.names import name_of
from dtd.wire import messages as m

_AUDIT_HEADINGS: Final = ("TIME", "WHO", "FROM", "WHAT", "ABOUT", "OUTCOME", "RESULT")
_RENEWAL_TIMEOUT_S: Final = 5.0


def join(settings: Settings, text: str, *, name: str) -> None:
    """Get this user a credential for a token."""
    from dtd.net.clients.join_client import join as get_credential

    token = Token.parse(text)
    if token.role == WORKER:
        raise UsageError(
            "the token is for the role worker",
            remedy="run `dtd-worker join TOKEN`, or ask for a token of the role operator or viewer",
        )
    path = settings.credential or _own_place()
    made = get_credential(token, name=name or _own_name(), path=path.absolute())
    output.say(f"{made.path}: {made.name} is {made.role} until {made.expires:%Y-%m-%d}")


def create_token(
    settings: Settings,
    *,
    role: str,
    life: str,
    uses: int = 1,
    names: Sequence[str] = (),
    replaces: bool = False,
) -> None:
    """Create a token and print it: one word, shown only once."""
    if role not in JOINABLE:
        raise UsageError(f"--role: {role!r} is not a role", remedy=f"one of {', '.join(JOINABLE)}")
    life_s = parse_life_s(life)
    command = "dtd-worker" if role == WORKER else "dtdctl"
    request = m.CreateToken(
        role=role, life_s=life_s, uses=uses, names=",".join(names), replaces=replaces
    )
    ask_and_show(settings, request, lambda answer: _print_token(answer, command))


def _print_token(answer: Answer, command: str) -> None:
    until = moment(answer["expires_s"]) if answer["expires_s"] else "revoked"
    times = "once" if answer["uses"] == 1 else f"{answer['uses']} times"
    names = f", for {', '.join(answer['names'])}" if answer["names"] else ""
    output.say(
        f"token {answer['id']}: valid {times} until {until}{names}; to use it: {command} join TOKEN"
    )
    output.print_lines([answer["token"]])


def list_tokens(settings: Settings) -> None:
    """List all tokens, without their secrets."""
    ask_and_show(settings, m.ListTokens(), _print_tokens)


def _print_tokens(answer: Answer) -> None:
    output.print_table(
        ("TOKEN", "ROLE", "USED", "NAMES", "MADE", "EXPIRES"), map(_token_row, answer["tokens"])
    )


def revoke_token(settings: Settings, token: str) -> None:
    """Revoke a token, so that it can no longer be used to join."""
    said = "token {id} can no longer be used to join; members that joined with it remain"
    ask_and_show(settings, m.RevokeToken(id=token), said)


def list_credentials(settings: Settings) -> None:
    """List the credentials that were issued."""
    ask_and_show(settings, m.ListCredentials(), _print_credentials)


def _print_credentials(answer: Answer) -> None:
    headings = ("NAME", "ROLE", "STATE", "ISSUED", "EXPIRES", "SERIAL")
    output.print_table(headings, map(_credential_row, answer["credentials"]))


def revoke(settings: Settings, name: str) -> None:
    """Revoke a credential: its connections end, its workers are evicted."""
    request = m.RevokeCredential(name=name)
    ask_and_show(settings, request, lambda answer: _say_revoked(answer, name))


def _say_revoked(answer: Answer, name: str) -> None:
    for one in answer["revoked"]:
        output.say(f"{one['role']}/{one['name']} ({one['serial']}) revoked")
    if not answer["revoked"]:
        output.say(f"{name} was already revoked")
    if answer["evicted"]:
        output.say(f"evicted: {', '.join(answer['evicted'])}")


def show_authority(settings: Settings) -> None:
    """Show the authority."""

    def say(answer: Answer) -> None:
        output.say(f"authority {answer['sha256'][:16]}, until {moment(answer['expires_s'])}")

    ask_and_show(settings, m.ShowAuthority(), say)


def _token_row(one: dict[str, Any]) -> tuple[str, ...]:
    expires = "expired" if one["expired"] else _left(one["expires_s"])
    used = f"{len(one['used'])} of {one['uses']}"
    names = ",".join(one["names"]) or NOTHING
    return one["id"], one["role"], used, names, moment(one["created_s"]), expires


def _credential_row(one: dict[str, Any]) -> tuple[str, ...]:
    state = "revoked" if one["revoked_s"] else "valid"
    dates = moment(one["issued_s"]), moment(one["expires_s"])
    return one["name"], one["role"], state, *dates, one["serial"]


def _left(expires_s: float) -> str:
    return f"in {duration(expires_s - time.time())}" if expires_s else "never"


def _own_place() -> Path:
    return config_home(remedy="name the file with --credential FILE") / "dtd" / CREDENTIAL_FILE


def _own_name() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # it is in no list of users, as in a container
        user = f"user{os.getuid()}"
    return name_of(f"{user}-{platform.node()}", most=60)


def show_audit(settings: Settings, *, since_s: float, who: str, what: str) -> None:
    """Print the requested entries of the audit log, oldest first; in JSON one object a line."""
    asked = m.ReadAudit(since_s=since_s, who=who, what=what)
    with settings.connect() as client:
        seen = list(items(client.request, lambda after: replace(asked, after=after), "entries"))
    if settings.as_json:
        for entry in seen:
            output.print_json(entry)
    else:
        output.print_table(_AUDIT_HEADINGS, map(_entry_row, seen))


def _entry_row(entry: Mapping[str, Any]) -> tuple[str, ...]:
    why = entry["reason"] or _words(entry["result"])
    more = f" ({entry['skipped']} more refusals before it)" if entry["skipped"] else ""
    return (
        moment(entry["time_s"]),
        f"{entry['role']}/{entry['who']}",
        entry["address"] or NOTHING,
        entry["what"],
        _words(entry["about"]) or NOTHING,
        entry["outcome"],
        f"{why or NOTHING}{more}",
    )


def _words(values: Mapping[str, Any]) -> str:
    """A map in words; a certificate or a name in a list is shown by its content."""
    return " ".join(f"{key}={_word(value)}" for key, value in values.items())


def _word(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_word, value))
    if isinstance(value, dict):
        return "/".join(map(_word, value.values()))
    return str(value)


def open_web(settings: Settings) -> None:
    """Print the page's address with a code in it, which is sent to nobody but the page."""
    with settings.connect() as client:
        answer = client.request(m.OpenWeb())
    link = f"{answer['url']}#login={answer['code']}"
    if settings.as_json:
        output.print_json({**answer, "link": link})
        return
    output.print_lines([link])
    output.say(f"the link works once, until {moment(answer['expires_unix_s'])}, and logs in as you")
    if answer["certificate_sha256"]:
        output.say(
            "the browser does not know this certificate; compare its SHA-256 fingerprint:"
            f" {answer['certificate_sha256']}"
        )


def renew_if_due(settings: Settings) -> None:
    """Renew the credential that a command has used, if the coordinator has said that it is time.

    Silent, but for a line on stderr when a credential that could not be renewed is about to expire.
    """
    path = settings.credential_file()
    if path is None:
        return
    now = dt.datetime.now(dt.UTC)
    try:
        _renew(settings, path, now)
    except (DtdError, OSError) as error:
        _complain(path, now, str(error))


def _renew(settings: Settings, path: Path, now: dt.datetime) -> None:
    from dtd.net.clients.blocking_link import BlockingLink
    from dtd.net.clients.join_client import write_renewed
    from dtd.net.clients.tls import tls_connect
    from dtd.security import certificates
    from dtd.security.credential import Credential

    credential = Credential.load(path)
    target = next((one for one in settings.targets() if one.context is not None), None)
    if target is None or target.context is None:
        return
    key = certificates.new_key()
    link = BlockingLink(
        target.address,
        role=m.Role.CTL,
        name=CREDENTIAL_FILE,
        timeout_s=_RENEWAL_TIMEOUT_S,
        connect=tls_connect(target.context, COORDINATOR),
    )
    try:
        link.send(m.Renew(request_pem=certificates.request_pem(key).decode()))
        answer, _payload = link.receive(timeout_s=_RENEWAL_TIMEOUT_S)
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
