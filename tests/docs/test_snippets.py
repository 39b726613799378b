"""Every program of the documents runs: Python as it stands, recipes through the reader, commands through the parser."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pandas
import pytest
import yaml
from typer.main import get_command

import compress.shortcuts.optimizing as optimizing
from compress.cli import app, main
from compress.export import tune
from compress.recipe import parse_recipe
from compress.registry import TECHNIQUES
from compress.search import read_budget
from tests.undrawn import undrawn

__all__ = ["undrawn"]

ROOT = Path(__file__).parents[2]
PAGES = [path.relative_to(ROOT).as_posix() for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))]
ELSEWHERE = {
    ("docs/data.md", "json"): "tests/unit/test_predictions_teacher.py",
    ("docs/data.md", "python"): "tests/unit/test_columns.py",
    ("docs/deploy.md", "python"): "tests/unit/test_deploy.py",
    ("docs/deploy.md", "html"): "tests/javascript/conftest.py",
    ("docs/deploy.md", "js"): "tests/javascript/conftest.py",
    ("docs/embedders.md", "python"): "tests/docs/test_embedders.py",
    ("docs/extending.md", "python"): "tests/extending/conftest.py",
    ("docs/howto.md", "python"): "tests/unit/test_attributions.py",
    ("docs/python.md", "python"): "tests/unit/test_python_page.py",
    ("docs/teachers.md", "python"): "tests/parity/test_document_losses.py",
    ("docs/tracking.md", "python"): "tests/unit/test_tracking.py",
}
"""Programs that other tests run, which read the page or the files that it shows."""
HERE = {("README.md", "python"), ("docs/quickstart.md", "python")}
"""Programs that this file runs."""
IMAGES = {("docs/deploy.md", "dockerfile")}
"""What needs a registry of images; the commands above it, which do the same without, are run."""
COMMANDS = get_command(app)


def text_of(page):
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(language):
    """Return ``(page, text)`` of all programs in a language."""
    found = [
        (page, text)
        for page in PAGES
        for text in re.findall(rf"^```{language}\n(.*?)^```", text_of(page), flags=re.MULTILINE | re.DOTALL)
    ]
    return [pytest.param(page, text, id=f"{page}-{number}") for number, (page, text) in enumerate(found)]


def command_lines(page):
    """Return the lines of a page that call ``compress``; a line may go on after a backslash."""
    text = re.sub(r"^```.*?^```", "", text_of(page), flags=re.MULTILINE | re.DOTALL).replace("\\\n", " ")
    return [line.strip() for line in text.splitlines() if re.match(r" {4}(?:\w+=\S+ )*compress ", line)]


def test_every_program_is_run_by_a_test():
    languages = {
        (page, language) for page in PAGES for language in re.findall(r"^```(\w+)$", text_of(page), flags=re.MULTILINE)
    }
    read_here = {(page, language) for page, language in languages if language in {"yaml", "toml"}}
    assert languages - read_here - HERE - IMAGES == set(ELSEWHERE)
    for (page, _), test in ELSEWHERE.items():
        name = Path(page).name if page != "docs/extending.md" else "example_technique"
        assert name in (ROOT / test).read_text(encoding="utf-8")


@pytest.mark.parametrize(("page", "text"), blocks("python"))
def test_python_is_python(page, text):
    compile(text, page, "exec")


@pytest.mark.parametrize(("page", "text"), blocks("toml"))
def test_entry_points_are_entry_points(page, text):
    groups = tomllib.loads(text)["project"]["entry-points"]
    assert all(re.fullmatch(r"[\w.]+:\w+", place) for points in groups.values() for place in points.values()), page


@pytest.mark.parametrize(("page", "text"), blocks("yaml"))
def test_recipes_are_read(page, text, tmp_path):
    """A budget is read as one; a part of a budget, template or recipe of another package has to be YAML."""
    found = yaml.safe_load(text)
    if "limits" in found:
        (tmp_path / "budget.yaml").write_text(text, encoding="utf-8")
        assert read_budget(tmp_path / "budget.yaml").limits
    elif "space" in found or "search" in text:
        assert page == "docs/search.md"
        assert set(found) <= {"space", "student", "steps", "export"}
    elif page == "docs/extending.md":
        (step,) = found["steps"]
        assert not {*step} & {*TECHNIQUES}
    elif "teacher" in found:
        recipe = parse_recipe(text, page)
        assert recipe.steps or recipe.export
    else:
        assert parse_recipe(f"teacher: {{model: my-bert}}\n{text}", page).teacher.model == "my-bert"


@pytest.mark.parametrize("page", [page for page in PAGES if command_lines(page)])
def test_commands_take_what_the_documents_give_them(page):
    for line in command_lines(page):
        words = shlex.split(line, comments=True)
        name, *arguments = words[words.index("compress") + 1 :]
        command = COMMANDS.commands.get(name)
        assert command is not None, line
        command.make_context(name, arguments)


@pytest.mark.parametrize("page", PAGES)
def test_commands_that_a_sentence_names_exist(page):
    named = set(re.findall(r"`compress ([a-z]+)\b", text_of(page)))
    assert named <= set(COMMANDS.commands)


def test_every_command_has_its_place_in_the_overview():
    table = "\n".join(line for line in text_of("docs/reference/commands.md").splitlines() if line.startswith("|"))
    assert sorted(re.findall(r"`(?:compress )?([a-z]+)`", table)) == sorted(COMMANDS.commands)


@pytest.fixture(scope="session")
def world(made_once):
    """A folder with all that the README and the quickstart name: a fine-tuned model of six layers, texts, a table."""

    def fill(folder):
        from teachers import Training, finetune
        from teachers.taskmodel import save_taskmodel
        from tests.recipes.test_recipes import write_data
        from tests.tiny import tiny_task, tiny_taskmodel

        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COMPRESS_HOME", str(folder / "home"))
            task = tiny_task(examples=120)
            write_data(task, folder / "data" / "sst2")
            base = tiny_taskmodel("bert", task.spec, num_hidden_layers=6)
            trained, _ = finetune(base, task, Training(epochs=6, learning_rate=2e-3, batch_size=16))
        for place in ("my-bert", "runs/sst2-teacher"):
            (folder / place).mkdir(parents=True)
            save_taskmodel(trained, folder / place)
        rows = [
            {"sentence": each["text"], "sentiment": each["label"]} for split in task.splits.values() for each in split
        ]
        pandas.DataFrame(rows).to_csv(folder / "reviews.csv", index=False)
        (folder / "reviews").mkdir()
        for name, part in {"train": rows[:200], "test": rows[200:]}.items():
            pandas.DataFrame(part).to_csv(folder / "reviews" / f"{name}.csv", index=False)
        (recipe,) = re.findall(r"```yaml\n(.*?)```", text_of("README.md"), flags=re.DOTALL)
        (folder / "sst2.yaml").write_text(recipe, encoding="utf-8")

    return made_once("documents", fill)


@pytest.fixture
def here(world, tmp_path, monkeypatch):
    """A copy of that folder as the current one; nothing is timed for long."""
    shutil.copytree(world, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("COMPRESS_DATA", raising=False)
    monkeypatch.setattr(optimizing, "SECONDS", 0.01)
    monkeypatch.setitem(tune.tune.__kwdefaults__, "seconds", 0.01)
    monkeypatch.setattr(tune, "_threads", lambda: [1])
    return tmp_path / "here"


@pytest.mark.slow
@pytest.mark.parametrize(("page", "text"), [block for block in blocks("python") if (block.values[0], "python") in HERE])
def test_python_runs_as_it_stands(page, text, here, capsys):
    exec(compile(text, page, "exec"), {})
    printed = capsys.readouterr().out
    assert "selection" not in printed, "what reports chose nothing"
    assert "distill.logits" in printed if page == "README.md" else "runs/in-python/fastest" in printed


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_commands_run_in_the_order_of_the_page(page, here, capsys):
    """All but those that install something; of the one that fetches a model, that it takes these arguments."""
    lines = re.findall(r"^ {4}((?:compress|python|hf) .*)$", text_of(page), flags=re.MULTILINE)
    lines = [line for line in lines if not line.startswith("python -m")]
    assert len(lines) > 5
    for line in lines:
        program, *arguments = shlex.split(line, comments=True)
        if program == "hf":
            helped = [str(Path(sys.executable).parent / "hf"), arguments[0], "--help"]
            done = subprocess.run(helped, capture_output=True, text=True, check=False)
            assert all(flag in done.stdout for flag in arguments if flag.startswith("--")), done.stderr
        elif program == "python":
            done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=here)
            assert '"label"' in done.stdout, done.stderr
        else:
            code = main(arguments)
            assert code == 0, f"{line}\n{capsys.readouterr().err}"
    assert (here / ("sst2.cert" if page == "README.md" else "runs")).exists()
