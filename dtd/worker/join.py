"""`dtd-worker join TOKEN`: make this host a member of a cluster."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from dtd.errors import UsageError
from dtd.names import name_of
from dtd.net.join_client import join
from dtd.places import config_home
from dtd.security.identity import USUAL_INSTANCES, WORKER, check_names, split_names, worker_names
from dtd.security.token import Token
from dtd.worker.cluster_access import FILE_NAME, SYSTEM_FILE

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
        "their names; default: cpu,cuda0 and so on to cuda15",
    )
    parser.add_argument(
        "--credential", metavar="FILE", type=Path, help="where to store the credential"
    )
    given = parser.parse_args(arguments)
    token = Token.parse(given.token)
    if token.role != WORKER:
        raise UsageError(
            f"the token is for the role {token.role}",
            remedy=f"run `dtdctl join TOKEN`, or ask for a token of the role {WORKER}",
        )
    path = given.credential or own_place()
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
