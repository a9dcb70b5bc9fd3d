"""Registered models: a real coordinator, played workers that say what they keep."""

from __future__ import annotations

import pytest

from dtd.coordinator.store.backup import back_up, restore
from dtd.errors import RequestRefused
from dtd.wire import messages as m
from tests.unit.coordinator.asking import refused
from tests.unit.coordinator.conftest import Daemon

FILES = (m.ModelFile(name="model.safetensors", size_bytes=7, sha256="ab" * 32),)
OTHERS = (m.ModelFile(name="model.safetensors", size_bytes=7, sha256="cd" * 32),)


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


def test_the_next_copy_must_be_the_same(daemon, play, worker, job):
    version = kept(daemon, worker, job, copies=2)
    other = play(daemon, "worker-1", pid=99)
    other.say(m.ModelsHeld())
    order = other.hear(m.PinModel)
    assert order.files == FILES
    assert order.sources[0].resource == f"model/{version['id']}"
    other.say(m.ModelPinned(version=order.version, files=OTHERS))
    third = play(daemon, "worker-2", pid=100)
    third.say(m.ModelsHeld())
    assert third.hear(m.PinModel).version == version["id"]
    version = shown(daemon)
    assert version["failed"] == {"worker-1": "it has other files"}
    assert version["files"][0]["sha256"] == "ab" * 32
    third.say(m.ModelPinned(version=order.version, reason="no room"))
    while shown(daemon)["failed"].get("worker-2") != "no room":
        pass


def test_a_missing_copy_is_made_when_an_operator_asks(daemon, play, worker, job):
    version = kept(daemon, worker, job, copies=2)
    other = play(daemon, "worker-1", pid=99)
    other.say(m.ModelsHeld())
    other.say(m.ModelPinned(version=other.hear(m.PinModel).version, files=FILES))
    await_model(daemon, lambda version: len(version["connected"]) == 2)
    third = play(daemon, "worker-2", pid=100)
    third.say(m.ModelsHeld())
    other.close()
    await_model(daemon, lambda version: version["connected"] == ["worker-0"])
    known = shown(daemon)
    assert (known["holders"], known["copying"]) == (["worker-0", "worker-1"], [])
    assert "no version 2" in refused(daemon, m.CopyModel(name="digits", version=2))[0]
    (answer,) = daemon.ask(m.CopyModel(name="digits"))["models"]
    assert answer["holders"] == ["worker-0"]
    order = third.hear(m.PinModel)
    assert (order.version, order.files) == (version["id"], FILES)
    third.say(m.ModelPinned(version=order.version, files=FILES))
    await_model(daemon, lambda version: version["connected"] == ["worker-0", "worker-2"])
    for one in (worker, third):
        one.close()
    await_model(daemon, lambda version: not version["connected"])
    words, remedy = refused(daemon, m.CopyModel(name="digits"))
    assert words == "no connected worker keeps a copy of digits@1"
    assert remedy.endswith("dtdctl models show digits@1")
    assert shown(daemon)["holders"] == ["worker-0", "worker-2"]


def test_aliases(daemon, worker, job):
    kept(daemon, worker, job)
    register(daemon, job)
    daemon.ask(m.AliasModel(name="digits", alias="production", version=1))
    both = daemon.ask(m.AliasModel(name="digits", alias="next", version=2))["models"]
    assert [(one["number"], one["aliases"]) for one in both] == [(2, ["next"]), (1, ["production"])]
    daemon.ask(m.AliasModel(name="digits", alias="production", version=2))
    (one,) = daemon.ask(m.ListModels(name="digits", version="production"))["models"]
    assert one["number"] == 2
    daemon.ask(m.AliasModel(name="digits", alias="next", version=0))
    assert "no alias" in refused(daemon, m.AliasModel(name="digits", alias="next", version=0))[0]
    assert "no version 3" in refused(daemon, m.AliasModel(name="digits", alias="a", version=3))[0]
    words, _ = refused(daemon, m.AliasModel(name="digits", alias="1", version=1))
    assert "taken for the number" in words
    words, _ = refused(daemon, m.ListModels(name="digitz"))
    assert words == "model 'digitz' does not exist; did you mean \"digits\"?"
    assert "did you mean" in refused(daemon, m.ListModels(name="digits", version="producton"))[0]


def test_a_version_with_an_alias_is_not_deleted(daemon, worker, job):
    kept(daemon, worker, job)
    daemon.ask(m.AliasModel(name="digits", alias="production", version=1))
    for request in (m.DeleteModel(name="digits", version=1), m.DeleteModel(name="digits")):
        words, remedy = refused(daemon, request)
        assert words == "digits@production stands for version 1"
        assert remedy.endswith("dtdctl models alias digits@production 0")
    register(daemon, job)
    daemon.ask(m.AliasModel(name="digits", alias="production", version=2))
    daemon.ask(m.DeleteModel(name="digits", version=1))
    assert [one["number"] for one in daemon.ask(m.ListModels(name="digits"))["models"]] == [2]


def test_an_alias_and_a_deletion_at_once(daemon, worker, job):
    """Whoever is later is refused: no alias stands for a version that is gone."""
    kept(daemon, worker, job)
    models = daemon.coordinator.store.models
    daemon.run(daemon.coordinator.in_store(models.delete, "digits", [1]))
    with pytest.raises(RequestRefused, match="has no version 1 any more"):
        daemon.run(daemon.coordinator.in_store(models.alias, "digits", "production", 1))


def test_a_card_is_edited_and_the_record_stays(daemon, worker, job):
    before = kept(daemon, worker, job)
    daemon.ask(m.DescribeModel(name="digits", version=1, card="Better."))
    after = shown(daemon)
    assert (after["card"], after["record"]) == ("Better.", before["record"])
    assert "no version 2" in refused(daemon, m.DescribeModel(name="digits", version=2, card=""))[0]


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
