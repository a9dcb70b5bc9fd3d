"""PowerSGD against the published algorithm, and against the hook of torch's DDP."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dtd.engine.control_word import Flags
from dtd.engine.step_protocol import FRESH
from dtd.errors import TaskError
from dtd.exchange.in_process import InProcessRing
from dtd.strategy.codec.api import FlatLayout, TensorPlace, World
from dtd.strategy.codec.powersgd import PowerSGD
from dtd.strategy.coded_buckets import CodedBuckets
from tests.numerics.cuts import Cut, ranks_of

pytestmark = pytest.mark.numerics

CPU = torch.device("cpu")
GLOO = Path(__file__).with_name("gloo_powersgd.py")
RANK, STEPS, WORLD = 3, 4, 2
SHAPES = [(24, 5, 3, 3), (7,), (40, 32)]
MATRICES = {0: (24, 45), 2: (40, 32)}


def layout() -> FlatLayout:
    places, start = [], 0
    for shape in SHAPES:
        stop = start + torch.Size(shape).numel()
        places.append(TensorPlace(start=start, stop=stop, shape=shape))
        start = stop
    return FlatLayout(dtype=torch.float32, tensors=tuple(places))


def gradients(worker: int, step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 * step + worker)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def first_factors(codec: PowerSGD) -> list[Tensor]:
    """With which a generation that begins at step 0 begins; (columns, rank) of each matrix."""
    coder = codec.coder(layout(), 0, CPU)
    assert coder is not None
    coder.restart(World())
    found = coder.local[0].current.split([columns * RANK for _, columns in MATRICES.values()])
    return [one.view(RANK, -1).t().contiguous() for one in found]


def ring_results(world_size: int, codec: PowerSGD) -> list[list[Tensor]]:
    """The results of each step, on each rank; contributions are means' parts."""
    ring = InProcessRing(world_size, chunk_bytes=256, timeout_s=30)

    def work(rank: int) -> list[Tensor]:
        buckets = CodedBuckets([layout()], CPU, codec)
        buckets.regroup(World(rank=rank, size=world_size))
        collective, results = ring.collective(rank), []
        for step in range(STEPS):
            collective.open_step(step, buckets.exchanges(step))
            buckets.begin(1.0)
            buckets.flats[0].copy_(flat(gradients(rank, step)) / world_size)
            buckets.send(0, collective.start)
            buckets.receive(0, collective.wait)
            results.append(buckets.flats[0].clone())
            buckets.commit()
            collective.gather(b"")
        buckets.close()
        return results

    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(work, range(world_size)))


def published(world_size: int, first: list[Tensor]) -> list[Tensor]:
    """Algorithms 1 and 2 of arXiv:1905.13727 for means of workers, in float64."""
    errors = [
        {at: torch.zeros(shape).double() for at, shape in MATRICES.items()}
        for _ in range(world_size)
    ]
    second = {at: one.double() for at, one in zip(MATRICES, first, strict=True)}
    results = []
    for step in range(STEPS):
        given = [[g.double() for g in gradients(worker, step)] for worker in range(world_size)]
        update = [sum(one[at] for one in given) / world_size for at in range(len(SHAPES))]
        for at, (n, m) in MATRICES.items():
            deltas = [one[at].reshape(n, m) + e[at] for one, e in zip(given, errors, strict=True)]
            p = torch.linalg.qr(sum(delta @ second[at] for delta in deltas) / world_size).Q
            second[at] = sum(delta.T @ p for delta in deltas) / world_size
            for delta, error in zip(deltas, errors, strict=True):
                error[at] = delta - p @ (delta.T @ p).T
            update[at] = (p @ second[at].T).reshape(SHAPES[at])
        results.append(flat(update))
    return results


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_it_is_the_published_algorithm(world_size) -> None:
    codec = PowerSGD(rank=RANK, seed=5)
    done = ring_results(world_size, codec)
    for one in done[1:]:
        assert all(torch.equal(a, b) for a, b in zip(one, done[0], strict=True))
    for ours, theirs in zip(done[0], published(world_size, first_factors(codec)), strict=True):
        assert torch.allclose(ours.double(), theirs, rtol=0, atol=2e-5)
    plain = sum(flat(gradients(w, STEPS - 1)) for w in range(world_size)) / world_size
    assert (done[0][-1] - plain).abs().max() > 0.1


@pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch was built without Gloo")
def test_it_makes_what_torchs_hook_makes(tmp_path) -> None:
    codec = PowerSGD(rank=RANK, seed=5)
    for worker in range(WORLD):
        tensors = {
            f"{step}.{at}": tensor
            for step in range(STEPS)
            for at, tensor in enumerate(gradients(worker, step))
        }
        tensors["first"] = flat(first_factors(codec))
        tensors["p_elements"] = torch.tensor((24 + 40) * RANK)
        save_file(tensors, tmp_path / f"{worker}.safetensors")
    subprocess.run(
        [sys.executable, GLOO, str(WORLD), tmp_path, str(RANK)],
        env={"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=90,
    )
    means = load_file(tmp_path / "0.means.safetensors")
    for step, ours in enumerate(ring_results(WORLD, codec)[0]):
        assert torch.allclose(ours, means[str(step)], rtol=0, atol=2e-5), step


# --- in training ---------------------------------------------------------------------------------

STEP = 5
SMALL = {"bucket_mib": 0.004}
SGD = {"name": "sgd", "lr": 0.05, "momentum": 0.9}


@pytest.fixture
def spec(arena):
    arena.chunk_bytes = 4096
    return arena.spec(
        job={"steps": 9},
        optimizer=SGD,
        strategy={"codec": "powersgd", "rank": 2, "start_step": 2},
        sync=SMALL,
    )


@pytest.fixture
def task(regression):
    class Task(regression):
        def build_model(self):
            return nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 48), nn.Linear(48, 3))

        def loss(self, model, batch):
            x = batch[0].float()
            return ((model(x) - torch.sin(x[:, :3] + x[:, 3:])) ** 2).mean()

    return Task(48)


def digests(ranks) -> set[str]:
    for rank in ranks:
        if rank.error is not None:
            raise rank.error
    return {rank.outcome.digest for rank in ranks}


def redone(arena, task, spec, name: str, cut: Callable[[int, Any], Any]) -> str:
    """Digest of a run whose step STEP is cut on some ranks, and redone by a second generation."""
    ranks = ranks_of(arena, task, spec, 2, name=name)
    arena.generation(ranks, wrap=cut)
    assert [rank.run.committed_step for rank in ranks] == [STEP, STEP]
    for rank in ranks:
        rank.run.adopt_local(1, STEP)
    arena.generation(ranks, generation=2)
    (digest,) = digests(ranks)
    return digest


CUTS = [("start", 0), ("start", 3), ("wait", 0), ("wait", 1), ("wait", 3), ("gather", 0)]


@pytest.mark.parametrize("warm", [False, True])
def test_a_cut_in_any_phase_loses_no_step_and_leaves_no_trace(arena, task, spec, warm) -> None:
    """With a warm start the second generation begins with other factors, but for all cuts alike."""
    strategy = dataclasses.replace(spec.strategy, warm_start=warm)
    spec = dataclasses.replace(spec, strategy=strategy)
    found = {
        redone(
            arena,
            task,
            spec,
            f"{method}{call}",
            lambda i, inner, method=method, call=call: (
                inner if i else Cut(inner, STEP, method=method, call=call)
            ),
        )
        for method, call in CUTS
    }
    assert len(found) == 1
    assert (found == digests(arena.train(task, spec, 2, job_id="whole"))) is not warm


def test_a_rank_that_leaves_hands_on_what_it_has_not_sent(arena, task, spec) -> None:
    def residuals(rank) -> list[Tensor]:
        return [one.unscaled().clone() for one in rank.run._session.strategy.unsent(STEP)]

    def ask(step: int) -> Flags:
        return Flags(leave=step == STEP - 1)

    seen: dict[int, list[Tensor]] = {}

    class Last:
        """Notes what each rank has not sent when its last step is over."""

        def __init__(self, index: int, inner) -> None:
            self._index, self._inner = index, inner

        def __getattr__(self, name):
            return getattr(self._inner, name)

        def open_step(self, step, buckets):
            if step == STEP:
                seen[self._index] = residuals(ranks[self._index])
            self._inner.open_step(step, buckets)

    ranks = [arena.start(task, spec, name=f"w{i}", ask=ask if i == 2 else idle) for i in range(3)]
    for rank in ranks:
        rank.run.adopt_local(*FRESH)
    arena.generation(ranks, wrap=Last)
    assert [rank.outcome.kind for rank in ranks] == ["yielded", "yielded", "left"]
    for at, lost in enumerate(seen[2]):
        assert lost.abs().max() > 0
        assert residuals(ranks[2])[at].abs().max() == 0
        for index in range(2):
            expected = seen[index][at] + lost / 2
            assert torch.equal(residuals(ranks[index])[at], expected)
    for rank in ranks[:2]:
        rank.run.adopt_local(1, STEP)
    arena.generation(ranks[:2], generation=2)
    assert len(digests(ranks[:2])) == 1


def idle(step: int) -> Flags:
    """Nothing is asked."""
    del step
    return Flags()


def test_gradients_that_are_not_finite_are_seen_by_all_and_leave_nothing_behind(
    arena, regression
) -> None:
    class Task(regression):
        def build_model(self):
            return nn.Sequential(nn.Linear(6, 64), nn.Linear(64, 32), nn.Linear(32, 3))

        def loss(self, model, batch):
            x, y = batch
            return ((model(x.float()) - y.float()) ** 2).mean()

    task = Task(48)
    task.rows.y[17] = float("inf")
    spec = arena.spec(job={"steps": 6}, optimizer=SGD, strategy={"codec": "powersgd", "rank": 2})
    ranks = arena.train(task, spec, 3)
    assert len(digests(ranks)) == 1
    assert {rank.outcome.skipped for rank in ranks} == {1}


@pytest.mark.parametrize("wait", [0, 3, 7])
def test_two_optimizers_keep_what_they_have_not_sent_apart(arena, regression, wait) -> None:
    """Cut before the first update, in the tentative one, and in the last."""

    class Gan(regression):
        def build_model(self):
            model = nn.Module()
            model.generator = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 6))
            model.critic = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))
            return model

        def build_optimizers(self, named_parameters):
            named = dict(named_parameters)
            return {
                part: torch.optim.SGD([p for n, p in named.items() if n.startswith(part)], lr=0.05)
                for part in ("critic", "generator")
            }

        def loss(self, model, batch, update):
            real, noise = batch[0].float(), batch[1].float()
            scored = model.critic(model.generator(noise)).mean()
            return scored - model.critic(real).mean() if update == "critic" else -scored

    spec = arena.spec(
        job={"steps": 9}, strategy={"codec": "powersgd", "rank": 1, "warm_start": False}
    )

    def cut(i: int, inner) -> Any:
        return inner if i else Cut(inner, STEP, call=wait)

    assert {redone(arena, Gan(48), spec, "cut", cut)} == digests(
        arena.train(Gan(48), spec, 2, job_id="whole")
    )


@pytest.mark.parametrize("codecs", [("powersgd", "none"), ("bfloat16", "powersgd")])
def test_a_job_may_be_resumed_with_another_codec(arena, task, codecs) -> None:
    """No codec has a part in the state that a checkpoint holds."""
    saved = {"every_steps": 3, "directory": str(arena.directory / "shared")}
    specs = [
        arena.spec(
            job={"steps": 6}, optimizer=SGD, strategy={"codec": codec}, checkpoint=saved, sync=SMALL
        )
        for codec in codecs
    ]
    ranks = ranks_of(arena, task, specs[0], 2)
    arena.generation(ranks, wrap=lambda _, inner: Cut(inner, STEP))
    for rank in ranks:
        rank.run.close()
    again = [arena.start(task, specs[1], name=f"again{i}") for i in range(2)]
    for rank in again:
        rank.run.adopt_local(1, 3)
    arena.generation(again, generation=2)
    assert len(digests(again)) == 1


def test_a_model_without_a_matrix_is_refused_with_a_remedy(arena, regression) -> None:
    spec = arena.spec(job={"steps": 2}, optimizer=SGD, strategy={"codec": "powersgd", "rank": 64})
    with pytest.raises(TaskError, match=r"strategy\.codec") as refused:
        arena.start(regression(48), spec, name="w0")
    assert "rank" in refused.value.remedy
