from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from dtd.ctl.commands.submit import packed_task
from dtd.engine.sampler import position_of_step
from dtd.job import load_job
from dtd.train.data.loader import Loader
from dtd.train.data.rows import BatchRequest
from dtd.train.data.sampling import batch_rows
from dtd.train.task import eval_dataset_of, load_task, train_dataset_of

REPOSITORY = Path(__file__).resolve().parents[3]
EXAMPLES = REPOSITORY / "docs" / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_each_job_file_is_valid_and_fits_its_task(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    spec = load_job(path)
    arguments = dict(spec.task)
    if "text" in arguments:
        text = tmp_path / "text.txt"
        text.write_text("to be or not to be, " * 1000)
        arguments["text"] = str(text)
    model = load_task(spec.job.task, arguments).build_model()
    assert sum(parameter.numel() for parameter in model.parameters()) > 0


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_a_job_file_sends_the_file_of_its_task_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    archive = packed_task(load_job(path).job.task, path)
    own = path.with_suffix(".py")
    assert (archive is not None) == own.exists()
    assert archive is None or own.read_bytes() in archive.content
    assert archive is None or archive.files == 1


def test_a_task_of_ones_own_learns_from_the_current_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    spec = load_job(EXAMPLES / "own_task.toml")
    task = load_task(spec.job.task, spec.task)
    torch.manual_seed(0)
    data, model = train_dataset_of(task), task.build_model()
    assert eval_dataset_of(task) is None
    batch_size = spec.job.global_batch_size

    def plan(step: int) -> BatchRequest:
        position = position_of_step(step, global_batch_size=batch_size, length=len(data))
        rows = batch_rows(seed=0, position=position, global_batch_size=batch_size, length=len(data))
        return BatchRequest(step=step, epoch=position.epoch, rows=tuple(rows))

    optimizer = torch.optim.Adam(model.parameters(), lr=spec.optimizer.lr)
    with Loader(data, seed=0) as loader:
        loader.start(plan)
        for step in range(100):
            optimizer.zero_grad()
            loss = task.loss(model, loader.next(plan(step)).batch)
            assert isinstance(loss, torch.Tensor)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    x = torch.linspace(-3, 3, 50)[:, None]
    assert (model(x) - x.sin()).abs().max() < 0.2
