"""A foreign module in the way of ours is named with its path and the cure, by the command and in Python."""

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from compress.shadowing import require_own_packages

ROOT = Path(__file__).parents[2]
ENTRY = "import sys\nfrom compress.cli import main\nsys.exit(main())\n"
"""What pip writes as the script of a console command."""


def run(folder, *command):
    """Run Python in a folder whose modules come first, as those beside a script do."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=folder, env=environment)


def spoiled(folder, name):
    """Put a module of somebody else into a folder; importing it would be seen."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("print('a foreign module ran')\n")
    return path


@pytest.mark.parametrize("name", ["eval.py", "eval/__init__.py", "teachers.py"])
def test_the_command_names_a_foreign_module_and_the_cure(tmp_path, name):
    path = spoiled(tmp_path, name)
    done = run(tmp_path, "-m", "compress", "list")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{path}: is in the way")
    assert "rename or move it" in line


def test_the_script_of_the_command_names_all_of_them(tmp_path):
    paths = [spoiled(tmp_path, name) for name in ("teachers.py", "eval.py")]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nlp-compress").write_text(ENTRY)
    done = run(tmp_path, str(tmp_path / "bin" / "nlp-compress"), "doctor")
    assert (done.returncode, done.stdout) == (2, "")
    assert [line.split(": ")[0] for line in done.stderr.splitlines()] == [str(path) for path in paths]


def test_an_import_raises_an_import_error_that_names_it(tmp_path):
    path = spoiled(tmp_path, "eval.py")
    (tmp_path / "script.py").write_text(
        "try:\n    import compress\nexcept ImportError as error:\n    print(error.name, error)\n"
    )
    done = run(tmp_path, "script.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"compress {path}: is in the way")
    assert "foreign module ran" not in done.stdout


def test_usage_names_the_command_as_it_was_called(tmp_path):
    (tmp_path / "nlp-compress").write_text(ENTRY)
    assert "Usage: nlp-compress list " in run(tmp_path, "nlp-compress", "list", "--help").stdout


def test_a_foreign_package_that_was_installed_over_ours_is_found(tmp_path, monkeypatch):
    spoiled(tmp_path, "eval/__init__.py")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] == "eval"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError) as found:
        require_own_packages(tmp_path)
    places = [line.split(": ")[0] for line in str(found.value).splitlines()]
    assert places == [str(ROOT / "teachers" / "__init__.py"), str(tmp_path / "eval" / "__init__.py")]


def test_a_module_that_no_file_stands_behind_is_found(monkeypatch):
    monkeypatch.setitem(sys.modules, "eval", types.ModuleType("eval"))
    with pytest.raises(ImportError, match=r"the module 'eval' in sys.modules"):
        require_own_packages(ROOT)


def test_our_own_packages_pass():
    require_own_packages(ROOT)
