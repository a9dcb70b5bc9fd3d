"""The job file: what is accepted, and that everything wrong is reported at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtd.errors import JobSpecError
from dtd.job import MAX_JOB_BYTES, from_mapping, load_job, parse_job, to_mapping

ROOT = Path(__file__).resolve().parents[3]
MINIMAL = """\
[job]
name = "first"
task = "digits"
epochs = 5
global_batch_size = 128
"""


def problems_of(text: str, *overrides: str) -> tuple[str, ...]:
    with pytest.raises(JobSpecError) as caught:
        parse_job(text, source="job.toml", overrides=overrides)
    return caught.value.problems


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


FEW = "strategy.codec='top_k'"
TLS = "sync.encryption='tls' sync.transport='gloo'"
TLS_LAUNCHED = "sync.encryption='tls' job.task='train:__launch__'"
LOCAL = "strategy.name='local_sgd'"
DILOCO = "strategy.name='diloco'"
STREAMING = "strategy.name='streaming_diloco'"
SHARDED = "strategy.name='sharded'"


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ("schedule.name='step'", '[schedule] step_every: is required with name = "step"'),
        ("job.steps=5 schedule.warmup_steps=5", "must be below the job's 5 steps, not 5"),
        ("schedule.min_lr=0.5", "min_lr: must be at most [optimizer] lr = 0.1, not 0.5"),
        ("checkpoint.best_mode='min'", "best_mode: has no effect without best_metric"),
        ("optimizer.nesterov=true", "[optimizer] nesterov: needs momentum above 0"),
        ("optimizer.beta1=0.5", 'beta1: has no effect with name = "sgd", only with "adam" or'),
        ("schedule.gamma=0.5", 'has no effect with name = "constant", only with "step"'),
        ("train.grad_accumulation=129", "cannot cut 128 rows into 129 pieces"),
        ("elastic.min_workers=65", "must be at most max_workers = 64, not 65"),
        ("elastic.workers=2 elastic.min_workers=3", "must be 0, or from min_workers = 3 to"),
        ("elastic.workers=2-6 elastic.priority=-3", ""),
        ("elastic.workers='2-6' elastic.min_workers=2", ""),
        ("elastic.workers=2-6 elastic.min_workers=3", "must be 0, or from min_workers = 3 to"),
        ("elastic.workers=2-6 elastic.max_workers=5", 'max_workers = 5, not "2-6"'),
        ("elastic.workers=6-2", 'workers: must begin with the least, not "6-2"'),
        ("elastic.workers=0-2", 'an integer from 0 to 64, or a range such as "2-6", not "0-2"'),
        ("elastic.workers=2-65", "max_workers = 64"),
        ("elastic.workers=65", "or a range such as"),
        ("elastic.workers=true", "or a range such as"),
        ("elastic.priority=101", "priority: must be an integer, at least -100 and at most 100"),
        ("job.priority=1", "unknown key; it belongs to [elastic]"),
        (
            "elastic.workers=1-2 job.task='train:__launch__'",
            "must be one number for a script that does not call dtd.join",
        ),
        ("strategy.rank=2", 'rank: has no effect with codec = "none", only with "powersgd"'),
        ("strategy.density=0.1", 'has no effect with codec = "none", only with "top_k" or "random'),
        # Shares.
        ("elastic.shares='measured'", ""),
        ("elastic.shares={nas=1,desk=3.5}", ""),
        ("elastic.shares='fast'", '"equal", "measured", or a table of numbers above 0, such as'),
        ("elastic.shares={nas=0}", "[elastic] shares: must be"),
        ("elastic.shares={nas=-1}", "[elastic] shares: must be"),
        ("elastic.shares={}", "[elastic] shares: must be"),
        ("elastic.shares={'a b'=1}", "[elastic] shares: must be"),
        (
            "elastic.shares={nas=1,desk=500}",
            'shares: leaves "nas" 0 of 128 rows, and a worker needs 2 (two in each micro-batch)',
        ),
        (
            "elastic.shares='measured' job.task='train:__launch__'",
            "shares: has no effect for a script that does not call dtd.join",
        ),
        # Encryption.
        (TLS, 'does not encrypt: with encryption = "tls" use "ring" instead of "gloo"'),
        (f"{TLS} sync.plain_gradients=true", ""),
        ("sync.encryption='tls'", ""),
        (TLS_LAUNCHED, 'encryption: cannot be "tls" for a script that does not call dtd.join'),
        (f"{TLS_LAUNCHED} sync.plain_gradients=true", ""),
        # Codecs that send a few gradients.
        (f"{FEW} strategy.momentum=0.9", ""),
        (
            f"{FEW} strategy.momentum=0.9 optimizer.momentum=0.9",
            "[strategy] momentum: replaces the optimizer's momentum: set [optimizer] momentum = 0",
        ),
        (
            f"{FEW} strategy.momentum=0.9 optimizer.name='adamw'",
            "set [optimizer] beta1 = 0, or remove it",
        ),
        (f"{FEW} strategy.momentum=0.9 {LOCAL}", "applies to gradients, and name ="),
        (f"{FEW} train.clip_norm=1", "[train] clip_norm: would cut what has added up over many"),
        (f"{FEW} train.clip_norm=1 {LOCAL}", ""),  # inner steps are clipped before
        (f"{FEW} train.clip_norm=1 {LOCAL} strategy.local_start_step=5", "clip_norm: would cut"),
        ("strategy.codec='int8' train.clip_norm=1", ""),
        # Rounds.
        ("strategy.inner_steps=4", 'has no effect with name = "replicated", only with "local_sgd"'),
        (f"{LOCAL} strategy.outer_lr=1.0", 'has no effect with name = "local_sgd", only with'),
        (f"{DILOCO} strategy.fragments=2", 'has no effect with name = "diloco", only with "strea'),
        (f"{STREAMING} strategy.inner_steps=10", "inner_steps: must be a multiple of fragments ="),
        (
            f"{STREAMING} strategy.inner_steps_double_every=9 strategy.inner_steps_max=64",
            'inner_steps_double_every: has no effect with name = "streaming_diloco"',
        ),
        (f"{DILOCO} strategy.inner_steps_max=64", "has no effect without inner_steps_double_every"),
        (
            f"{DILOCO} strategy.inner_steps_double_every=100",
            "inner_steps_max: must be above inner_steps = 16 where rounds grow",
        ),
        (f"{DILOCO} job.steps=15", "inner_steps: must be at most the job's 15 steps, not 16"),
        (f"{DILOCO} train.precision='float16'", "[train] precision: cannot be float16"),
        # A divided state.
        (
            f"{SHARDED} strategy.update='owner'",
            'update: has no effect with name = "sharded", only with "replicated"',
        ),
        (
            "strategy.update='owner' sync.transport='gloo'",
            '[sync] transport: must be "ring" with [strategy] update = "owner", not "gloo"',
        ),
        ("strategy.mirrors=2", 'has no effect with name = "replicated", only with "sharded"'),
        (f"{SHARDED} strategy.codec='int8'", 'codec: cannot be "int8" with [strategy] name = "sh'),
        (f"{SHARDED} sync.transport='gloo'", '[sync] transport: must be "ring" with [strategy]'),
        (f"{SHARDED} train.ema_decay=0.9", "[train] ema_decay: cannot be used with [strategy]"),
        (f"{SHARDED} checkpoint.directory='/mnt'", "[checkpoint] directory: cannot be used with"),
        (f"{SHARDED} checkpoint.copies=2", "by its owner and its mirrors, 2 in all; raise"),
        (
            f"{SHARDED} strategy.mirrors=3 elastic.max_workers=3",
            "[strategy] mirrors: must be below [elastic] max_workers = 3, not 3",
        ),
    ],
)
def test_fields_that_contradict_one_another(overrides: str, problem: str) -> None:
    if problem:
        assert problem in "\n".join(problems_of(MINIMAL, *overrides.split()))
    else:
        parse_job(MINIMAL, source="x", overrides=overrides.split())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[job]\nname = ?", "line 2: not TOML: Invalid value (column 8)"),
        (
            MINIMAL + "steps = 3\n",
            "line 6: [job] steps: cannot be used together with epochs; give one of the two",
        ),
        (
            MINIMAL.replace("epochs = 5\n", ""),
            "line 1: [job] epochs: is required unless steps is given",
        ),
        # A field that is wrong by itself takes part in no comparison.
        (
            MINIMAL + "[elastic]\nmin_workers = 65\nmax_workers = 0\n",
            "line 8: [elastic] max_workers: must be an integer, at least 1 and at most 1024, not 0",
        ),
    ],
)
def test_one_problem_and_its_line(text: str, problem: str) -> None:
    assert problems_of(text) == (problem,)


@pytest.mark.parametrize("task", ["", "pkg.mod", "pkg.mod:", ":Task", "a:b:c", "1a:b", "a b:c"])
def test_tasks_that_cannot_be_named(task: str) -> None:
    (problem,) = problems_of(MINIMAL.replace('"digits"', f'"{task}"'))
    assert problem.startswith('line 3: [job] task: must be "digits"')


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


def test_data_are_names_and_absolute_paths() -> None:
    spec = parse_job(f'{MINIMAL}[data]\nimages = "/data/images"\n', source="job.toml")
    assert spec.data == {"images": "/data/images"}
    assert from_mapping(to_mapping(spec), source="x").data == spec.data
    set_ = parse_job(MINIMAL, source="job.toml", overrides=["data.x=/x"])
    assert set_.data == {"x": "/x"}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('x = "data"', "[data] x: must be an absolute path, because workers share no working"),
        ("x = 3", "[data] x: must be an absolute path"),
        ('"a b" = "/x"', "[data] a b: is not a name: 1 to 64 letters"),
        (f'x = "/{"y" * 2000}"', "[data] x: has 2001 characters; the limit is 1024"),
        ("\n".join(f'x{n} = "/x"' for n in range(17)), "[data]: has 17 keys; the limit is 16"),
        ('x = "/x"\n[elastic]\nby_hand = true', "[data]: cannot be used with by_hand = true"),
    ],
)
def test_data_that_cannot_be(line: str, problem: str) -> None:
    (told,) = problems_of(f"{MINIMAL}[data]\n{line}\n")
    assert problem in told
