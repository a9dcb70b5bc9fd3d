from __future__ import annotations

import sys
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from dtd.errors import TaskError
from dtd.train.task import eval_dataset_of, load_task, train_dataset_of

MODULE = """
class Complete:
    def __init__(self, size=3, data=None):
        if size < 0:
            raise ValueError("size is negative")
        self.size, self.data = size, data
    def build_model(self): return None
    def train_dataset(self): return self.data if self.data is not None else list(range(self.size))
    def loss(self, model, batch): return None

class Evaluated(Complete):
    def eval_dataset(self): return [1, 2]

class Halting:
    def build_model(self): return None

ready = Complete(size=7)

def factory(size=5):
    return Complete(size)

number = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current directory, under a name that no other test has."""
    name = f"task_of_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    return name


@pytest.mark.parametrize(
    ("reference", "arguments", "message"),
    [
        ("digts", {}, "no built-in task 'digts'.*did you mean .digits"),
        ("xyz", {}, "no built-in task 'xyz'.*take one of chargpt, cifar10"),
        ("MODULE:", {}, "package.module:attribute"),
        ("no_such_module:Task", {}, "there is no module no_such_module in .*PYTHONPATH"),
        ("MODULE.inner:Task", {}, "No module named|there is no module"),
        ("MODULE:Complet", {}, "has no 'Complet'.*did you mean .Complete"),
        ("MODULE:Complete", {"sise": 1}, "unexpected keyword argument 'sise'.*takes size, data"),
        ("MODULE:Complete", {"size": -1}, "could not be made: ValueError: size is negative"),
        ("MODULE:Halting", {}, "lacks the method train_dataset, loss"),
        ("MODULE:number", {}, "lacks the method build_model, train_dataset, loss"),
        ("MODULE:ready", {"size": 1}, "ready object and takes no arguments"),
        ("digits", {"hiden": 1}, "unexpected keyword argument 'hiden'.*takes hidden"),
    ],
)
def test_every_mistake_says_what_to_type(
    module: str, reference: str, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(TaskError, match=message) as caught:
        load_task(reference.replace("MODULE", module), arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("first_line", "message"),
    [
        ("import sklearn_of_nowhere.parts", "needs the package sklearn_of_nowhere"),
        ("raise RuntimeError('no luck')", "raised RuntimeError: no luck"),
        ("def broken(:", "raised SyntaxError"),
    ],
)
def test_a_module_that_cannot_be_imported_says_why(
    module: str, first_line: str, message: str
) -> None:
    Path(f"{module}.py").write_text(f"{first_line}\n{MODULE}")
    with pytest.raises(TaskError, match=message):
        load_task(f"{module}:Complete", {})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((row for row in range(3)), "returned a generator, which has no numbered rows"),
        ([], "returned a dataset without rows"),
    ],
)
def test_data_without_numbered_rows_is_refused(module: str, data: object, message: str) -> None:
    task = load_task(f"{module}:Complete", {"data": data})
    with pytest.raises(TaskError, match=message):
        train_dataset_of(task)


@pytest.mark.parametrize("method", ["train_dataset", "eval_dataset"])
def test_a_loader_is_refused_with_what_takes_its_place(module: str, method: str) -> None:
    class Task:
        def __init__(self) -> None:
            setattr(self, method, lambda: DataLoader([1, 2, 3], batch_size=2))

    of = {"train_dataset": train_dataset_of, "eval_dataset": eval_dataset_of}[method]
    with pytest.raises(
        TaskError, match=rf"{method}\(\) returned a DataLoader.*its dataset.*batch_size"
    ):
        of(Task())
