"""Registered models on a real cluster: kept, fetched, loaded, repaired, deleted."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

from dtd.errors import RequestRefused
from dtd.wire import messages as m
from tests.integration.conftest import Command, Daemons

pytestmark = pytest.mark.integration

JOB = """
[job]
name = "small"
task = "digits"
epochs = 2
global_batch_size = 512
[checkpoint]
every_steps = 2
keep = 1
[elastic]
settle_s = 0.0
min_workers = 3
"""
SHARDED = '[optimizer]\nname = "adamw"\n[strategy]\nname = "sharded"\nmirrors = 0\n'


@pytest.fixture(scope="module")
def daemons(start_daemons: Callable[[int], Daemons]) -> Daemons:
    """Three workers."""
    return start_daemons(3)


@pytest.fixture(scope="module")
def job(daemons: Daemons) -> str:
    """A job that is done."""
    made = daemons.submit(text=JOB)
    assert daemons.wait(made)["state"] == "done"
    daemons.await_idle()
    return made


def shown(daemons: Daemons, name: str) -> dict[str, Any]:
    return dict(daemons.ask(m.ListModels(name=name))["models"][0])


def await_copies(daemons: Daemons, name: str, holders: Callable[[list[str]], bool]) -> list[str]:
    """Wait, from event to event, until the connected workers that keep it are as wanted."""
    while True:
        seen = daemons.ask(m.ReadEvents())["next"]
        connected: list[str] = shown(daemons, name)["connected"]
        if holders(connected):
            return connected
        daemons.ask(m.ReadEvents(after=seen, follow=True))


def on_disk(daemons: Daemons, name: str) -> set[str]:
    """The workers that have files of a model."""
    found = daemons.directory.glob(f"**/models/{name}.v*/model.safetensors")
    return {path.parts[-4] for path in found}


def test_a_version_outlives_its_job_and_its_holder(
    daemons: Daemons,
    dtdctl: Command,
    job: str,
    tmp_path: Path,
    check_output: Callable[..., None],
) -> None:
    code, out, err = dtdctl("models", "register", job, "digits", "--best", "acuracy")
    assert (code, out) == (1, "")
    assert 'did you mean "accuracy"?' in err
    code, out, err = dtdctl("models", "register", job, "digits", "--best", "accuracy")
    assert (code, out) == (0, "digits@1\n"), err
    two = await_copies(daemons, "digits", lambda names: len(names) == 2)

    assert dtdctl("delete", job, "--yes")[0] == 0
    assert dtdctl("models", "alias", "digits@production", "1")[0] == 0
    target = tmp_path / "fetched"
    code, out, err = dtdctl("models", "fetch", "digits@production", str(target), "-o", "json")
    assert code == 0, err
    check_output(("models", "fetch"), out)
    found: dict[str, Any] = {}
    exec("\n".join(json.loads(out)["load"]), found)
    kept = safetensors.torch.load_file(target / "model.safetensors")
    for name, tensor in found["model"].state_dict().items():
        assert tensor.equal(kept[name])
    assert (target / "README.md").read_text().startswith("# digits, version 1 (production)")

    lost = two[-1]
    daemons.child(lost).signal_group(signal.SIGKILL)
    assert await_copies(daemons, "digits", lambda names: len(names) == 1) == two[:-1]
    assert shown(daemons, "digits")["holders"] == two
    code, out, err = dtdctl("models", "copy", "digits", "-o", "json")
    assert code == 0, err
    check_output(("models", "copy"), out)
    others = await_copies(daemons, "digits", lambda names: len({*names} - {lost}) == 2)
    daemons.start_worker(lost)
    assert len(await_copies(daemons, "digits", lambda names: len(names) == 2)) == 2
    assert {*others} <= {"worker-0", "worker-1", "worker-2"}
    sha256 = {file["sha256"] for file in shown(daemons, "digits")["files"]}
    assert len(sha256) == 1

    for words in (("list",), ("show", "digits"), ("card", "digits", str(target / "README.md"))):
        code, out, err = dtdctl("models", *words, "-o", "json")
        assert code == 0, err
        check_output(("models", words[0]), out)
    assert dtdctl("models", "delete", "digits@production", "--yes")[0] == 1
    assert dtdctl("models", "alias", "digits@production", "0")[0] == 0
    code, out, err = dtdctl("models", "delete", "digits@1", "--yes")
    assert (code, err) == (0, "digits@1 is deleted\n")
    with pytest.raises(RequestRefused, match="'digits' does not exist"):
        shown(daemons, "digits")
    daemons.start_again()


def test_parts_of_a_sharded_checkpoint_are_merged_once(
    daemons: Daemons, dtdctl: Command, tmp_path: Path
) -> None:
    daemons.start_again()
    done = daemons.submit(text=JOB.replace("small", "parts") + SHARDED)
    assert daemons.wait(done)["state"] == "done"
    daemons.await_idle()
    code, out, err = dtdctl(
        "models", "register", done, "parts", "--copies", "3", "--export", str(tmp_path)
    )
    assert (code, out) == (0, "parts@1\n"), err
    await_copies(daemons, "parts", lambda names: len(names) == 3)
    assert on_disk(daemons, "parts") == {"worker-0", "worker-1", "worker-2"}
    exported = safetensors.torch.load_file(tmp_path / "parts" / "v1" / "model.safetensors")
    assert dtdctl("fetch", done, str(tmp_path / "job"))[0] == 0
    fetched = safetensors.torch.load_file(tmp_path / "job" / "model.safetensors")
    assert exported.keys() == fetched.keys()
    assert all(exported[name].equal(fetched[name]) for name in exported)
