"""Packages of others: the example of the documents, really installed, and single modules with entry points."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "example_technique"


INSTALLED = """\
import sys, warnings
sys.path.insert(0, {packages!r})
warnings.simplefilter("error", UserWarning)
"""
"""The packages of a folder can be imported, as if it were one of Python's own."""
COMMAND = """\
from compress.cli import main
sys.exit(main(sys.argv[1:]))
"""


class Outside:
    """A process for each call, which knows the toolkit and the packages of one folder, of which it has loaded none."""

    def __init__(self, packages, folder, forker):
        self._forker, self._folder = forker, folder
        self._packages, self._begin = packages, INSTALLED.format(packages=str(packages))

    def run(self, program, *arguments, code=0):
        """Run Python code and return what it printed; of one that fails, the errors."""
        file = self._folder / "program.py"
        file.write_text(self._begin + program, encoding="utf-8")
        environment = {"COMPRESS_HOME": str(self._folder / "home")}
        arguments = [str(file), *map(str, arguments)]
        done = self._forker.run(arguments, cwd=self._folder, env=environment, seconds=300)
        assert done.code == code, f"{done.out}\n{done.err}"
        return done.out if code == 0 else done.err

    def run_fresh(self, *arguments):
        """Run Python in a process that has loaded nothing at all."""
        path = os.pathsep.join((str(self._packages), str(ROOT)))
        environment = {**os.environ, "PYTHONPATH": path, "COMPRESS_HOME": str(self._folder / "home")}
        command = [sys.executable, "-W", "error::UserWarning", *map(str, arguments)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT / "docs")
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"

    def cli(self, *arguments, code=0):
        """Run a command of the toolkit and return what it printed; of one that fails, the errors."""
        return self.run(COMMAND, *arguments, code=code)


@pytest.fixture(scope="session")
def example(tmp_path_factory, forker):
    """The example package of the documents, installed by pip into a folder of its own."""
    root = tmp_path_factory.mktemp("example")
    shutil.copytree(EXAMPLE, root / "source", ignore=shutil.ignore_patterns("__pycache__"))
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--no-compile"]
    options += ["--disable-pip-version-check", "--target", str(root / "installed")]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(root / "source")], check=True)
    return Outside(root / "installed", root, forker)


@pytest.fixture
def outside(tmp_path, forker):
    """Return what makes a package of one module of this folder, with entry points, and a process that knows it."""

    def make(module, group, points):
        packages = tmp_path / "packages"
        info = packages / f"{module}-1.0.dist-info"
        info.mkdir(parents=True)
        name = module.replace("_", "-")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
        lines = "".join(f"{key} = {module}:{value}\n" for key, value in points.items())
        (info / "entry_points.txt").write_text(f"[{group}]\n{lines}", encoding="utf-8")
        shutil.copy(Path(__file__).parent / f"{module}.py", packages)
        return Outside(packages, tmp_path, forker)

    return make
