"""Where a renewed certificate is kept, and that it changes nothing but the certificate."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509

from dtd.address import Address
from dtd.security import certificates, identity
from dtd.security.authority import Authority
from dtd.security.credential import (
    Credential,
    place_of_renewed,
    places_of_renewed,
    with_renewed,
    write_credential,
)

HERE, ELSEWHERE = Address("10.0.0.1", 7117), Address("10.6.6.6", 7117)
DAY = dt.timedelta(days=1)


class Host:
    """A host with a worker's credential, and the authority that has issued it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority.create(directory / "pki")
        path = directory / "worker.credential"
        self.authority.enrol(path, "worker", "host7", coordinators=(HERE,))
        # As of a host that joined three weeks ago.
        joined = Credential.read(path)
        self.credential = dataclasses.replace(joined, issued=joined.issued - 21 * DAY)

    def renewal(
        self,
        place: Path,
        *,
        authority: Authority | None = None,
        role: str = "worker",
        name: str = "host7",
        workers: tuple[str, ...] | None = None,
        credential: str = "",
        days_ago: int = 0,
    ) -> Path:
        """Write a file as a worker would, or the code of a job, for another coordinator."""
        issuer, key = authority or self.authority, certificates.new_key()
        signer, cluster = issuer, self.authority.cluster
        names = self.credential.workers if workers is None else workers
        made = certificates.member_certificate(
            signer.certificate,
            signer.key,
            key.public_key(),
            uris=[
                identity.identity_uri(cluster, role, name),
                *(identity.registers_uri(cluster, one) for one in names),
                identity.credential_uri(cluster, credential or self.credential.id),
            ],
            role=role,
            serial=x509.random_serial_number(),
            now=dt.datetime.now(dt.UTC) - days_ago * DAY,
            life_days=30,
        )
        pem = certificates.certificate_pem(made)
        write_credential(
            place,
            role="worker",
            name="host7",
            workers=self.credential.workers,
            coordinators=(ELSEWHERE,),
            key_pem=certificates.key_pem(key),
            certificate_pem=pem,
            facts=certificates.facts_of(pem),
            authority_pem=signer.certificate_pem,
        )
        return place


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_renewed_certificate_counts_and_brings_nothing_else(host: Host) -> None:
    place = host.renewal(host.directory / "renewed.credential")
    made, ignored = with_renewed(host.credential, (place, host.directory / "missing"))
    assert ignored == ()
    assert made.key_path == place
    assert made.issued > host.credential.issued
    assert (
        dataclasses.replace(
            made,
            key_path=host.credential.path,
            serial=host.credential.serial,
            issued=host.credential.issued,
            expires=host.credential.expires,
        )
        == host.credential
    )
    made.client_context()


@pytest.mark.parametrize(
    ("plant", "why"),
    [
        (
            lambda host, place: host.renewal(place, authority=Authority.create(place.parent / "x")),
            "is not signed by the authority of",
        ),
        (lambda host, place: host.renewal(place, name="host8"), "is not for the holder of"),
        (lambda host, place: host.renewal(place, role="operator"), "is not for the holder of"),
        (lambda host, place: host.renewal(place, workers=("host7",)), "is not for the holder of"),
        (lambda host, place: host.renewal(place, credential="b2"), "is not for the holder of"),
        (lambda _host, place: place.write_text("nonsense"), "is damaged"),
        (lambda host, place: place.write_bytes(host.credential.path.read_bytes()[:900]), "damaged"),
    ],
    ids=["authority", "name", "role", "workers", "credential", "nonsense", "cut"],
)
def test_a_file_that_does_not_renew_is_ignored_and_named(
    host: Host, plant: Callable[[Host, Path], object], why: str
) -> None:
    place = host.directory / "renewed.credential"
    plant(host, place)
    place.chmod(0o600)
    made, (error,) = with_renewed(host.credential, (place,))
    assert made == host.credential
    assert why in error.message
    assert str(place) in error.message
    assert f"remove {place}" in error.remedy


def test_a_renewed_one_takes_the_place_of_its_file_if_that_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, state_dir = tmp_path / "etc" / "worker.credential", tmp_path / "state" / "worker-cpu"
    shared = tmp_path / "state" / "workers"
    may_write = [given.parent]
    monkeypatch.setattr("os.access", lambda path, _mode: path in may_write)
    assert place_of_renewed(given, state_dir) == given
    may_write[:] = [shared]
    assert place_of_renewed(given, state_dir) == shared / "renewed.credential"
    may_write[:] = []
    assert place_of_renewed(given, state_dir) == state_dir / "renewed.credential"
    assert set(places_of_renewed(state_dir)) == {
        shared / "renewed.credential",
        state_dir / "renewed.credential",
    }
