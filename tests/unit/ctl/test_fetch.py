"""Fetching checkpoints; one scripted server plays coordinator and worker."""

from __future__ import annotations

import json
import ssl

import pytest
import xxhash

from dtd.address import Address
from dtd.ctl import checkpoints as command
from dtd.errors import UsageError
from dtd.net.blocking_link import connect_tcp
from dtd.security.authority import Authority
from dtd.wire import messages as m
from tests.unit.ctl.known_checkpoints import WEIGHTS, checkpoint


@pytest.fixture
def credential(tmp_path, monkeypatch):
    """This user has one, of a cluster whose coordinator is elsewhere."""
    authority = Authority.create(tmp_path / "pki")
    own = tmp_path / "dtd" / "ctl.credential"
    authority.enrol(own, "operator", "ann", coordinators=(Address("127.0.0.1", 1),))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.fixture
def files():
    """The files of the checkpoint."""
    return {"model.safetensors": WEIGHTS}


@pytest.fixture
def offers():
    """The serving worker's description of the state, and the coordinator's."""
    return {"digest": "ab", "verified": True, "confirmation": "verified"}


@pytest.fixture
def cluster(server, result, free_address, spec, files, offers):
    """The newest checkpoint is held by a worker that is away and by one that serves it."""
    ticket = {"ticket_key": server.secret, "ticket_expires_s": 1 << 40}
    there = {"data_host": server.address.host, "data_port": server.address.port, **ticket}
    away = {"data_host": free_address.host, "data_port": free_address.port, **ticket}
    known = [checkpoint(**away), checkpoint(worker="worker-1", **there)]

    def manifest():
        hashes = {name: xxhash.xxh3_128(content).hexdigest() for name, content in files.items()}
        said = {name: {"hash": one} for name, one in hashes.items()}
        return json.dumps({"files": said, "digest": offers["digest"]}).encode()

    def script(message):
        if isinstance(message, m.ListCheckpoints):
            about = {key: offers[key] for key in ("verified", "confirmation")}
            return result({"checkpoints": [{**one, **about} for one in known], "spec": spec})
        if isinstance(message, m.FetchOpen):
            assert message.resource == "checkpoint/digits-1/step-20"
            blobs = tuple(m.BlobInfo(name=n, size_bytes=len(c)) for n, c in files.items())
            return m.message_bytes(m.FetchInfo(blobs=blobs), manifest())
        content = list(files.values())[message.blob]
        data = content[message.offset : message.offset + message.length]
        return m.message_bytes(m.FetchData(blob=message.blob, offset=message.offset), data)

    server.script = script


def test_fetch_takes_the_next_holder_and_shows_how_to_load(dtdctl, cluster, tmp_path):
    target = tmp_path / "new" / "model.safetensors"
    exit_code, out, err = dtdctl("fetch", "digits-1", str(target.parent))
    assert exit_code == 0
    assert target.read_bytes() == WEIGHTS
    assert out.splitlines() == [
        "from dtd.train.task import load_task; from dtd.train.state.weights import load_weights",
        "model = load_task('digits', {'hidden': 16}).build_model()",
        f"load_weights(model, '{target}')",
    ]
    assert "worker-0: checkpoint/digits-1/step-20" in err
    assert "weights of digits-1 after step 20" in err


def test_fetch_says_whether_all_ranks_agreed(dtdctl, cluster, offers, tmp_path):
    assert "all ranks agreed on its digest, ab" in dtdctl("fetch", "digits-1", str(tmp_path))[2]
    offers |= {"verified": False, "confirmation": "unconfirmed"}
    exit_code, _, err = dtdctl("fetch", "digits-1", str(tmp_path))
    assert exit_code == 0
    assert "not confirmed: only worker-0 has reported its digest" in err


@pytest.mark.parametrize("verified", [True, False])
def test_what_a_worker_offers_instead_is_not_taken(dtdctl, cluster, offers, tmp_path, verified):
    """It has told of one state, and has another on its disk, or has made one up."""
    offers |= {"digest": "cd", "verified": verified}
    exit_code, _, err = dtdctl("fetch", "digits-1", str(tmp_path))
    assert exit_code == 1
    assert "has the digest cd, and" in err
    assert list(tmp_path.iterdir()) == []


def test_a_newer_one_that_nobody_has_confirmed_is_named(
    dtdctl, server, result, spec, tmp_path, monkeypatch
):
    monkeypatch.setattr(command, "HOLDERS_BACK_S", 0.0)
    unsure = checkpoint(step=30, verified=False, confirmation="unconfirmed", alive=False)
    ticket = {"ticket_key": bytes(32), "ticket_expires_s": 1 << 40}
    known = [unsure, checkpoint(**ticket)]
    server.script = lambda _message: result({"checkpoints": known, "spec": spec})
    err = dtdctl("fetch", "digits-1", str(tmp_path))[2]
    assert "step 30 is newer and not confirmed: dtdctl fetch digits-1@30" in err


def test_averages_come_along_and_are_what_is_loaded(dtdctl, cluster, files, tmp_path):
    files["ema.safetensors"] = b"averages"
    exit_code, out, err = dtdctl("fetch", "digits-1", str(tmp_path))
    assert exit_code == 0
    averages = tmp_path / "ema.safetensors"
    assert averages.read_bytes() == b"averages"
    loads = f"load_weights(model, '{tmp_path / 'model.safetensors'}', '{averages}')"
    assert out.splitlines()[-1] == loads
    assert f"their averages in {averages}; load the averages with" in err
    shown = json.loads(dtdctl("fetch", "digits-1", str(tmp_path), "-o", "json")[1])
    assert shown["averages"] == str(averages)
    assert shown["load"][-1] == loads
    averages.write_bytes(b"others")
    assert dtdctl("fetch", "digits-1", str(tmp_path))[0] == 2


def test_what_workers_encrypt_is_fetched_encrypted(
    dtdctl, cluster, spec, credential, tmp_path, monkeypatch
):
    called = []

    def tls_connect(context, peer_role):
        called.append((type(context), peer_role))
        return connect_tcp  # the scripted server speaks none

    monkeypatch.setattr("dtd.net.tls.tls_connect", tls_connect)
    spec["sync"] = {"encryption": "tls"}
    assert dtdctl("fetch", "digits-1", str(tmp_path))[0] == 0
    assert called == [(ssl.SSLContext, "worker")]


def test_without_a_credential_no_encrypted_weights_are_fetched(
    dtdctl, cluster, spec, tmp_path, monkeypatch
):
    spec["sync"] = {"encryption": "tls"}
    monkeypatch.setattr("dtd.ctl.settings.SYSTEM_FILE", tmp_path / "none")
    monkeypatch.setattr("dtd.ctl.settings.operator_file", lambda _environ: tmp_path / "none")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    exit_code, _out, err = dtdctl("fetch", "digits-1", str(tmp_path / "weights"))
    assert exit_code == UsageError.exit_code
    assert "digits-1 is encrypted, and this user has no credential" in err
    assert not (tmp_path / "weights" / "model.safetensors").exists()


def test_fetch_waits_for_a_worker_that_starts_afresh(dtdctl, cluster, server, result, tmp_path):
    serving, asked = server.script, []

    def script(message):
        if isinstance(message, m.ListCheckpoints) and len(asked) < 2:
            asked.append(message)
            return result({"checkpoints": [checkpoint(alive=False)], "spec": {}})
        return serving(message)

    server.script = script
    exit_code, _out, err = dtdctl("fetch", "digits-1", str(tmp_path))
    assert (exit_code, len(asked)) == (0, 2)
    assert err.count("waiting for worker-0: a worker restarts after a job") == 1


def test_fetch_asks_again_where_a_worker_is_that_has_just_left(
    dtdctl, cluster, server, result, free_address, tmp_path
):
    """It is listed as there, and its process has ended: the next answer has its new address."""
    serving, asked = server.script, []
    ticket = {"ticket_key": server.secret, "ticket_expires_s": 1 << 40}
    gone = {"data_host": free_address.host, "data_port": free_address.port, **ticket}

    def script(message):
        if isinstance(message, m.ListCheckpoints) and len(asked) < 2:
            asked.append(message)
            return result({"checkpoints": [checkpoint(**gone)], "spec": {}})
        return serving(message)

    server.script = script
    exit_code, _out, err = dtdctl("fetch", "digits-1", str(tmp_path))
    assert (exit_code, len(asked)) == (0, 2)
    assert err.count("cannot be fetched") == 1


def test_fetch_again_changes_nothing_and_overwrites_nothing(dtdctl, cluster, tmp_path):
    target = tmp_path / "model.safetensors"
    assert dtdctl("fetch", "digits-1", str(tmp_path))[0] == 0
    assert dtdctl("fetch", "digits-1", str(tmp_path))[0] == 0
    target.write_bytes(b"other")
    exit_code, _out, err = dtdctl("fetch", "digits-1", str(tmp_path))
    assert exit_code == 2
    assert "exists and holds other weights" in err
    assert target.read_bytes() == b"other"


def test_fetch_fails_when_all_holders_do(
    dtdctl, server, result, free_address, tmp_path, monkeypatch
):
    monkeypatch.setattr(command, "HOLDERS_BACK_S", 0.0)
    ticket = {"ticket_key": server.secret, "ticket_expires_s": 1 << 40}
    away = {"data_host": free_address.host, "data_port": free_address.port, **ticket}
    answer = {"checkpoints": [checkpoint(**away)], "spec": {}}
    server.script = lambda _message: result(answer)
    exit_code, out, err = dtdctl("fetch", "digits-1", str(tmp_path))
    assert (exit_code, out) == (1, "")
    assert "error: checkpoint/digits-1/step-20" in err
    assert list(tmp_path.iterdir()) == []
