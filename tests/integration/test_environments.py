"""A job's requirements reach the workers: `dtdctl submit` ships them, and pip installs there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dtd.wire import messages as m
from scripts.cluster.cluster import Cluster
from scripts.cluster.processes import Child
from tests.wheels import write_wheel

pytestmark = pytest.mark.integration

JOB = """
[job]
name = "spelled"
task = "spelling:Task"
steps = 3
global_batch_size = 8
requirements = "wanted.lock"
[elastic]
settle_s = 0.0
min_workers = 2
"""
TASK = """
import dtd_words
import torch
from torch import nn

print("words", dtd_words.VERSION)

class Task:
    def build_model(self):
        return nn.Linear(2, 1)

    def train_dataset(self):
        return torch.utils.data.TensorDataset(torch.arange(32.0).reshape(16, 2) / 32)

    def loss(self, model, batch):
        return model(batch[0]).square().mean()
"""


class Office(Cluster):
    """A coordinator, and two workers that find packages in a directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.code, self.index = directory / "code", directory / "index"
        self.code.mkdir()
        self.index.mkdir()

    def add(self, name: str, command: Sequence[str], *_environment: object) -> Child:
        variables = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.index)}
        return super().add(name, command, variables)

    def printed(self, job: str) -> set[str]:
        return {line["text"] for line in self.ask(m.ReadLogs(job=job))["lines"]}

    def environments(self, name: str) -> set[Path]:
        return set((self.state_dir(name) / "environments").glob("*/complete"))


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    made = Office(tmp_path_factory.mktemp("office"))
    try:
        made.start_coordinator()
        for name in ("worker-0", "worker-1"):
            made.start_worker(name)
        (made.code / "job.toml").write_text(JOB)
        (made.code / "spelling.py").write_text(TASK)
        yield made
    finally:
        made.stop()


def test_workers_install_what_a_task_requires_and_a_script_finds_it_too(office: Office) -> None:
    write_wheel(office.index, "dtd_words", "1.5", requires=["dtd_letters", "torch"])
    write_wheel(office.index, "dtd_letters")
    (office.code / "wanted.lock").write_text("dtd-words==1.5  # and what it needs\n")
    done = office.dtdctl("submit", "job.toml", "--wait", cwd=office.code)
    assert done.returncode == 0, done.stderr
    assert "ships wanted.lock: 1 requirement" in done.stderr
    assert "words 1.5" in office.printed(done.stdout.strip())
    (made,) = office.environments("worker-0")

    for wheel in office.index.iterdir():
        wheel.unlink()
    script = office.code / "launched.py"
    script.write_text('import dtd_words\nprint("launched with", dtd_words.VERSION)\n')
    required = ("--workers", "2", "--set", "job.requirements=wanted.lock")
    done = office.dtdctl("run", *required, "--wait", "launched.py", cwd=office.code)
    assert done.returncode == 0, done.stderr
    assert "launched with 1.5" in office.printed(done.stdout.strip())
    assert office.environments("worker-0") == {made}


def test_what_cannot_be_installed_fails_the_job_with_the_reason(office: Office) -> None:
    (office.code / "wanted.lock").write_text("dtd-nowhere==3\n")
    done = office.dtdctl("submit", "job.toml", "--wait", cwd=office.code)
    assert done.returncode != 0
    assert "dtd-nowhere==3" in done.stderr + done.stdout
    assert "PIP_INDEX_URL" in done.stderr + done.stdout


def test_a_file_that_says_more_is_refused_before_anything_is_sent(office: Office) -> None:
    (office.code / "wanted.lock").write_text("--index-url http://127.0.0.1:9\nnumpy\n")
    done = office.dtdctl("submit", "job.toml", cwd=office.code)
    assert done.returncode == 1, done.stderr
    assert "wanted.lock, line 1: --index-url is for each host to say" in done.stderr
    done = office.dtdctl("submit", "job.toml", "--no-ship", cwd=office.code)
    assert "job.requirements are shipped with the task's package" in done.stderr
