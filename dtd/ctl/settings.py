"""Options of every dtdctl command: the coordinator's address and the output format.

`--coordinator`, `--credential` and `-o` may be before or after the command's name;
`take_settings` collects them from wherever they are, but for the `--coordinator` of `install`,
which names a part.
Precedence: flag, DTD_COORDINATOR and DTD_CREDENTIAL, default.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dtd.address import Endpoint, parse_endpoint
from dtd.errors import ConfigError, CoordinatorUnreachable, UsageError
from dtd.host.places import operator_file
from dtd.net.clients.control_client import DEFAULT_TIMEOUT_S, ControlClient
from dtd.security.targets import Target, credential_places, find_credential, targets, targets_here
from dtd.text.shown import escaped_value

if TYPE_CHECKING:  # loaded when there is one
    import ssl

    from dtd.security.credential import Credential

ADDRESS_VARIABLE: Final = "DTD_COORDINATOR"
EXAMPLE_ADDRESS: Final = "10.0.0.1:7117"
FORMS: Final = ("table", "wide", "json")
FORMS_OF: Final = {"metrics": (*FORMS, "csv", "parquet"), "report": ("html", "md", "json")}
"""Output formats of commands that have others; the first is the default."""
CREDENTIAL_VARIABLE: Final = "DTD_CREDENTIAL"
CREDENTIAL_FILE: Final = "ctl.credential"
SYSTEM_FILE: Final = Path("/etc/dtd") / CREDENTIAL_FILE
OPTIONS: Final = {
    "--coordinator": "coordinator",
    "--credential": "credential",
    "--format": "form",
    "-o": "form",
}
"""Options of every command, each with a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The coordinator's address, the credential and the output format.

    Attributes:
        addresses: as typed; empty: the credential's, without one the sockets of this host.
        clients: the connections that the command has opened.
    """

    addresses: tuple[Endpoint, ...]
    credential: Path | None
    form: str = FORMS[0]
    clients: list[ControlClient] = field(default_factory=list, compare=False)

    @property
    def as_json(self) -> bool:
        return self.form == "json"

    @property
    def is_wide(self) -> bool:
        return self.form == "wide"

    def connect(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> ControlClient:
        """Open a connection to the first of the coordinator's addresses that answers.

        `timeout_s` bounds connecting to each, and each answer.
        """
        # What others wrote must not steer a terminal, now or when a file is looked at; JSON is
        # escaped when it is printed, and reads as it came.
        clean = None if self.as_json else escaped_value
        tried = self.targets()
        for target in tried[:-1]:
            with contextlib.suppress(CoordinatorUnreachable):
                return self._connected(target, clean, timeout_s)
        return self._connected(tried[-1], clean, timeout_s)

    def _connected(
        self, to: Target, clean: Callable[[Any], Any] | None, timeout_s: float
    ) -> ControlClient:
        client = ControlClient(
            to.address, timeout_s, context=to.context, credential=to.credential, clean=clean
        )
        self.clients.append(client)
        return client

    def targets(self) -> tuple[Target, ...]:
        """Return the coordinator's addresses, with the credentials for them."""
        path = self.credential_file()
        if not self.addresses and path in (None, operator_file(os.environ)):
            return targets_here(os.environ)
        try:
            return targets(self.addresses, _load(path) if path is not None else None)
        except ConfigError as error:
            raise UsageError(error.message, remedy=error.remedy) from None

    def tls_context(self) -> ssl.SSLContext | None:
        """TLS for calling other members of the cluster; None without a credential."""
        path = self.credential_file()
        try:
            return _load(path).client_context() if path is not None else None
        except ConfigError as error:
            raise UsageError(error.message, remedy=error.remedy) from None

    def credential_file(self) -> Path | None:
        own = operator_file(os.environ)
        places = credential_places(CREDENTIAL_FILE, os.environ, system=(SYSTEM_FILE, own))
        return self.credential or find_credential(places)


def _load(path: Path) -> Credential:
    from dtd.security.credential import Credential, check_role
    from dtd.security.identity import OPERATOR, VIEWER

    credential = Credential.load(path)
    check_role(credential, OPERATOR, VIEWER)
    return credential


def take_settings(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split off the options that every command has; everything after `--` stays.

    Returns:
        (the options' last values by name, the other arguments in order)
    """
    values: dict[str, str] = {}
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--":
            rest += [word, *words]
            break
        option, joined, value = word.partition("=")
        if word.startswith("-o") and word not in OPTIONS:
            option, joined, value = "-o", "=", word[2:].removeprefix("=")
        is_part = word == "--coordinator" and rest[:1] in (["install"], ["uninstall"])
        if option not in OPTIONS or is_part:
            rest.append(word)
            continue
        if not joined:
            value = next(words, "")
        if not value:
            raise UsageError(f"{option} needs a value", remedy=_example(option))
        values[OPTIONS[option]] = value
    return values, rest


def make_settings(values: dict[str, str], command: str = "") -> Settings:
    """Check the collected values, and fill in the environment's and the defaults of a command."""
    forms = FORMS_OF.get(command, FORMS)
    form = values.get("form", forms[0])
    if form not in forms:
        from dtd.rules import did_you_mean  # seldom needed, and slow to load

        where = f" of {command}" if any(form in others for others in FORMS_OF.values()) else ""
        raise UsageError(
            f"-o: {form!r} is not an output format{where}{did_you_mean(form, forms)}",
            remedy=f"-o {'|'.join(forms)}",
        )
    typed = values.get("coordinator")
    source = "--coordinator" if typed else ADDRESS_VARIABLE
    text = typed or os.environ.get(ADDRESS_VARIABLE) or ""
    credential = values.get("credential") or os.environ.get(CREDENTIAL_VARIABLE)
    words = text.split(",") if text else []
    return Settings(
        addresses=tuple(read_endpoint(word.strip(), source=source) for word in words),
        credential=Path(credential).expanduser() if credential else None,
        form=form,
    )


def read_endpoint(text: str, *, source: str) -> Endpoint:
    """Return the coordinator's address as typed; the error names the flag or variable."""
    try:
        return parse_endpoint(text)
    except UsageError as error:
        remedy = f"write HOST:PORT, for example {EXAMPLE_ADDRESS}, or unix:/PATH"
        raise UsageError(f"{source} {error.message}", remedy=remedy) from None


def _example(option: str) -> str:
    if option == "--coordinator":
        return f"write {option} HOST:PORT, for example {option} {EXAMPLE_ADDRESS}"
    return f"write {option} {'FILE' if option == '--credential' else ' or '.join(FORMS)}"
