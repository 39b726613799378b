"""Packages of others: the example of the documents, really installed, and single modules with entry points."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "example_technique"


class Outside:
    """A process that knows the toolkit and the packages of one folder."""

    def __init__(self, packages, home):
        path = os.pathsep.join((str(packages), str(ROOT)))
        self.environment = {**os.environ, "PYTHONPATH": path, "COMPRESS_HOME": str(home), "COLUMNS": "200"}

    def run(self, *arguments, code=0):
        """Run Python and return what it printed."""
        command = [sys.executable, "-W", "error::UserWarning", *map(str, arguments)]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, cwd=self.cwd)
        assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
        return done.stdout if code == 0 else done.stderr

    cwd = ROOT / "docs"  # not the root, so that only PYTHONPATH leads to anything

    def cli(self, *arguments, code=0):
        """Run a command of the toolkit and return what it printed; of one that fails, the errors."""
        return self.run("-m", "compress", *arguments, code=code)


@pytest.fixture(scope="session")
def example(tmp_path_factory):
    """The example package of the documents, installed by pip into a folder of its own."""
    root = tmp_path_factory.mktemp("example")
    shutil.copytree(EXAMPLE, root / "source", ignore=shutil.ignore_patterns("__pycache__"))
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--no-compile"]
    options += ["--disable-pip-version-check", "--target", str(root / "installed")]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(root / "source")], check=True)
    return Outside(root / "installed", root / "home")


@pytest.fixture
def outside(tmp_path):
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
        return Outside(packages, tmp_path / "home")

    return make
