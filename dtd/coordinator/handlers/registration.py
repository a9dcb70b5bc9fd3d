"""Takes workers in that register, unless another one has their name or they lie about the past."""

from __future__ import annotations

import dataclasses

from dtd.address import ANY_IPV4
from dtd.cluster import registration
from dtd.cluster.doubt import must_be_proved
from dtd.cluster.events import FromWorker
from dtd.cluster.transitions import WorkerState
from dtd.coordinator.control_port import ControlPort
from dtd.coordinator.data_secrets import DataSecrets
from dtd.coordinator.handlers.api import CoordinatorApi
from dtd.coordinator.worker_links import WorkerLinks
from dtd.diagnostics import Diagnostic, name_taken
from dtd.errors import ErrorCode, ProtocolError
from dtd.net.link import Link
from dtd.observe.metrics.coordinator import CoordinatorMetrics
from dtd.wire import messages as m


class RegistrationHandler:
    """Answers REGISTER; the core decides what the worker does then.

    Args:
        coordinator: the daemon that workers register with.
        port: knows which host a connection comes from.
        links: the connections of all registered workers.
        secrets: by which a worker shows that it was a member of a generation.
        metrics: count registrations.
    """

    def __init__(
        self,
        coordinator: CoordinatorApi,
        port: ControlPort,
        links: WorkerLinks,
        secrets: DataSecrets,
        metrics: CoordinatorMetrics,
    ) -> None:
        self._coordinator = coordinator
        self._port = port
        self._links = links
        self._secrets = secrets
        self._metrics = metrics

    def take_in(self, link: Link, message: m.Register) -> None:
        """The worker at the end of this connection registers.

        Raises:
            ProtocolError: REFUSED, it may not.
        """
        coordinator, name = self._coordinator, message.name
        host = self._data_host(link, message)
        self._check_proof(message)
        clash = self._links.clash(message) or self._name_taken(message)
        if clash is not None:
            coordinator.diagnostics.name_taken(clash)
            raise ProtocolError(ErrorCode.REFUSED, clash.message, remedy=clash.remedy)
        self._links.register(link, message, coordinator.now)
        coordinator.diagnostics.registered(link.peer_host(), name)
        coordinator.deletions.registered(name)
        coordinator.models.registered(name)
        known = coordinator.membership.cluster_of(name).workers.get(name)
        released = known is not None and known.state is WorkerState.RELEASED
        self._metrics.figures.registered(message, released=released)
        registered = dataclasses.replace(message, data_host=host)
        coordinator.handle(FromWorker(name=name, message=registered))

    def _data_host(self, link: Link, message: m.Register) -> str:
        """Return the address for other workers: one on which this worker listens.

        Raises:
            ProtocolError: REFUSED, it listens on IPv4 only and calls over IPv6.
        """
        if message.data_host not in ("", ANY_IPV4):
            return message.data_host
        seen = self._port.host_of(link)
        if message.data_host and ":" in seen:
            why = (
                f"{message.name} listens on {ANY_IPV4}, which is IPv4 only, and other workers"
                f" would call it at {seen}"
            )
            remedy = (
                f'set listen = "[::]:PORT" for {message.name}, which serves IPv4 as well, or'
                " advertise = an IPv4 address of its host"
            )
            self._port.note_refusal(link.peer_host(), why, remedy)
            raise ProtocolError(ErrorCode.REFUSED, why, remedy=remedy)
        return seen

    def _check_proof(self, message: m.Register) -> None:
        """A generation is accepted only from workers that were members of it.

        Raises:
            ProtocolError: REFUSED, it does not show that it was.
        """
        cluster = self._coordinator.membership.cluster_with(message.job)
        if must_be_proved(cluster, message) and not self._secrets.proves(message):
            raise ProtocolError(
                ErrorCode.REFUSED,
                f"{message.name} refers to generation {message.generation} of job {message.job},"
                " which is not the newest that this coordinator knows, and does not prove that it "
                "was a member",
                remedy="restart the worker if this coordinator has lost its pki directory",
            )

    def _name_taken(self, message: m.Register) -> Diagnostic | None:
        """Whether a worker with another state directory lives under this name."""
        holder = registration.name_holder(
            self._coordinator.membership.cluster_of(message.name), message, self._coordinator.now
        )
        if holder is None:
            return None
        process = holder.registration
        place = f"{process.host} (pid {process.pid})" if process.pid else "a disconnected host"
        later = f"{message.host} (pid {message.pid})"
        return name_taken(message.name, place, later)
