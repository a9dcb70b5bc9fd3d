"""Registered models: a real coordinator, played workers that say what they keep."""

from __future__ import annotations

import pytest

from dtd.coordinator.store.backup import back_up, restore
from dtd.wire import messages as m
from tests.unit.coordinator.asking import refused
from tests.unit.coordinator.conftest import Daemon

FILES = (m.ModelFile(name="model.safetensors", size_bytes=7, sha256="ab" * 32),)


@pytest.fixture
def worker(daemon, play):
    return play(daemon)


@pytest.fixture
def job(daemon, worker, spec):
    """A job that is done, with checkpoints of steps 10 and 20 on worker-0, which keeps no model."""
    made = daemon.ask(m.SubmitJob(spec=spec))["job"]
    assign = worker.run_alone()
    worker.save(assign, 10, metrics={"accuracy": 0.75})
    worker.save(assign, 20, f"g{assign.generation:06}-s{10:09}")
    worker.finish(assign)
    daemon.ask(m.WaitJob(job=made))
    worker.say(m.ModelsHeld())
    return made


def shown(daemon, name="digits"):
    return daemon.ask(m.ListModels(name=name))["models"][0]


def register(daemon, job, **more):
    (version,) = daemon.ask(m.RegisterModel(**{"name": "digits", "job": job, "copies": 1} | more))[
        "models"
    ]
    return version


def await_model(daemon, condition, name="digits"):
    """Look again after each event."""
    while True:
        seen = daemon.ask(m.ReadEvents())["next"]
        version = shown(daemon, name)
        if condition(version):
            return version
        daemon.ask(m.ReadEvents(after=seen, follow=True))


def kept(daemon, worker, job, **more):
    """A version of which the worker has a copy."""
    register(daemon, job, **more)
    order = worker.hear(m.PinModel)
    worker.say(m.ModelPinned(version=order.version, files=FILES))
    return await_model(daemon, lambda version: version["state"] == "ready")


def test_a_version_is_registered_with_its_record(daemon, worker, job):
    version = register(daemon, job, best="accuracy", card="Text.")
    assert (version["name"], version["number"], version["state"]) == ("digits", 1, "pending")
    record = version["record"]
    assert (record["job"], record["step"], record["digest"]) == (job, 10, "ab")
    assert record["metrics"] == {"accuracy": 0.75}
    assert record["registered_by"].startswith("local/")
    assert record["dataset_fingerprint"] == "f"
    order = worker.hear(m.PinModel)
    assert (order.version, order.files, order.encrypted) == (version["id"], (), False)
    (source,) = order.sources
    assert source.resource.endswith("-s000000010")
    assert (source.name, source.host, source.digest) == ("worker-0", "10.0.0.1", "ab")
    assert source.ticket_key
    worker.say(m.ModelPinned(version=order.version, files=FILES))
    version = await_model(daemon, lambda version: version["state"] == "ready")
    assert version["files"] == [{"name": "model.safetensors", "size_bytes": 7, "sha256": "ab" * 32}]
    assert (version["holders"], version["connected"]) == (["worker-0"], ["worker-0"])
    told = daemon.ask(m.ListModels(name="digits", tickets=True))["models"][0]
    assert told["sources"][0]["resource"] == f"model/{version['id']}"
    assert "sources" not in version


def test_what_cannot_be_registered(daemon, worker, job):
    words, _ = refused(daemon, m.RegisterModel(name="digits", job=job, best="acuracy"))
    assert words.endswith('did you mean "accuracy"?')
    words, _ = refused(daemon, m.RegisterModel(name="digits", job="digits-2"))
    assert words == "job 'digits-2' does not exist; did you mean \"digits-1\"?"
    words, _ = refused(daemon, m.RegisterModel(name="digits", job=job, step=15))
    assert "no checkpoint of step 15" in words
    words, _ = refused(daemon, m.RegisterModel(name="a/b", job=job))
    assert "is not a name of a model" in words
    words, _ = refused(daemon, m.RegisterModel(name="digits", job=job, copies=17))
    assert words == "copies: must be 1 to 16, not 17"
    words, _ = refused(daemon, m.RegisterModel(name="digits", job=job, card="x" * 16001))
    assert "16000 characters" in words
    assert daemon.ask(m.ListModels())["models"] == []


def test_a_job_whose_checkpoint_is_being_copied_is_not_deleted(daemon, worker, job):
    register(daemon, job, step=20)
    order = worker.hear(m.PinModel)
    for request in (m.Delete(job=job), m.Delete(job=job, step=20)):
        words, remedy = refused(daemon, request)
        assert words.startswith("version digits@1 of a model has no copy yet")
        assert "dtdctl models show digits@1" in remedy
    worker.say(m.ModelPinned(version=order.version, files=FILES))
    await_model(daemon, lambda version: version["state"] == "ready")
    with daemon.connect() as client:
        client.ask(m.Delete(job=job))
        for _ in range(2):
            drop = worker.hear(m.DropCheckpoint)
            worker.say(m.CheckpointDropped(directory=drop.directory))
        client.answer()
    assert shown(daemon)["state"] == "ready"


def test_it_is_deleted_and_its_number_is_not_given_again(daemon, worker, job):
    version = kept(daemon, worker, job)
    (deleted,) = daemon.ask(m.DeleteModel(name="digits", version=1))["models"]
    assert (deleted["number"], deleted["holders"]) == (1, ["worker-0"])
    assert worker.hear(m.UnpinModel).version == version["id"]
    assert "does not exist" in refused(daemon, m.ListModels(name="digits"))[0]
    assert register(daemon, job)["number"] == 2
    assert shown(daemon)["aliases"] == []
    daemon.ask(m.DeleteModel(name="digits"))
    assert daemon.ask(m.ListModels())["models"] == []


def test_a_restored_backup_knows_its_versions_and_drops_no_later_one(
    start_daemon, play, spec, state_dir, tmp_path, loop_thread
):
    daemon = start_daemon()
    worker = play(daemon)
    made = daemon.ask(m.SubmitJob(spec=spec))["job"]
    assign = worker.run_alone()
    worker.save(assign, 20)
    worker.finish(assign)
    daemon.ask(m.WaitJob(job=made))
    worker.say(m.ModelsHeld())
    first = kept(daemon, worker, made, card="Text.")
    daemon.ask(m.AliasModel(name="digits", alias="production", version=1))
    back_up(state_dir, tmp_path / "backup")
    later = register(daemon, made)["id"]
    daemon.ask(m.AliasModel(name="digits", alias="production", version=2))
    restore(tmp_path / "backup", tmp_path / "restored")
    other = Daemon(loop_thread, tmp_path / "restored")
    try:
        (known,) = other.ask(m.ListModels(name="digits"))["models"]
        same = ("id", "aliases", "record", "card", "copies", "files")
        assert [known[key] for key in same] == [
            {**first, "aliases": ["production"]}[k] for k in same
        ]
        assert (known["holders"], known["connected"]) == (["worker-0"], [])
        again = play(other, pid=4711)
        seen = other.ask(m.ReadEvents())["next"]
        again.say(m.ModelsHeld(versions=(first["id"], later)))
        with other.connect() as client:
            client.ask(m.ReadEvents(after=seen, follow=True))
            (told,) = client.answer()["events"]
        assert told["kind"] == "models_unknown"
        assert later in told["message"]
        assert shown(other)["connected"] == ["worker-0"]
        anew = register(other, made)
        assert anew["number"] == 2
        assert anew["id"] != later
        order = again.hear(m.PinModel)
        other.ask(m.DeleteModel(name="digits", version=2))
        again.say(m.ModelPinned(version=order.version, files=FILES))
        assert again.hear(m.UnpinModel).version == anew["id"]  # it is the first one
    finally:
        other.stop()
