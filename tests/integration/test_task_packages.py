"""A task that no worker can import: `dtdctl submit` ships it, and the job trains on both."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dtd.wire import messages as m
from scripts.cluster.cluster import Cluster
from scripts.cluster.processes import Child

pytestmark = pytest.mark.integration

PATIENCE_S = 100.0
LOOK_AGAIN_S = 0.05

JOB = """
[job]
name = "market"
task = "market.stall:Stall"
steps = 4
global_batch_size = 8
[elastic]
settle_s = 0.0
min_workers = 2
"""
INIT = '"""What a stall needs."""\n'
STALL = """
from pathlib import Path

import torch
from torch import nn

from market.prices import ROWS

class Stall:
    def build_model(self):
        print("fruit:", Path(__file__).with_name("fruit.txt").read_text())
        return nn.Linear(2, 1)

    def train_dataset(self):
        return torch.utils.data.TensorDataset(torch.arange(2.0 * ROWS).reshape(ROWS, 2) / ROWS)

    def loss(self, model, batch):
        return model(batch[0]).square().mean()
"""


class Market(Cluster):
    """A coordinator, two workers far from the task, and a person who has it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.code = directory / "code"
        (self.code / "market").mkdir(parents=True)
        files = {"__init__.py": INIT, "stall.py": STALL, "prices.py": "ROWS = 32\n"}
        for name, text in {**files, "fruit.txt": "apples"}.items():
            (self.code / "market" / name).write_text(text)
        (self.code / "job.toml").write_text(JOB)

    def add(self, name: str, command: Sequence[str], *_environment: object) -> Child:
        """A process that has neither our current directory nor our home."""
        home = self.directory / f"home-{name}"
        home.mkdir()
        environment = {"HOME": str(home), "TORCHINDUCTOR_CACHE_DIR": str(home / "torch")}
        return super().add(name, ["/usr/bin/env", f"--chdir={home}", *command], environment)

    def command(self, *arguments: str, cwd: Path) -> tuple[int, str, str]:
        done = self.dtdctl(*arguments, cwd=cwd)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout, done.stderr

    def printed(self, job: str) -> set[str]:
        return {line["text"] for line in self.ask(m.ReadLogs(job=job))["lines"]}

    def packages(self, name: str) -> set[str]:
        folder = self.directory / name / "packages"
        return {path.stem for path in folder.iterdir()} if folder.exists() else set()


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Market]:
    made = Market(tmp_path_factory.mktemp("market"))
    try:
        made.start_coordinator()
        for name in ("worker-0", "worker-1"):
            made.start_worker(name)
        yield made
    finally:
        made.stop()


def test_a_task_is_shipped_to_workers_that_lack_it(market: Market) -> None:
    job_file = str(market.code / "job.toml")
    exit_code, out, err = market.command("submit", job_file, "--wait", cwd=market.directory)
    assert exit_code == 0, (out, err)
    assert "ships" in err
    assert "4 files" in err
    job = out.strip()
    assert "fruit: apples" in market.printed(job)
    (digest,) = market.packages("coordinator")
    assert market.packages("worker-0") == market.packages("worker-1") == {digest}

    # Other code is another package, and the one that is used.
    (market.code / "market" / "fruit.txt").write_text("pears")
    exit_code, out, err = market.command("submit", "job.toml", "--wait", cwd=market.code)
    assert exit_code == 0, (out, err)
    assert {"fruit: pears"} <= market.printed(out.strip())
    assert "fruit: apples" not in market.printed(out.strip())
    assert len(market.packages("worker-0")) == 2
    assert market.packages("coordinator") == market.packages("worker-0")


def test_modules_beside_the_tasks_file_are_shipped_with_it(market: Market) -> None:
    """Also one that has the name of an installed package; the job says which one it got."""
    folder = market.directory / "script"
    (folder / "nets").mkdir(parents=True)
    (folder / "job.toml").write_text(JOB.replace("market.stall", "train"))
    stall = STALL.replace("market.prices", "prices").replace(
        '.with_name("fruit.txt")', '.parent.joinpath("nets", "fruit.txt")'
    )
    (folder / "train.py").write_text("from nets.wide import WIDTH, joblib\n" + stall)
    (folder / "prices.py").write_text("ROWS = 32\n")
    (folder / "nets" / "wide.py").write_text("import joblib\nWIDTH = 2\nprint(joblib.OWN)\n")
    (folder / "nets" / "fruit.txt").write_text("plums")
    (folder / "joblib.py").write_text("OWN = 'our own joblib'\n")
    exit_code, out, err = market.command("submit", "job.toml", "--wait", cwd=folder)
    assert exit_code == 0, (out, err)
    assert f"ships {folder}/train.py, joblib.py, nets, prices.py: 6 files" in err
    assert {"fruit: plums", "our own joblib"} <= market.printed(out.strip())


def test_a_module_that_is_nowhere_is_named_with_the_place_for_it(market: Market) -> None:
    folder = market.directory / "lacking"
    folder.mkdir()
    (folder / "job.toml").write_text(JOB.replace("market.stall", "train"))
    (folder / "train.py").write_text("import modle\n")
    exit_code, _out, err = market.command("submit", "job.toml", "--wait", cwd=folder)
    assert exit_code == 4
    assert "needs the package modle, which is not installed" in err
    assert "beside" in err


def test_without_shipping_the_workers_own_is_used_and_this_one_is_nowhere(market: Market) -> None:
    exit_code, _out, err = market.command(
        "submit", "job.toml", "--no-ship", "--wait", cwd=market.code
    )
    assert exit_code == 4
    assert "there is no module market.stall" in err


def test_a_task_that_is_nowhere_is_not_submitted(market: Market, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB.replace("market.stall", "bazaar.stall"))
    before = market.ask(m.ListJobs())
    exit_code, _out, err = market.command("submit", "job.toml", cwd=tmp_path)
    assert exit_code == 1
    assert "no package or module bazaar was found beside job.toml" in err
    assert "--no-ship" in err
    assert json.dumps(market.ask(m.ListJobs())) == json.dumps(before)
