"""The job file: what is accepted, and that everything wrong is reported at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgpack
import pytest

from dtd.errors import JobSpecError
from dtd.job import BUILT_IN_TASKS, MAX_JOB_BYTES, from_mapping, load_job, parse_job, to_mapping
from tests.unit.job_file import MINIMAL, problems_of

ROOT = Path(__file__).resolve().parents[2]


def test_a_minimal_job_gets_every_default() -> None:
    spec = parse_job(MINIMAL, source="job.toml")
    assert (spec.job.name, spec.job.task, spec.job.epochs) == ("first", "digits", 5)
    assert (spec.job.steps, spec.job.seed, spec.job.global_batch_size) == (None, 0, 128)
    assert spec.task == {}
    assert (spec.optimizer.name, spec.optimizer.lr) == ("sgd", 0.1)
    assert spec.schedule.name == "constant"
    assert (spec.train.precision, spec.train.threads) == ("float32", 1)
    assert spec.sync.chunk_kib == 1024
    assert (spec.strategy.name, spec.strategy.codec) == ("replicated", "none")
    assert (spec.elastic.min_workers, spec.elastic.max_workers) == (1, 64)
    assert (spec.checkpoint.every_steps, spec.checkpoint.keep) == (0, 3)


def test_an_integer_where_a_number_is_meant_becomes_one() -> None:
    lr = parse_job(MINIMAL + "[optimizer]\nlr = 1", source="job.toml").optimizer.lr
    assert (type(lr), lr) == (float, 1.0)


def test_everything_wrong_is_reported_at_once_in_file_order() -> None:
    text = """\
stray = 1
lr = 0.1
[job]
name = "x y"
task = "cifr10"
epochs = true
globl_batch_size = 12
lr = 3
[optimizr]
lr = 0.1
[train]
precision = "float23"
threads = 1.0
clip_norm = nan
[elastic]
min_workers = 4
max_workers = 2
[checkpoint]
directory = "ckpt"
[[sync]]
chunk_kib = 3
"""
    assert problems_of(text) == (
        "line 1: [stray]: every key must be in a table",
        "line 2: [lr]: every key must be in a table; it belongs to [optimizer]",
        "line 3: [job] global_batch_size: is required",
        (
            "line 4: [job] name: must be 1 to 64 letters, digits, dots, dashes or underscores, the"
            ' first one a letter or digit, not "x y"'
        ),
        (
            'line 5: [job] task: must be "digits", "mnist", "cifar10", "chargpt", "synthetic" or'
            ' "package.module:attribute", not "cifr10"; did you mean "cifar10"?'
        ),
        "line 6: [job] epochs: must be an integer, at least 1 and at most 1000000, not true",
        'line 7: [job] globl_batch_size: unknown key; did you mean "global_batch_size"?',
        "line 8: [job] lr: unknown key; it belongs to [optimizer]",
        'line 9: [optimizr]: unknown table; did you mean "optimizer"?',
        (
            'line 12: [train] precision: must be one of "float32", "bfloat16", "float16", not'
            ' "float23"; did you mean "float32"?'
        ),
        "line 13: [train] threads: must be an integer, at least 1 and at most 1024, not 1.0",
        "line 14: [train] clip_norm: must be a number, at least 0, not nan",
        "line 16: [elastic] min_workers: must be at most max_workers = 2, not 4",
        (
            "line 19: [checkpoint] directory: must be an absolute path, because workers share no"
            ' working directory, or empty, not "ckpt"'
        ),
        "line 20: [sync]: must be a table, not an array",
    )


def test_text_that_is_no_toml_is_one_problem_with_its_line() -> None:
    assert problems_of("[job]\nname = ?") == ("line 2: not TOML: Invalid value (column 8)",)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("schedule.name='step'", '[schedule] step_every: is required with name = "step"'),
        ("optimizer.nesterov=true", "[optimizer] nesterov: needs momentum above 0"),
        ("train.grad_accumulation=129", "cannot cut 128 rows into 129 pieces"),
        ("elastic.min_workers=65", "must be at most max_workers = 64, not 65"),
        ("sync.chunk_kib=8", "at least 16 and at most 16384, not 8"),
        (
            "strategy.codec='int3'",
            'one of "none", "bfloat16", "float16", "int8", "powersgd", "top_k"',
        ),
        ("strategy.rank=2", 'rank: has no effect with codec = "none", only with "powersgd"'),
        (
            "strategy.rank=65",
            "[strategy] rank: must be an integer, at least 1 and at most 64, not 65",
        ),
        (
            "strategy.name='exact'",
            'one of "replicated", "local_sgd", "diloco", "streaming_diloco", "sharded", not',
        ),
        ("optimizer.beta1=0.5", 'beta1: has no effect with name = "sgd", only with "adam" or'),
        ("schedule.gamma=0.5", 'has no effect with name = "constant", only with "step"'),
        ("strategy.density=0.1", 'has no effect with codec = "none", only with "top_k" or "random'),
        ("strategy.density=0.6", "must be a number, above 0 and at most 0.5, not 0.6"),
    ],
)
def test_fields_that_contradict_one_another(change: str, problem: str) -> None:
    assert problem in problems_of(MINIMAL, change)[0]


@pytest.mark.parametrize("transport", ["gloo", "nccl"])
def test_an_encrypted_job_keeps_to_the_ring_unless_told(transport: str) -> None:
    group, tls = f"sync.transport='{transport}'", "sync.encryption='tls'"
    (problem,) = problems_of(MINIMAL, group, tls)
    assert (
        f'does not encrypt: with encryption = "tls" use "ring" instead of "{transport}"' in problem
    )
    told = parse_job(MINIMAL, source="x", overrides=(group, tls, "sync.plain_gradients=true"))
    assert told.sync.transport == transport
    assert parse_job(MINIMAL, source="x", overrides=(tls,)).sync.transport == "ring"
    assert parse_job(MINIMAL, source="x", overrides=(group,)).sync.encryption == "none"


@pytest.mark.parametrize("codec", ["top_k", "random_k"])
def test_momentum_stands_in_one_place(codec: str) -> None:
    few = (f"strategy.codec='{codec}'", "strategy.momentum=0.9")
    parse_job(MINIMAL, source="x", overrides=few)
    (problem,) = problems_of(MINIMAL, *few, "optimizer.momentum=0.9")
    assert "[strategy] momentum: replaces the optimizer's momentum: set [optimizer] mom" in problem
    adam = (*few, "optimizer.name='adamw'")
    (problem,) = problems_of(MINIMAL, *adam)
    assert "set [optimizer] beta1 = 0, or remove it" in problem
    parse_job(MINIMAL, source="x", overrides=(*adam, "optimizer.beta1=0"))
    parse_job(MINIMAL, source="x", overrides=(few[0], "optimizer.momentum=0.9"))


@pytest.mark.parametrize("codec", ["top_k", "random_k"])
def test_what_has_added_up_is_not_clipped(codec: str) -> None:
    (problem,) = problems_of(MINIMAL, f"strategy.codec='{codec}'", "train.clip_norm=1")
    assert (
        f'[train] clip_norm: would cut what has added up over many steps with codec = "{codec}"'
        in problem
    )
    parse_job(MINIMAL, source="x", overrides=("strategy.codec='int8'", "train.clip_norm=1"))
    local = (f"strategy.codec='{codec}'", "train.clip_norm=1", "strategy.name='local_sgd'")
    parse_job(MINIMAL, source="x", overrides=local)  # inner steps are clipped before
    (problem,) = problems_of(MINIMAL, *local, "strategy.local_start_step=5")
    assert "[train] clip_norm: would cut" in problem


def test_length_is_given_once() -> None:
    assert problems_of(MINIMAL + "steps = 3\n") == (
        "line 6: [job] steps: cannot be used together with epochs; give one of the two",
    )
    assert problems_of(MINIMAL.replace("epochs = 5\n", "")) == (
        "line 1: [job] epochs: is required unless steps is given",
    )


def test_a_field_that_is_wrong_by_itself_takes_part_in_no_comparison() -> None:
    text = MINIMAL + "[elastic]\nmin_workers = 65\nmax_workers = 0\n"
    (problem,) = problems_of(text)
    assert problem.startswith("line 8: [elastic] max_workers")


@pytest.mark.parametrize("task", ["", "pkg.mod", "pkg.mod:", ":Task", "a:b:c", "1a:b", "a b:c"])
def test_tasks_that_cannot_be_named(task: str) -> None:
    (problem,) = problems_of(MINIMAL.replace('"digits"', f'"{task}"'))
    assert problem.startswith('line 3: [job] task: must be "digits"')


def test_the_built_in_tasks_are_those_that_exist() -> None:
    from dtd.tasks import BUILT_IN

    assert set(BUILT_IN_TASKS) == set(BUILT_IN)


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        ("a = 2020-01-01", "line 7: [task] a: must be a boolean, number, string, array or table"),
        ("a = [1, [12:00:00]]", "line 7: [task] a: must be a boolean, number, string, array or"),
        ("a = [{ b = inf }]", 'line 7: [task] a: "b" must be finite, not inf'),
        ("b.c = nan", "line 7: [task] b.c: must be finite, not nan"),
        ("a = 9223372036854775808", "line 7: [task] a: must fit 64 bits"),
        ("a-b = 1", "line 7: [task] a-b: must be a name that Python accepts for an argument"),
        ("a = " + "[" * 9 + "]" * 9, "line 7: [task] a: is nested more than 8 levels deep"),
        ("a.b.c.d.e.f.g.h = 1", "line 7: [task] a.b.c.d.e.f.g: is nested more than 8 levels"),
    ],
)
def test_arguments_that_cannot_travel_are_refused(argument: str, problem: str) -> None:
    (found,) = problems_of(f"{MINIMAL}[task]\n{argument}\n")
    assert found.startswith(problem)


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("optimizer.lr=0.5", ("optimizer", "lr"), 0.5),
        (" train.precision = bfloat16", ("train", "precision"), "bfloat16"),
        ('job.name="quoted"', ("job", "name"), "quoted"),
        ("job.name=2024-01-01", ("job", "name"), "2024-01-01"),
        ("job.name=001", ("job", "name"), "001"),
        ("train.activation_checkpointing=true", ("train", "activation_checkpointing"), True),
        ("task.sizes=[1, 2]", ("task", "sizes"), [1, 2]),
        ("task.text=1\nother = 2", ("task", "text"), "1\nother = 2"),
    ],
)
def test_an_override_is_read_as_toml_else_as_text(
    override: str, path: tuple[str, str], value: object
) -> None:
    table, key = path
    mapping = to_mapping(parse_job(MINIMAL, source="job.toml", overrides=[override]))
    assert mapping[table][key] == value


def test_the_last_override_counts_also_between_steps_and_epochs() -> None:
    def length(*overrides: str) -> tuple[int | None, int | None]:
        job = parse_job(MINIMAL, source="job.toml", overrides=overrides).job
        return job.epochs, job.steps

    assert length("job.epochs=7", "job.epochs=8") == (8, None)
    assert length("job.steps=7") == (None, 7)
    assert length("job.steps=7", "job.epochs=1") == (1, None)
    assert length("job.epochs=1", "job.steps=7") == (None, 7)


def test_wrong_overrides_stand_beside_the_files_problems() -> None:
    text = MINIMAL + "[train]\nthread = 1\n"
    assert problems_of(text, "lr=1", "job.x", "job.name.x=1", "train.clip_norm=inf") == (
        '--set "lr=1": must read table.key=value',
        '--set "job.x": must read table.key=value',
        '--set "job.name.x=1": job.name is not a table',
        'line 7: [train] thread: unknown key; did you mean "threads"?',
        "--set: [train] clip_norm: must be a number, at least 0, not inf",
    )


def test_a_spec_survives_the_wire() -> None:
    text = MINIMAL + "[task]\na = [1, {b = 2.5}]\n[optimizer]\nlr = 1\n"
    spec = parse_job(text, source="job.toml")
    mapping = msgpack.unpackb(msgpack.packb(to_mapping(spec)))
    assert from_mapping(mapping, source="submit") == spec


@pytest.mark.parametrize(
    ("mapping", "problem"),
    [
        ([], "must be a map of tables, not an array"),
        (None, "must be a map of tables, not nothing"),
        ({"job": None}, "[job]: must be a table, not nothing"),
        ({3: {}}, "[3]: unknown table"),
        ({"job": {4: 1}}, "[job] 4: unknown key"),
        ({"\ud800": 1}, "[\\ud800]: every key must be in a table"),
        ({"task": {"a": None}}, "[task] a: must be a boolean, number, string, array or table"),
        ({"task": {"a": b"x"}}, "[task] a: must be a boolean, number, string, array or table"),
        ({"task": {"a": "\ud800"}}, '[task] a: is not valid text: "\\ud800"'),
        ({"task": {"a": {"\udcff": 1}}}, "[task] a.\\udcff: must be a name"),
        ({"task": {"a": {7: 1}}}, "[task] a.7: must be a name"),
    ],
)
def test_a_map_from_the_wire_is_not_trusted(mapping: object, problem: str) -> None:
    with pytest.raises(JobSpecError) as caught:
        from_mapping(mapping, source="submit")
    assert any(found.startswith(problem) for found in caught.value.problems)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"\xff", "line 1: not UTF-8 text (byte 0)"),
        (b"#" * (MAX_JOB_BYTES + 1), "is larger than 24 KiB"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, content: bytes | None, problem: str) -> None:
    file = tmp_path / "job.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(JobSpecError) as caught:
        load_job(file)
    assert caught.value.problems == (problem,)
    assert caught.value.source == str(file)


@pytest.mark.parametrize(
    "example", sorted((ROOT / "docs" / "examples").glob("*.toml")), ids=lambda path: path.stem
)
def test_the_examples_are_valid_jobs(example: Path) -> None:
    assert load_job(example).job.name


def test_reading_a_job_does_not_import_torch() -> None:
    code = "import sys, dtd.job, dtd.config, dtd.logs; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- strategies ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ("inner_steps=4", 'has no effect with name = "replicated", only with "local_sgd" or'),
        ("name='local_sgd' outer_lr=1.0", 'has no effect with name = "local_sgd", only with'),
        (
            "name='diloco' inner_steps=0",
            "inner_steps: must be an integer, at least 1 and at most 65536, not 0",
        ),
        ("name='diloco' fragments=2", 'has no effect with name = "diloco", only with "streaming_'),
        (
            "name='streaming_diloco' inner_steps=10",
            "inner_steps: must be a multiple of fragments = 4, not 10",
        ),
        (
            "name='streaming_diloco' inner_steps_double_every=9 inner_steps_max=64",
            'inner_steps_double_every: has no effect with name = "streaming_diloco"',
        ),
        ("name='diloco' inner_steps_max=64", "has no effect without inner_steps_double_every"),
        (
            "name='diloco' inner_steps_double_every=100",
            "inner_steps_max: must be above inner_steps = 16 where rounds grow",
        ),
    ],
)
def test_rounds_that_cannot_be(changes: str, problem: str) -> None:
    overrides = [f"strategy.{change}" for change in changes.split()]
    assert any(problem in one for one in problems_of(MINIMAL, *overrides))


def test_a_round_fits_the_job_and_its_precision() -> None:
    diloco = "strategy.name='diloco'"
    (problem,) = problems_of(MINIMAL, diloco, "job.steps=15")
    assert "[strategy] inner_steps: must be at most the job's 15 steps, not 16" in problem
    (problem,) = problems_of(MINIMAL, diloco, "train.precision='float16'")
    assert "[train] precision: cannot be float16" in problem
    assert 'use "bfloat16"' in problem


SHARDED = "strategy.name='sharded'"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ("strategy.stage=4", "[strategy] stage: must be an integer, at least 1 and at most 3"),
        ("strategy.mirrors=8", "[strategy] mirrors: must be an integer, at least 0 and at most 7"),
        (
            "strategy.codec='int8'",
            'codec: cannot be "int8" with [strategy] name = "sharded"; use "none", "bfloat16" or',
        ),
        ("sync.transport='gloo'", '[sync] transport: must be "ring" with [strategy] name = '),
        (
            "train.ema_decay=0.9",
            '[train] ema_decay: cannot be used with [strategy] name = "sharded"; remove it, or',
        ),
        (
            "checkpoint.directory='/mnt/shared'",
            '[checkpoint] directory: cannot be used with [strategy] name = "sharded": each worker',
        ),
        (
            "checkpoint.copies=2",
            "each part is written by its owner and its mirrors, 2 in all; raise [strategy] mirrors",
        ),
        (
            "strategy.mirrors=3 elastic.max_workers=3",
            "[strategy] mirrors: must be below [elastic] max_workers = 3, not 3",
        ),
    ],
)
def test_what_does_not_go_with_sharded_state(changes: str, problem: str) -> None:
    (found,) = problems_of(MINIMAL, SHARDED, *changes.split())
    assert problem in found


@pytest.mark.parametrize("key", ["stage", "mirrors"])
def test_keys_of_sharded_state_have_no_effect_without_it(key: str) -> None:
    (problem,) = problems_of(MINIMAL, f"strategy.{key}=2")
    assert f'{key}: has no effect with name = "replicated", only with "sharded"' in problem
