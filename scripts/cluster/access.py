"""A cluster's authority and one credential each, made before any daemon runs.

What `dtd-coordinator init` and `dtd-worker join` do on real hosts, without a coordinator that must
be up and reachable meanwhile: the harness has all the directories at hand.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path

from dtd.address import Address
from dtd.security.authority import DIRECTORY, OPERATOR_FILE, Authority
from dtd.security.credential import Credential
from dtd.security.identity import WORKER
from dtd.security.private_files import make_private_directory


class ClusterAccess:
    """Everybody's proof of who they are.

    Args:
        coordinator_dir: the coordinator's state directory, where its authority is made.
        coordinator: its address.
        credentials_dir: where the workers' credentials go; made.
        workers: their names.

    Attributes:
        operator_context: TLS for the harness's own requests.
    """

    def __init__(
        self,
        *,
        coordinator_dir: Path,
        coordinator: Address,
        credentials_dir: Path,
        workers: Sequence[str],
    ) -> None:
        pki = coordinator_dir / DIRECTORY
        make_private_directory(coordinator_dir)
        make_private_directory(credentials_dir)
        authority = Authority.create(pki)
        authority.equip((coordinator,))
        self._paths = {name: credentials_dir / f"{name}.credential" for name in workers}
        for name, path in self._paths.items():
            authority.enrol(path, WORKER, name, coordinators=(coordinator,))
        operator = Credential.load(pki / OPERATOR_FILE)
        self.operator_context: ssl.SSLContext = operator.client_context()

    def arguments(self, worker: str) -> list[str]:
        """A worker's options that have to do with who it is."""
        return ["--credential", str(self._paths[worker])]
