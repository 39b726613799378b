"""The Python programs of docs/deploy.md, run as they stand there."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from compress.export import export_onnx
from compress.export.runtime.answering import Runtime
from tests.tiny import tiny_task, tiny_taskmodel

PAGE = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")


def section(title):
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def commands(title):
    return [line.strip() for line in section(title).splitlines() if line.startswith("    ")]


@pytest.fixture
def place(tmp_path):
    task = tiny_task()
    export_onnx(tiny_taskmodel("bert", task.spec), tmp_path / "sst2-int8", int8=True, agreement=0.0)
    (tmp_path / "reviews.txt").write_text("good\nbad\n", encoding="utf-8")
    return tmp_path


def ran(command, place, **environment):
    found = subprocess.run(
        ["bash", "-c", command.replace("python ", f"{sys.executable} ")],
        cwd=place,
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_the_program_of_an_export_runs_from_the_command_line(place):
    expected = Runtime(place / "sst2-int8").predict(["a gripping film", "dull"]).answers
    _, texts, file = commands("Python without torch")[:3]
    assert [json.loads(line)["label"] for line in ran(texts, place).splitlines()] == [a["label"] for a in expected]
    ran(file, place)
    assert len((place / "predictions.jsonl").read_text(encoding="utf-8").splitlines()) == 2


def test_the_program_of_an_export_is_a_module(place):
    (code,) = re.findall(r"```python\n(.*?)```", section("Python without torch"), flags=re.DOTALL)
    said = ran(f"python -I -c '{code}'", place)
    assert said.splitlines()[0].startswith("[{'label': ")
    assert [len(line.split()) for line in said.splitlines()[1:]] == [2, 2]


@pytest.mark.slow
def test_the_folder_of_a_container_holds_all_it_needs(place):
    install, copy, run = commands("A folder for a container")
    installed = subprocess.run(
        [sys.executable, "-m", *install.split()], cwd=place, capture_output=True, text=True, check=False
    )
    if installed.returncode:
        pytest.skip(f"packages cannot be fetched: {installed.stderr.splitlines()[-1]}")
    ran(copy, place)
    shutil.rmtree(place / "sst2-int8")
    said = ran(run.replace("python ", "python -S "), place)
    assert "label" in json.loads(said)
