"""A user's own loop: the same steps as a task, whatever breaks, and what a loop may do wrong."""

from __future__ import annotations

import copy
import itertools
import queue
import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dtd.errors import CodeError, LoopLeft, RingBroken, TaskError
from dtd.own_loop.run import Run, join
from dtd.own_loop.task import LoopTask
from dtd.own_loop.turns import Arrival, Point, Turns
from tests.integration.wrong_loops import AT, right
from tests.integration.wrong_loops import STEPS as MISTAKES
from tests.numerics.cuts import Cut

pytestmark = pytest.mark.numerics

SGD = {"name": "sgd", "lr": 0.1, "momentum": 0.9}
LENGTH, BATCH, STEPS = 48, 8, 9


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


class Loops:
    """Loops of several ranks in this process, each on a thread of its own."""

    def __init__(
        self, arena, task, body=None, *, optimizers=None, scheduled=None, **tables
    ) -> None:
        self.arena, self.task = arena, task
        self.body = body or self.plain
        self.optimizers = optimizers or (lambda model: {"": sgd(model)})
        self.scheduled = scheduled or (lambda optimizer: None)
        self.spec = arena.spec(job={"steps": STEPS}, **tables)
        self.batches: list[list[torch.Tensor]] = []
        self.errors: list[BaseException | None] = []
        self.threads: list[threading.Thread] = []
        self.turns: list[Turns] = []
        self.norms: list[float] = []

    def plain(self, run, model, optimizer, batches) -> None:
        for batch in run.batches(self.task.rows, global_batch_size=BATCH, steps=STEPS):
            batches.append(batch[0])
            self.task.loss(model, batch).backward()
            self.norms.append(float(model[0].weight.grad.norm()))
            optimizer[""].step()

    def start(self, count: int):
        torch.manual_seed(self.spec.job.seed)
        first = self.task.build_model()
        ranks = [self._start(index, copy.deepcopy(first)) for index in range(count)]
        for rank in ranks:
            rank.run.adopt_local(0, 0)
        return ranks

    def _start(self, index: int, model):
        begun: queue.SimpleQueue[LoopTask] = queue.SimpleQueue()
        taken = self.turns

        class Host:
            def begin(self, loop, turns):
                task = LoopTask(loop, turns, ended=lambda: None)
                begun.put(task)
                taken.append(turns)
                return task

            def close(self) -> None:
                pass

        self.batches.append([])
        self.errors.append(None)

        def use() -> None:
            optimizers = self.optimizers(model)
            try:
                schedule = self.scheduled(next(iter(optimizers.values())))
                with Run(model, optimizers, schedule, {}, Host()) as run:
                    self.body(run, model, optimizers, self.batches[index])
            except BaseException as error:  # noqa: BLE001
                self.errors[index] = error

        thread = threading.Thread(target=use, daemon=True)
        thread.start()
        self.threads.append(thread)
        return self.arena.start(begun.get(timeout=60), self.spec, name=f"loop{index}")

    def end(self) -> None:
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()
        for error in self.errors:
            if error is not None:
                raise error


def equal(one, other) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


TABLES = (
    {},
    {"strategy": {"name": "local_sgd", "inner_steps": 3}},
    {"train": {"grad_accumulation": 2}},
)


@pytest.mark.parametrize("tables", TABLES, ids=["replicated", "local_sgd", "accumulation"])
def test_a_loop_trains_as_the_task_does(arena, regression, tables) -> None:
    class Optimized(regression):
        def build_optimizer(self, parameters):
            return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    task = Optimized(LENGTH)
    as_task = arena.train(task, arena.spec(job={"steps": STEPS}, **tables), 3, job_id="task")
    loops = Loops(arena, task, **tables)
    ranks = arena.generation(loops.start(3))
    loops.end()
    for rank, other in zip(ranks, as_task, strict=True):
        assert rank.error is None
        assert equal(rank, other)
    taken = torch.cat([x for batches in loops.batches for x in batches])
    assert len(taken.unique(dim=0)) == LENGTH
    assert len(taken) == STEPS * BATCH


class Rounding(torch.optim.SGD):
    """SGD on a device whose results end in other bits."""

    def __init__(self, parameters, ulps: int) -> None:
        super().__init__(parameters, lr=0.1, momentum=0.9)
        self._ulps = ulps

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            parameter.mul_(1 + self._ulps * torch.finfo(parameter.dtype).eps)


def test_loops_that_round_differently_copy_their_owners_results(arena, regression) -> None:
    ulps = itertools.count(4, 4)
    loops = Loops(
        arena,
        regression(LENGTH),
        optimizers=lambda model: {"": Rounding(model.parameters(), next(ulps))},
        strategy={"update": "owner"},
        train={"digest_every": 1},
    )
    ranks = arena.generation(loops.start(3))
    loops.end()
    assert [rank.error for rank in ranks] == [None] * 3
    assert len({rank.digest for rank in ranks}) == 1


def test_a_sharded_state_is_refused(arena, regression) -> None:
    loops = Loops(arena, regression(LENGTH), strategy={"name": "sharded", "stage": 2})
    with pytest.raises(TaskError, match="may look at whole ones"):
        loops.start(1)
    loops.turns[0].fail(LoopLeft("its job is refused"))
    with pytest.raises(LoopLeft):
        loops.end()


class MeetAndCut(Cut):
    """Breaks when both ranks are there."""

    def __init__(self, inner, step, *, method, both) -> None:
        super().__init__(inner, step, method=method)
        self._both = both

    def __getattr__(self, name):
        value = super().__getattr__(name)
        if getattr(value, "__name__", "") == "cut":
            self._both.wait(60)
        return value


@pytest.mark.parametrize(
    ("method", "step"), [("start", 0), ("start", 4), ("wait", 0), ("wait", 4), ("gather", 4)]
)
def test_a_broken_ring_brings_the_same_rows_again(arena, regression, method, step) -> None:
    task = regression(LENGTH)
    whole = Loops(arena, task)
    expected = arena.generation(whole.start(2))
    whole.end()

    loops = Loops(arena, task)
    ranks = loops.start(2)
    both = threading.Barrier(2)
    arena.generation(ranks, wrap=lambda _, inner: MeetAndCut(inner, step, method=method, both=both))
    for rank in ranks:
        rank.run.adopt_local(*(rank.run.prepared_key or (1 if step else 0, step)))
    redone = ranks[0].run.committed_step == step
    assert redone == (method != "gather")
    arena.generation(ranks, generation=2)
    loops.end()
    for rank, other, given in zip(ranks, expected, loops.batches, strict=True):
        assert equal(rank, other)
        assert len(given) == STEPS + redone
        assert loops.norms.count(0.0) == 2 * redone, "of the step that does nothing"
        assert torch.equal(given[step + redone], given[step])
        assert not rank.recorder.steps[-1].rows_missing


def test_what_the_loop_does_to_the_averages_counts(arena, regression) -> None:
    task = regression(LENGTH)
    norms: list[float] = []

    def clipping(run, model, optimizer, batches) -> None:
        for batch in run.batches(task.rows, global_batch_size=BATCH, steps=STEPS):
            task.loss(model, batch).backward()
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.05)))
            optimizer[""].step()

    loops = Loops(arena, task, clipping)
    ranks = arena.generation(loops.start(2))
    loops.end()
    clipped = {"optimizer": SGD, "train": {"clip_norm": 0.05}}
    by_job = arena.train(task, arena.spec(job={"steps": STEPS}, **clipped), 2, job_id="task")
    assert min(norms) > 0.05
    assert sorted(norms) == pytest.approx(
        sorted([r.grad_norm for r in by_job[0].recorder.steps] * 2)
    )
    for ours, theirs in zip(ranks[0].parameters(), by_job[0].parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-6)


def alternating(task):
    """A loop that updates the last layer, then the first one, as `parts` has their optimizers."""

    def loop(run, model, optimizer, batches) -> None:
        for x, y in run.batches(task.rows, global_batch_size=BATCH, steps=STEPS):
            (model[2](model[1](model[0](x).detach())) - y).pow(2).mean().backward()
            optimizer["last"].step()
            (model(x) - y).pow(2).mean().backward()
            optimizer["first"].step()

    return loop


def parts(model):
    return {"last": sgd(model[2]), "first": sgd(model[0])}


def test_several_optimizers_step_in_turn(arena, regression) -> None:
    """A generator and its judge, as in docs/tasks.md."""
    task = regression(LENGTH)

    loops = Loops(arena, task, alternating(task), optimizers=parts)
    ranks = arena.generation(loops.start(2))
    loops.end()

    class Alternating(regression):
        def build_optimizers(self, named):
            by_layer = {"2": [], "0": []}
            for name, parameter in named:
                by_layer[name[0]].append(parameter)
            return {
                "last": torch.optim.SGD(by_layer["2"], lr=0.1, momentum=0.9),
                "first": torch.optim.SGD(by_layer["0"], lr=0.1, momentum=0.9),
            }

        def loss(self, model, batch, update):
            x, y = batch
            out = model(x) if update == "first" else model[2](model[1](model[0](x).detach()))
            return (out - y).pow(2).mean()

    by_task = arena.train(Alternating(LENGTH), arena.spec(job={"steps": STEPS}), 2, job_id="task")
    assert equal(ranks[0], by_task[0])
    assert equal(ranks[1], ranks[0])


def test_a_schedule_is_stepped_by_the_run_or_by_the_loop(arena, regression) -> None:
    def step_schedule(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 2)

    class Scheduled(regression):
        def build_optimizer(self, parameters):
            return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

        def build_schedule(self, optimizer, total_steps):
            return step_schedule(optimizer)

    task = Scheduled(LENGTH)
    by_task = arena.train(task, arena.spec(job={"steps": STEPS}), 2, job_id="task")

    def stepping(run, model, optimizer, batches) -> None:
        schedule = step_schedule(optimizer[""])
        run.register("schedule", schedule)
        for batch in run.batches(task.rows, global_batch_size=BATCH, steps=STEPS):
            task.loss(model, batch).backward()
            optimizer[""].step()
            schedule.step()

    for loops in (
        Loops(arena, task, scheduled=step_schedule),
        Loops(arena, task, stepping),
    ):
        ranks = arena.generation(loops.start(2))
        loops.end()
        assert equal(ranks[0], by_task[0])
        assert equal(ranks[1], by_task[0])


def test_losses_may_be_sums_that_are_divided_by_what_all_ranks_have(arena, regression) -> None:
    """As of texts with different numbers of tokens: here a row counts as often as it says."""
    task = regression(LENGTH)

    def counts(x):
        return (x[:, 0].abs() * 10).ceil()

    class Weighted(regression):
        def build_optimizer(self, parameters):
            return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

        def loss(self, model, batch):
            x, y = batch
            each = (model(x) - y).pow(2).sum(1) * counts(x)
            return each.sum(), counts(x).sum()

    def summing(run, model, optimizer, batches) -> None:
        for x, y in run.batches(task.rows, global_batch_size=BATCH, steps=STEPS):
            each = (model(x) - y).pow(2).sum(1) * counts(x)
            with run.step() as step:
                step.backward(each[:1].sum(), each[1:].sum(), weight=float(counts(x).sum()))
                run.log(norm=nn.utils.get_total_norm([p.grad for p in model.parameters()]))
                step.update()

    loops = Loops(arena, task, summing)
    ranks = arena.generation(loops.start(2))
    loops.end()
    by_task = arena.train(Weighted(LENGTH), arena.spec(job={"steps": STEPS}), 2, job_id="task")
    for ours, theirs in zip(ranks[0].parameters(), by_task[0].parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-12)
    told = {one.step: one.grad_norm for one in ranks[1].recorder.steps}
    logged = {step: figures["norm"] for step, figures in ranks[0].recorder.figures}
    assert logged == pytest.approx(told)


def test_each_step_may_have_other_optimizers(arena, regression) -> None:
    task = regression(LENGTH)

    def updates(step):
        return ["last"] if step % 3 else ["first", "last"]

    def error(model, x, y, update):
        out = model(x) if update == "first" else model[2](model[1](model[0](x).detach()))
        return (out - y).pow(2).mean()

    def choosing(run, model, optimizer, batches) -> None:
        given = {"global_batch_size": BATCH, "steps": STEPS, "updates": updates}
        for x, y in run.batches(task.rows, **given):
            with run.step() as step:
                for update in updates(run.step_number):
                    step.backward(error(model, x, y, update))
                    step.update(update)
                with pytest.raises(TaskError, match=r"no optimizer 'frist'.*did you mean .first"):
                    step.update("frist")

    def parts(model):
        return {"last": sgd(model[2]), "first": sgd(model[0])}

    loops = Loops(arena, task, choosing, optimizers=parts)
    ranks = arena.generation(loops.start(2))
    loops.end()

    class Choosing(regression):
        def build_optimizers(self, named):
            named = list(named)
            return {
                part: torch.optim.SGD([p for n, p in named if n[0] == at], lr=0.1, momentum=0.9)
                for part, at in (("last", "2"), ("first", "0"))
            }

        def updates(self, step):
            return updates(step)

        def loss(self, model, batch, update):
            return error(model, *batch, update)

    by_task = arena.train(Choosing(LENGTH), arena.spec(job={"steps": STEPS}), 2, job_id="task")
    assert equal(ranks[0], by_task[0])
    assert equal(ranks[1], ranks[0])


class Sum:
    """Adds up what the loop adds, in a tensor."""

    def __init__(self) -> None:
        self.value = torch.zeros((), dtype=torch.float64)

    def add(self, tensor) -> None:
        self.value = self.value + tensor.detach().sum()

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state) -> None:
        self.value = state["value"]


@pytest.mark.parametrize("method", ["start", "wait"])
def test_what_is_registered_is_a_part_of_the_state(arena, regression, method) -> None:
    task = regression(LENGTH)

    def adding(run, model, optimizer, batches) -> None:
        total = Sum()
        run.register("total", total)
        for batch in run.batches(task.rows, global_batch_size=BATCH, steps=STEPS):
            batches.append(batch[0])
            task.loss(model, batch).backward()
            optimizer[""].step()
            total.add(model[0].weight)

    whole = Loops(arena, task, adding)
    expected = arena.generation(whole.start(2))
    whole.end()
    loops = Loops(arena, task, adding)
    ranks = loops.start(2)
    both = threading.Barrier(2)
    arena.generation(ranks, wrap=lambda _, inner: MeetAndCut(inner, 4, method=method, both=both))
    for rank in ranks:
        rank.run.adopt_local(1, 4)
    arena.generation(ranks, generation=2)
    loops.end()
    assert [len(given) for given in loops.batches] == [STEPS + 1] * 2
    assert {rank.digest for rank in ranks} == {rank.digest for rank in expected}


@pytest.mark.parametrize("call", range(4))
def test_a_step_of_two_optimizers_is_redone(arena, regression, call) -> None:
    """The ring breaks at one of the waits for the sums of the one or the other."""
    task = regression(LENGTH)

    whole = Loops(arena, task, alternating(task), optimizers=parts)
    (expected,) = arena.generation(whole.start(1))
    whole.end()
    loops = Loops(arena, task, alternating(task), optimizers=parts)
    (rank,) = loops.start(1)
    arena.generation([rank], wrap=lambda _, inner: Cut(inner, 4, call=call))
    assert isinstance(rank.error, RingBroken)
    rank.run.adopt_local(*(rank.run.prepared_key or (1, 4)))
    (rank,) = arena.generation([rank], generation=2)
    loops.end()
    assert rank.error is None
    assert rank.digest == expected.digest


def test_a_rank_without_rows_runs_its_loop_all_the_same(arena, regression) -> None:
    """The last batch of an epoch has one row."""
    task = regression(LENGTH + 1)

    def clipping(run, model, optimizer, batches) -> None:
        total = Sum()
        run.register("total", total)
        for batch in run.batches(task.rows, global_batch_size=BATCH, steps=STEPS):
            optimizer[""].zero_grad()
            task.loss(model, batch).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            optimizer[""].step()
            total.add(model[0].weight)

    loops = Loops(arena, task, clipping)
    ranks = arena.generation(loops.start(2))
    loops.end()
    assert [rank.error for rank in ranks] == [None, None]
    assert ranks[0].digest == ranks[1].digest
    assert not any(one.rows_repeated or one.rows_missing for one in ranks[1].recorder.steps)


def test_rows_are_evaluated_by_all_ranks(arena, regression) -> None:
    task = regression(LENGTH)

    def metrics(model, batch):
        return {"error": ((model(batch[0]) - batch[1]).abs().sum(), len(batch[0]))}

    def evaluating(run, model, optimizer, batches) -> None:
        run.evaluate(task.rows, metrics)
        for batch in run.batches(task.rows, global_batch_size=BATCH, steps=STEPS):
            task.loss(model, batch).backward()
            optimizer[""].step()

    loops = Loops(arena, task, evaluating, train={"eval_every": 4})
    ranks = arena.generation(loops.start(2))
    loops.end()
    for rank in ranks:
        assert [one.step for one in rank.recorder.evals] == [4, 8, STEPS]
        (x, y), model = task.rows.fetch(range(LENGTH), epoch=0, seed=0), rank.replica.model
        expected = float((model(x) - y).detach().abs().sum()) / LENGTH
        assert rank.recorder.evals[-1].metrics == pytest.approx({"error": expected})


WRONG = {
    "no_backward": "calls optimizer.step(), and has not called backward() (wrong_loops.py:",
    "no_step": "asks for its next batch, and has not called optimizer.step() (",
    "neither": "asks for its next batch, and has not called backward() for the last one (",
    "two_steps": "calls optimizer.step() a second time for one batch (wrong_loops.py:",
    "two_backward": "calls backward(), and has not called optimizer.step() (wrong_loops.py:",
    "leave": "was left after step 4 (",
    "new_layer": "after optimizer.step(), changed 3.weight, which is state of the job (rank 1, ",
    "new_group": "adds parameters to an optimizer after dtd.join() (",
    "sum_of_losses": 'calls backward() of a loss with reduction="sum", and losses are means over',
    "no_mean": "calls backward() of a tensor with the shape (4,) (wrong_loops.py:",
    "no_graph": "the loss of backward() does not depend on any trained parameter (rank 1, wrong_",
    "change_before": "before backward(), changes parameters itself: 0.weight, 0.bias, 2.weight and",
    "change_between": "changes 0.weight after backward(), on which the step has been decided (",
    "change_after": "after optimizer.step(), changed 0.weight, which is state of the job (rank 1, ",
    "clip_on_one": "hold another state than others, and no state has a majority; what differs",
    "rate_on_one": "hold another state than others, and no state has a majority; what differs",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_of_one_rank_is_told_with_rank_line_and_remedy(arena, regression, name) -> None:
    task = regression(LENGTH)

    def loop(run, model, optimizer, batches) -> None:
        wrong = MISTAKES[name]
        ours = SimpleNamespace(
            model=model,
            optimizer=optimizer[""],
            loss=lambda x, y: nn.functional.cross_entropy(model(x), y),
        )
        for x, y in run.batches(task.rows, global_batch_size=BATCH, steps=STEPS):
            at = run.step_number == AT and run.rank == 1
            if (wrong if at else right)(ours, x, y.argmax(1)) == "leave":
                return

    loops = Loops(arena, task, loop)
    ranks = arena.generation(loops.start(2))
    error = ranks[1].error
    assert isinstance(error, CodeError)
    assert WRONG[name] in error.message
    assert error.remedy
    assert ("rank 1" in error.message) != name.endswith("_on_one"), "states differ later"
    for turns in loops.turns:
        turns.fail(error)
    for thread in loops.threads:
        thread.join(60)


def test_a_loop_that_is_left_or_raises_ends_the_job(arena, regression) -> None:
    task = regression(LENGTH)

    def leaving(run, model, optimizer, batches) -> None:
        for batch in run.batches(task.rows, global_batch_size=BATCH, steps=STEPS):
            task.loss(model, batch).backward()
            optimizer[""].step()
            if run.step_number == 3:
                break

    def raising(run, model, optimizer, batches) -> None:
        for _ in run.batches(task.rows, global_batch_size=BATCH, steps=STEPS):
            raise ZeroDivisionError

    left = Loops(arena, task, leaving)
    (rank,) = arena.generation(left.start(1))
    left.end()
    assert isinstance(rank.error, LoopLeft)
    assert "after step 3" in rank.error.message
    raised = Loops(arena, task, raising)
    (rank,) = arena.generation(raised.start(1))
    assert isinstance(rank.error, ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        raised.end()


def test_an_interrupt_at_a_point_of_the_loop_is_not_lost() -> None:
    turns, answers = Turns(), []

    def train() -> None:
        turns.arrival()
        seen.set()
        with turns._changed:
            turns._changed.wait_for(lambda: turns._arrival.point is Point.LEFT)
        turns.go_on("rows")
        answers.append(turns.arrival().point)
        turns.go_on("saved")

    seen = threading.Event()
    thread = threading.Thread(target=train)
    thread.start()
    with turns._changed:  # as if Ctrl-C came before the wait
        turns._arrival = Arrival(Point.NEXT, None, "")
        turns._changed.notify_all()
    seen.wait()
    assert turns.arrive(Point.LEFT) == "saved"
    thread.join()
    assert answers == [Point.LEFT]


def test_a_reason_to_stop_ends_all_ranks_with_the_next_step(arena, regression) -> None:
    task = regression(LENGTH)

    def stopping(run, model, optimizer, batches) -> None:
        for batch in run.batches(task.rows, global_batch_size=BATCH, steps=STEPS):
            task.loss(model, batch).backward()
            optimizer[""].step()
            if run.step_number == 3 and run.rank == 1:
                run.stop("enough")

    loops = Loops(arena, task, stopping)
    ranks = arena.generation(loops.start(2))
    loops.end()
    assert [rank.outcome.step for rank in ranks] == [4, 4]


def test_alone_it_is_plain_torch_and_goes_on_where_it_was_left(
    tmp_path, monkeypatch, regression
) -> None:
    monkeypatch.chdir(tmp_path)
    task, given = regression(LENGTH), []

    def train(until: int) -> nn.Module:
        torch.manual_seed(0)
        model = task.build_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        with join(model, optimizer, name="alone") as run:
            for batch in run.batches(task.rows, global_batch_size=BATCH, steps=STEPS):
                given.append(batch)
                task.loss(model, batch).backward()
                optimizer.step()
                if run.step_number == until:
                    break
        return model

    train(until=5)
    ours = train(until=STEPS + 1)
    assert len(given) == STEPS
    assert torch.autograd.backward.__module__ == "torch.autograd"

    torch.manual_seed(0)
    model = task.build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for batch in given:
        optimizer.zero_grad()
        task.loss(model, batch).backward()
        optimizer.step()
    assert equal(ours, model)


def test_a_run_without_with_ends_with_its_batches(tmp_path, monkeypatch, regression) -> None:
    monkeypatch.chdir(tmp_path)
    rows = torch.utils.data.TensorDataset(torch.randn(LENGTH, 6))
    model = nn.Linear(6, 3)
    optimizer = sgd(model)
    for name in ("first", "second"):
        run = join(model, optimizer, name=name, settings={"train.precision": "bfloat16"})
        for (x,) in run.batches(rows, global_batch_size=BATCH, steps=2):
            loss = model(x).square().mean()
            assert torch.is_autocast_enabled("cpu")
            loss.backward()
            optimizer.step()
        assert run.step_number == 2
    assert not torch.is_autocast_enabled("cpu")
    optimizer.step()
    assert torch.autograd.backward.__module__ == "torch.autograd"


def test_parameters_that_change_between_steps_are_told(arena, regression) -> None:
    task = regression(LENGTH)

    def halving(run, model, optimizer, batches) -> None:
        for batch in run.batches(task.rows, global_batch_size=BATCH, steps=STEPS):
            task.loss(model, batch).backward()
            optimizer[""].step()
            with torch.no_grad():
                model[0].weight.mul_(0.5)

    loops = Loops(arena, task, halving)
    (rank,) = arena.generation(loops.start(1))
    assert isinstance(rank.error, TaskError)
    assert rank.error.message.startswith("the loop, after optimizer.step(), changed 0.weight")
    loops.turns[0].fail(rank.error)
    with pytest.raises(TaskError):
        loops.end()


def test_steps_outside_of_the_batches_are_refused(regression) -> None:
    model = regression().build_model()
    with pytest.raises(TaskError, match="that is not the model's"):
        join(model, sgd(nn.Linear(3, 2)))
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    with join(model, optimizer, schedule):
        with pytest.raises(TaskError, match="another run is open"):
            join(model, optimizer)
        with pytest.raises(TaskError, match=r"outside of the loop.*test_own_loop"):
            optimizer.step()
        with pytest.raises(TaskError, match="the run steps it"):
            schedule.step()
    optimizer.step()
    schedule.step()
