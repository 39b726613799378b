"""docs/python.md says what is true: its code runs, and what it says of refusals is what is refused."""

import re
from pathlib import Path

import pandas
import pytest

from teachers.taskmodel import save_taskmodel
from tests.tiny import tiny_task, tiny_taskmodel

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder with what the page takes."""
    task = tiny_task("classification", examples=24)
    sizes = {"my-teacher": {}, "my-student": {"num_hidden_layers": 1, "hidden_size": 16}}
    for seed, (name, shape) in enumerate(sizes.items()):
        (tmp_path / name).mkdir()
        save_taskmodel(tiny_taskmodel("bert", task.spec, seed=seed, **shape), tmp_path / name)
    pandas.DataFrame([*task.train]).to_csv(tmp_path / "reviews.csv", index=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")  # of the Trainer itself, without an accelerator
def test_its_code_runs(folder, capsys):
    codes = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(codes) == 6
    names = {}
    for code in codes:
        exec(compile(code, "docs/python.md", "exec"), names)
    assert names["trainer"].state.global_step == 4
    assert names["result"].metric == "minus_cost"
    assert names["result"].comparison.metric == "minus_cost"
    assert names["loss"].item() < 0.01
    said = capsys.readouterr().out
    assert said.count("minus_cost") > 1
    assert "gru" in said
