"""Which other workers cannot be reached from here: for the log and for `systemctl status`."""

from __future__ import annotations

import structlog

from dtd import troubles
from dtd.address import Address
from dtd.troubles import Trouble
from dtd.wire import messages as m

log = structlog.get_logger()


class PeerTroubles:
    """The workers that probes have not reached; a cluster has at most `MAX_WORLD` of them."""

    def __init__(self) -> None:
        self._unreached: dict[str, Trouble] = {}

    @property
    def first(self) -> Trouble | None:
        """The one that has lasted longest."""
        return next(iter(self._unreached.values()), None)

    def probed(self, probe: m.Probe, answer: m.Probed) -> None:
        """A worker was called; a failure is logged when it is news."""
        known = self._unreached.pop(probe.name, None)
        if answer.reachable:
            return
        where = str(Address(probe.host, probe.port))
        tell = troubles.data_port_narrow if answer.greeted else troubles.data_port_closed
        trouble = tell(probe.name, where, answer.reason)
        self._unreached[probe.name] = trouble
        while len(self._unreached) > m.MAX_WORLD:
            del self._unreached[next(iter(self._unreached))]
        if known != trouble:
            log.warning(
                "peer_unreachable",
                peer=probe.name,
                address=where,
                message=trouble.message,
                remedy=trouble.remedy,
            )

    def forget(self) -> None:
        """A ring stands: whoever matters is reached."""
        self._unreached.clear()
