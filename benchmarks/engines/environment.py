"""Environments of their own for engines whose packages are no part of this project, or do not go with its packages."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import venv
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

LONGEST = 900
"""Seconds that an installation may take."""


class EngineError(Exception):
    """Why an engine is not measured: it cannot be installed, or does not prepare, load or run the model."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment over that of the project: what is installed here hides what is installed there.

    It is made once, below ``COMPRESS_HOME``, and again when its requirements or the project's environment change.

    Attributes:
        name: Name of its folder; empty for the project's own environment.
        requirements: What is installed, each pinned.
    """

    name: str = ""
    requirements: tuple[str, ...] = ()

    def python(self) -> str:
        """Return its interpreter; what is not there yet is installed.

        Raises:
            EngineError: If it cannot be installed.
        """
        if not self.name:
            return sys.executable
        from eval.files.home import home
        from eval.files.writing import exclusive

        folder = home() / "environments" / self.name
        made_of = "\n".join((sys.version, *site.getsitepackages(), *self.requirements))
        marker = folder / "made-of.txt"
        with exclusive(folder):
            if not marker.is_file() or marker.read_text(encoding="utf-8") != made_of:
                self._make(folder)
                marker.write_text(made_of, encoding="utf-8")
        return str(_interpreter(folder))

    def _make(self, folder: Path) -> None:
        print(f"installing {', '.join(self.requirements)}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        has_pip = any(metadata.distributions(name="pip"))  # of the project, which is then found here too
        venv.create(folder, with_pip=not has_pip)
        purelib = next(folder.glob("lib/python*/site-packages"), folder / "Lib" / "site-packages")
        (purelib / "project.pth").write_text("\n".join(site.getsitepackages()), encoding="utf-8")
        command = [str(_interpreter(folder)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        try:
            done = subprocess.run([*command, *self.requirements], capture_output=True, text=True, timeout=LONGEST)
        except subprocess.TimeoutExpired:
            raise EngineError(f"cannot be installed: pip was not done after {LONGEST} seconds") from None
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            raise EngineError(f"cannot be installed: {lines[-1] if lines else f'pip ended with {done.returncode}'}")


def _interpreter(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


PROJECT = Environment()
"""The environment that the project itself runs in."""
