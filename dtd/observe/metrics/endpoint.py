"""The endpoint that Prometheus scrapes: HTTP in threads of its own, beside the event loop.

The threads see nothing of the daemon but an immutable snapshot, which the event loop replaces. Some
requests are answered at once, each in a thread and within a time; of more, the oldest of the
caller with most makes way (`dtd.net.limits`): none keeps others from reading.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

from dtd.address import Address
from dtd.errors import ConfigError
from dtd.net.limits import ConnectionLimiter
from dtd.observe.metrics.catalogue import BY_NAME, Sample
from dtd.text.shown import one_line

log = structlog.get_logger()

Context = Callable[[], ssl.SSLContext]

REQUEST_TIMEOUT_S: Final = 5.0
"""Seconds for all of a request: a connection that trickles ends as well."""

AT_ONCE: Final = 16
AT_ONCE_PER_ADDRESS: Final = 8
MAX_LABEL_CHARACTERS: Final = 128
_POLL_S: Final = 0.2


def members_only(context: ssl.SSLContext | None) -> ssl.SSLContext:
    """Have a daemon's TLS ask callers for a certificate of the cluster.

    Raises:
        ConfigError: it has none.
    """
    if context is None:
        raise ConfigError(
            'metrics_for = "members" needs a credential of a cluster, and this daemon has none',
            remedy="join a cluster (a coordinator: --listen HOST:PORT), or remove the setting and "
            "serve metrics on loopback",
        )
    context.verify_mode = ssl.CERT_REQUIRED
    return context


class Exposition(Collector):
    """The metrics of one daemon; one registry for each daemon.

    Args:
        address: where to listen; port 0 takes a free one; None: nowhere.
        context: gives the TLS that callers must use; None: plain HTTP.

    Attributes:
        address: where it listens, once it does.
    """

    def __init__(self, address: Address | None, context: Context | None = None) -> None:
        self.address = address
        self._context = context
        self._samples: tuple[Sample, ...] = ()
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Listen and answer; blocking.

        Raises:
            ConfigError: the address cannot be listened on, or there is nothing to prove this side
                with.
        """
        address = self.address
        if address is None:
            return
        if self._context is not None:
            self._context()
        try:
            self._server = _Server(address, self._context)
        except OSError as error:
            raise ConfigError(
                f"metrics: cannot listen on {address}: {error.strerror or error}",
                remedy="choose another address with --metrics",
            ) from error
        self._server.set_app(make_wsgi_app(self._registry))
        self.address = address = Address(address.host, self._server.server_port)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="metrics", daemon=True
        )
        self._thread.start()
        log.info("metrics_listening", host=address.host, port=address.port)
        if not address.is_loopback and self._context is None:
            log.warning("metrics_open", message="anyone who can connect can read all metrics")

    def publish(self, samples: Iterable[Sample]) -> None:
        """Replace the exposed samples; cheap, and any thread may call it."""
        self._samples = tuple(samples)

    def close(self) -> None:
        """End the thread and close the port; blocking."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join(REQUEST_TIMEOUT_S + 1.0)
            self._server.server_close()

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the registry need not collect in order to know the names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Return the snapshot as the library's metrics; called in the endpoint's thread."""
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for sample in self._samples:
            if sample.name not in families:
                families[sample.name] = _family(sample.name)
            # The library escapes what would end a label, and no more.
            labels = [one_line(label, MAX_LABEL_CHARACTERS) for label in sample.labels]
            families[sample.name].add_metric(labels, sample.value)
        yield from families.values()


def _family(name: str) -> GaugeMetricFamily | CounterMetricFamily:
    metric = BY_NAME[name]
    family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return family(name, metric.meaning, labels=metric.labels)


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the base has it
        """Log nothing: a scrape every few seconds is no news."""


class _Server(ThreadingWSGIServer):
    request_queue_size = 128

    def __init__(self, address: Address, context: Context | None) -> None:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        self.address_family, *_, bind_to = found[0]
        self._context = context
        self._connection_limiter = ConnectionLimiter(
            per_address=AT_ONCE_PER_ADDRESS, in_all=AT_ONCE, patience_s=REQUEST_TIMEOUT_S
        )
        self._open: dict[int, socket.socket] = {}
        self._lock = threading.Lock()
        super().__init__(bind_to, _Handler)  # type: ignore[arg-type]

    def server_bind(self) -> None:
        """Bind without asking DNS for this host's name, which can take long."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether there is room for one more connection; older ones may be closed for it."""
        key, now = request.fileno(), time.monotonic()
        with self._lock:
            verdict = self._connection_limiter.arrived(key, str(client_address[0]), now)
            if not verdict.refusal:
                self._open[key] = request
            self._cut(verdict.dropped)
        return not verdict.refusal

    def service_actions(self) -> None:
        """Close connections that have timed out; called periodically."""
        with self._lock:
            self._cut(self._connection_limiter.overdue(time.monotonic()))

    def _cut(self, keys: Iterable[int]) -> None:
        """Shut connections down; their threads notice and close them."""
        for key in keys:
            with contextlib.suppress(OSError):  # it has just ended by itself
                self._open[key].shutdown(socket.SHUT_RDWR)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Answer, in a thread; with TLS, once the caller has shown a certificate."""
        if self._context is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(REQUEST_TIMEOUT_S)
        # The raw socket stays open under its own number, by which it can be cut.
        with self._context().wrap_socket(request.dup(), server_side=True) as secured:
            super().finish_request(secured, client_address)

    def close_request(self, request: Any) -> None:
        """Close a request: its place is free before its number is."""
        with self._lock:
            key = request.fileno()
            if self._open.get(key) is request:
                del self._open[key]
                self._connection_limiter.gone(key, time.monotonic())
        super().close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a caller that went away, or showed no certificate."""
