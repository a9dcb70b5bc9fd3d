"""What a worker's credential means for its settings: golden messages where it lacks one."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtd.address import Address
from dtd.config import load_worker_config
from dtd.errors import ConfigError
from dtd.security.authority import Authority
from dtd.security.credential import Credential
from dtd.worker.cluster_access import coordinator_targets, load_credential, settled

NOWHERE = Path("/nonexistent/dtd.toml")
HERE = Address("10.0.0.1", 7117)
JOIN_REMEDY = (
    "ask for a token: on the coordinator's host run `dtdctl token create`, then"
    " `dtd-worker join TOKEN`"
)


def config_of(**flags: object):
    return load_worker_config(flags, {}, default_file=NOWHERE, hostname="host7")


@pytest.fixture
def credential(tmp_path: Path) -> Credential:
    return made_credential(tmp_path, "worker")


def made_credential(directory: Path, role: str) -> Credential:
    authority = Authority.create(directory / "pki")
    path = directory / "worker.credential"
    authority.enrol(path, role, "host7", coordinators=(HERE,))
    return Credential.load(path)


def test_without_a_credential_it_does_not_listen_to_others() -> None:
    with pytest.raises(ConfigError) as caught:
        settled(config_of(listen="0.0.0.0:0"), None)
    assert str(caught.value) == (
        "listen: 0.0.0.0:0 is not a loopback address, and this host has no credential, so its data"
        f" port could not tell who calls ({JOIN_REMEDY} here; or listen on 127.0.0.1)"
    )
    assert caught.value.exit_code == 78


def test_without_a_credential_it_calls_loopback_only() -> None:
    assert [str(one) for one in coordinator_targets(config_of(), None)] == ["127.0.0.1:7117"]
    with pytest.raises(ConfigError) as caught:
        coordinator_targets(config_of(coordinator="10.0.0.1:7117"), None)
    assert str(caught.value) == (
        f"no credential for 10.0.0.1:7117 ({JOIN_REMEDY} or `dtdctl join TOKEN` here)"
    )


def test_with_a_credential_it_listens_to_all_unless_told_otherwise(credential: Credential) -> None:
    assert settled(config_of(), credential).listen == Address("0.0.0.0", 0)
    chosen = config_of(listen="127.0.0.1:0")
    assert settled(chosen, credential).listen == Address("127.0.0.1", 0)


@pytest.mark.parametrize("name", ["host7", "host7-cpu", "host7-cuda0-b"])
def test_it_is_called_as_its_credential_says(credential: Credential, name: str) -> None:
    assert settled(config_of(name=name), credential).name == name


def test_it_cannot_be_called_otherwise(credential: Credential) -> None:
    with pytest.raises(ConfigError, match="name: host8 is not what the credential") as caught:
        settled(config_of(name="host8"), credential)
    assert caught.value.remedy == (
        "call the worker host7 or host7-SOMETHING, or join with --name host8"
    )


def test_the_credentials_coordinators_are_called_with_it(credential: Credential) -> None:
    (target,) = coordinator_targets(config_of(), credential)
    assert target.address == HERE
    assert target.context is not None
    plain, secure = coordinator_targets(
        config_of(coordinator="127.0.0.1:7117,10.0.0.1:7117"), credential
    )
    assert (plain.context is None, secure.context is None) == (True, False)
    on_purpose = config_of(coordinator="127.0.0.1:7117", credential=str(credential.path))
    (target,) = coordinator_targets(on_purpose, credential)
    assert target.context is not None


def test_it_is_found_where_join_puts_it(credential: Credential, tmp_path: Path) -> None:
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    found = load_credential(config_of(), environ)
    assert found is not None
    assert found.path == credential.path
    assert load_credential(config_of(credential=str(credential.path)), {}) == credential


def test_a_credential_of_another_role_is_none(tmp_path: Path) -> None:
    made = made_credential(tmp_path, "viewer")
    with pytest.raises(ConfigError, match="is a viewer's, not a worker's"):
        load_credential(config_of(credential=str(made.path)), {})
