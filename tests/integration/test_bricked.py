"""No message of a peer ends a real coordinator, or keeps the next one from starting.

The store is one that a former release left behind: a worker had raised the number of generations to
the last one of 32 bits, and no coordinator could give another.  Nothing trains here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import msgpack
import pytest

from dtd import __version__
from dtd.cluster.records import Job
from dtd.cluster.transitions import JobState
from dtd.coordinator.store.store import Store, job_body
from dtd.errors import DtdError, ErrorCode, RequestRefused
from dtd.job import parse_job, to_mapping
from dtd.net.clients.blocking_link import BlockingLink
from dtd.security.credential import Credential
from dtd.wire import messages as m
from dtd.wire.frames import decode_header, frame_bytes
from scripts.cluster.cluster import Cluster

pytestmark = pytest.mark.integration

PATIENCE_S = 30.0
LAST_OF_32_BITS = 2**32 - 1
JOB = (
    '[job]\nname = "digits"\ntask = "digits"\nepochs = 1\nglobal_batch_size = 64\n'
    "[elastic]\nsettle_s = 0\n"
)
NAMES = ("honest", "liar")


class Bricked:
    """A coordinator over the store of one that could not start again."""

    def __init__(self, coordinator: Cluster) -> None:
        self.coordinator = coordinator
        self.ask = coordinator.ask

    def register(self, name: str, **more: object) -> tuple[BlockingLink, m.Register]:
        credential = Credential.load(self.coordinator.credential_path(name))
        source = f"127.0.3.{1 + NAMES.index(name)}"
        link = self.coordinator.link(m.Role.WORKER, credential, source=source)
        register = m.Register(
            name=name,
            incarnation=1,
            pid=1,
            host="here",
            device="cpu",
            data_host="127.0.0.1",
            data_port=4000,
            version=__version__,
        )
        register = dataclasses.replace(register, **more)  # type: ignore[arg-type]
        link.send(register)
        return link, register

    def is_well(self) -> None:
        assert self.coordinator.is_well()


def hear(link: BlockingLink, kind: type) -> m.Message:
    while True:
        message, _ = link.receive(timeout_s=PATIENCE_S)
        if isinstance(message, kind):
            return message


@pytest.fixture(scope="module")
def bricked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bricked]:
    directory = tmp_path_factory.mktemp("bricked")
    made = Cluster(directory, environment={"HOME": str(directory)})
    made.enrol([("worker", name) for name in NAMES])
    store = Store(made.state_dir("coordinator"))
    job = Job(
        id="digits-1",
        spec=to_mapping(parse_job(JOB, source="test")),
        state=JobState.RUNNING,
        identity="i",
        generation=LAST_OF_32_BITS,
        roster=("honest",),
        roster_id=7,
    )
    store.save_job(1, job_body(job))
    store.close()
    made.start_coordinator()
    yield Bricked(made)
    made.stop()


def test_a_store_that_a_worker_had_bricked_is_gone_on_with(bricked: Bricked) -> None:
    link, _ = bricked.register("honest")
    prepare = hear(link, m.Prepare)
    assert isinstance(prepare, m.Prepare)
    link.send(
        m.Warmed(
            job=prepare.job,
            dataset_rows=100,
            dataset_fingerprint="f",
            plan_digest="p",
            numerics_fingerprint="n",
            parameters=1,
            steps_total=20,
            held=(),
        )
    )
    assign = hear(link, m.Assign)
    assert isinstance(assign, m.Assign)
    assert assign.generation == LAST_OF_32_BITS + 1
    link.close()
    bricked.is_well()


SPOILT = {
    "octets in a result": {"result": {"x": b"octets"}},
    "a result of numbers that do not fit": {"result": {"x": 2**64 - 1}},
    "a result that is deep": {"result": {"a": {"b": {"c": {"d": {"e": {"f": {"g": {}}}}}}}}},
    "a result that is none": {"result": [1]},
    "a generation of 64 bits": {"generation": 2**64 - 1},
}


@pytest.mark.parametrize("what", SPOILT)
def test_finished_with_what_no_store_holds_ends_its_connection_alone(
    bricked: Bricked, what: str
) -> None:
    link, _ = bricked.register("liar")
    hear(link, m.Registered)
    said = m.Finished(
        job="digits-1", generation=1, held_generation=1, step=1, digest="d", result={}
    )
    header = {**decode_header(m.encode_header(said)), **SPOILT[what]}
    link._socket.sendall(frame_bytes(msgpack.packb(header)))
    with pytest.raises(DtdError) as caught:
        hear(link, m.Release)
    assert not isinstance(caught.value, RequestRefused)
    assert getattr(caught.value, "code", None) in (ErrorCode.BAD_FIELD, ErrorCode.BAD_HEADER)
    link.close()
    bricked.is_well()


def test_words_as_long_as_allowed_are_passed_on(bricked: Bricked) -> None:
    """Put together with ours they were longer than allowed, and the daemon ended of that."""
    link, _ = bricked.register("liar")
    hear(link, m.Registered)
    link.send(m.Leave(reason="\U0001f600" * 4096))
    hear(link, m.Release)
    link.close()
    bricked.is_well()
    assert bricked.ask(m.ReadEvents())["events"]
