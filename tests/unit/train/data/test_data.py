from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest
import torch

from dtd.engine.sampler import Position, slice_bounds
from dtd.errors import TaskError
from dtd.train.data.loader import Loader
from dtd.train.data.rows import BatchRequest
from dtd.train.data.sampling import batch_rows

LENGTH, BATCH = 40, 8


class Fetched:
    """Says which thread made which rows; may be held up."""

    def __init__(self) -> None:
        self.fetched: list[list[int]] = []
        self.threads: set[tuple[str, int]] = set()
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, row: int) -> torch.Tensor:
        raise AssertionError("fetch comes first")

    def fetch(self, row_ids: list[int], *, epoch: int, seed: int) -> torch.Tensor:
        assert self.may_go_on.wait(10)
        self.fetched.append(row_ids)
        self.threads.add((threading.current_thread().name, torch.get_num_threads()))
        if 13 in row_ids and epoch == 9:
            raise ValueError("row 13 is cursed")
        return torch.tensor([[row, epoch, seed] for row in row_ids])


def loader_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("dtd-loader")]


@pytest.fixture
def no_sigchld_handler() -> Iterator[None]:
    """As in a worker, where batches are taken outside the main thread and torch sets none."""
    previous = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGCHLD, previous)


def plan_for(world_size: int, rank: int, epoch: int = 0) -> Callable[[int], BatchRequest | None]:
    def plan(step: int) -> BatchRequest | None:
        if step * BATCH >= LENGTH:
            return None
        rows = batch_rows(
            seed=0,
            position=Position(epoch, step * BATCH),
            global_batch_size=BATCH,
            length=LENGTH,
        )
        start, stop = slice_bounds(len(rows), world_size, rank)
        return BatchRequest(step=step, epoch=epoch, rows=tuple(rows[start:stop]))

    return plan


def at(plan: Callable[[int], BatchRequest | None], step: int) -> BatchRequest:
    request = plan(step)
    assert request is not None
    return request


def expect(loader: Loader, request: BatchRequest) -> None:
    assert loader.next(request).batch[:, 0].tolist() == list(request.rows)


def test_batches_come_in_order_from_one_thread_that_computes_alone() -> None:
    data, plan, before = Fetched(), plan_for(1, 0), torch.get_num_threads()
    torch.set_num_threads(3)
    with Loader(data, seed=3) as loader:
        loader.start(plan)
        for step in range(LENGTH // BATCH):
            batch = loader.next(at(plan, step)).batch
            assert batch.tolist() == [[row, 0, 3] for row in at(plan, step).rows]
    assert len(data.fetched) == LENGTH // BATCH  # nothing was loaded twice
    ((name, threads),) = data.threads
    assert name.startswith("dtd-loader")
    assert threads == 1
    with ThreadPoolExecutor(1) as later:
        assert {torch.get_num_threads(), later.submit(torch.get_num_threads).result()} == {3}
    torch.set_num_threads(before)
    assert loader_threads() == []


def test_a_redone_step_and_a_new_world_size_get_their_own_rows() -> None:
    data, alone, shared = Fetched(), plan_for(1, 0), plan_for(3, 1)
    with Loader(data, seed=0) as loader:
        loader.start(alone)
        for step in (0, 1, 2, 1, 2):
            expect(loader, at(alone, step))
        loader.start(shared)
        for step in (2, 3, 4):
            expect(loader, at(shared, step))
        expect(loader, at(alone, 0))


def test_a_failing_row_surfaces_where_it_is_asked_for_and_again() -> None:
    cursed, plan = plan_for(1, 0, epoch=9), plan_for(1, 0)
    bad = next(step for step in range(5) if 13 in at(cursed, step).rows)
    with Loader(Fetched(), seed=0) as loader:
        loader.start(cursed)
        for step in range(bad):
            expect(loader, at(cursed, step))
        for _ in range(2):
            with pytest.raises(TaskError, match="row 13 of the dataset raised ValueError: row 13"):
                loader.next(at(cursed, bad))
        loader.start(plan)
        expect(loader, at(plan, 0))


class Drawing:
    """A plain dataset that augments with torch's global generator."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, row: int) -> torch.Tensor:
        return torch.cat([torch.tensor([float(row)]), torch.rand(2)])


def test_random_rows_are_keyed_and_leave_dropout_alone() -> None:
    whole, half = plan_for(1, 0), plan_for(2, 1)
    with Loader(Drawing(), seed=5) as loader:
        loader.start(whole)
        batch = loader.next(at(whole, 1)).batch
        torch.manual_seed(0)
        expected = torch.rand(3)
        torch.manual_seed(0)
        redone = loader.next(at(half, 1)).batch
        assert torch.equal(torch.rand(3), expected)
    assert torch.equal(redone, batch[BATCH // 2 :])
    assert loader_threads() == []


PICKLED_DATASET = """
import os, random
import numpy, torch

class Rows:
    def __len__(self):
        return 40
    def __getitem__(self, row):
        if row == 39:
            raise ValueError("row 39 is cursed")
        if path := os.environ.get("ROWS_READ_BY"):
            with open(path, "a") as file:
                print(os.getpid(), file=file)
        drawn = [random.random(), float(numpy.random.rand()), float(torch.rand(()))]
        return torch.tensor([float(row), *drawn], dtype=torch.float64)
"""


@pytest.fixture
def pickled_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A dataset of a module that loader processes can import."""
    (tmp_path / "rows_for_processes.py").write_text(PICKLED_DATASET)
    monkeypatch.syspath_prepend(tmp_path)
    import rows_for_processes  # type: ignore[import-not-found]

    yield rows_for_processes.Rows()
    del sys.modules["rows_for_processes"]


@pytest.mark.usefixtures("no_sigchld_handler")
def test_loader_processes_give_the_same_batches_outlive_a_loss_and_end(
    pickled_dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, half, told = plan_for(1, 0), plan_for(2, 1), []
    good = [step for step in range(5) if 39 not in at(whole, step).rows]
    (bad,) = set(range(5)) - set(good)
    with Loader(pickled_dataset, seed=2) as here:
        expected = {step: here.next(at(whole, step)).batch for step in good}
    monkeypatch.setenv("ROWS_READ_BY", str(tmp_path / "pids"))

    def consume() -> list[Any]:
        loader = Loader(
            pickled_dataset, seed=2, loader_workers=2, warn=lambda *one: told.append(one)
        )
        with loader:
            loader.warm_up(plan_for(4, 0))
            children = {child.pid: child for child in active_children()}
            assert len(children) == 2
            assert set(map(int, (tmp_path / "pids").read_text().split())) == children.keys()
            torch.manual_seed(0)
            expected_draw = torch.rand(3)
            torch.manual_seed(0)
            loader.start(whole)
            for step in (*good, *good):
                assert torch.equal(loader.next(at(whole, step)).batch, expected[step])
            loader.start(half)
            batch = loader.next(at(half, good[1])).batch
            assert torch.equal(batch, expected[good[1]][BATCH // 2 :])
            with pytest.raises(TaskError, match="row 39 of the dataset raised Val") as caught:
                loader.next(at(whole, bad))
            assert "row 39 is cursed" in "".join(caught.value.__notes__)
            assert loader.next(BatchRequest(step=0, epoch=0, rows=())).batch is None
            assert torch.equal(torch.rand(3), expected_draw)  # this thread's draws are its own
            assert {child.pid for child in active_children()} == children.keys()
            for child in children.values():
                child.kill()
            for step in good:
                assert torch.equal(loader.next(at(whole, step)).batch, expected[step])
            return active_children()

    with ThreadPoolExecutor(1) as thread:
        children = thread.submit(consume).result()
    assert [event for event, _ in told] == ["loader_restarted"]
    assert len(children) == 2
    for child in children:
        child.join(10)
        assert not child.is_alive()
    assert active_children() == []


@pytest.mark.filterwarnings("ignore:Got pickle error")
def test_a_dataset_that_cannot_be_sent_says_what_to_do() -> None:
    plan = plan_for(1, 0)
    with (
        Loader(Fetched(), seed=0, loader_workers=1) as loader,
        pytest.raises(TaskError, match=r"cannot be sent to loader processes.*loader_workers = 0"),
    ):
        loader.next(at(plan, 0))
    assert active_children() == []
