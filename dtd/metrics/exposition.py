"""The endpoint that Prometheus scrapes: HTTP in a thread of its own, beside the event loop.

The thread sees nothing of the daemon but an immutable snapshot, which the event loop replaces.
Requests are answered one at a time and given up after a while, so whoever connects costs the
daemon one thread and nothing else.
"""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterable, Iterator
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dtd.address import Address
from dtd.errors import ConfigError
from dtd.metrics.catalogue import BY_NAME, Sample

log = structlog.get_logger()

REQUEST_TIMEOUT_S: Final = 5.0
_POLL_S: Final = 0.2


class Exposition(Collector):
    """What one daemon exposes; one registry for each daemon.

    Args:
        address: where to listen; port 0 takes a free one.

    Attributes:
        address: where it listens, once it does.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._samples: tuple[Sample, ...] = ()
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Listen and answer.

        Raises:
            ConfigError: the address cannot be listened on.
        """
        try:
            self._server = _Server(self.address)
        except OSError as error:
            raise ConfigError(
                f"metrics: cannot listen on {self.address}: {error.strerror or error}",
                remedy="choose another address with --metrics",
            ) from error
        self._server.set_app(make_wsgi_app(self._registry))
        self.address = Address(self.address.host, self._server.server_port)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="metrics", daemon=True
        )
        self._thread.start()
        log.info("metrics_listening", host=self.address.host, port=self.address.port)
        if not self.address.is_loopback:
            log.warning("metrics_open", message="whoever can connect can read all figures")

    def publish(self, samples: Iterable[Sample]) -> None:
        """Replace what is exposed; cheap, and any thread may call it."""
        self._samples = tuple(samples)

    def close(self) -> None:
        """End the thread and give up the port."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join(REQUEST_TIMEOUT_S + 1.0)
            self._server.server_close()

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry need not collect in order to know the names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The snapshot in the library's form; called in the endpoint's thread."""
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for sample in self._samples:
            if sample.name not in families:
                families[sample.name] = _family(sample.name)
            families[sample.name].add_metric(sample.labels, sample.value)
        yield from families.values()


def _family(name: str) -> GaugeMetricFamily | CounterMetricFamily:
    metric = BY_NAME[name]
    family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return family(name, metric.meaning, labels=metric.labels)


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the base has it
        """A scrape every few seconds is nothing to log."""


class _Server(WSGIServer):
    def __init__(self, address: Address) -> None:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        self.address_family, *_, bind_to = found[0]
        super().__init__(bind_to, _Handler)  # type: ignore[arg-type]

    def server_bind(self) -> None:
        """Bind without asking DNS for this host's name, which can take long."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asked went away."""
