"""The libraries that run exported models, all with one face: named arrays in, named arrays out.

Like the other parts of ``predict.py`` it imports no more of the toolkit than other parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from eval.one_line import first_line

if TYPE_CHECKING:
    from eval.encoding import Array, Inputs

FIRST_TARGET = "onnx"
"""The target where none is named: of commands, and of exports from before ``export.json`` said it."""

ABOVE = "../"
"""Stands before the names of files that lie in the folder above."""


class ExportError(ValueError):
    """A damaged export folder, or an example that the exported model cannot take."""


class Engine(Protocol):
    """A loaded model.

    ``predict.py`` carries the source of the class: it uses ``np``, ``Path`` and what it imports itself, and nothing
    else of the module that it stands in. A static method ``problems(file) -> list[str]`` is optional: what is wrong
    with a network's file that its digest does not tell. So is ``for_threads(count) -> list[Engine]``: one for each of
    so many threads that call them at once, with as little memory as the library needs for it.

    Attributes:
        session: The library's own object.
    """

    session: Any

    def run(self, inputs: Inputs) -> dict[str, Array]:
        """Return the outputs by name; in the model's order if the names are others than those of its graph."""
        ...


@dataclass(frozen=True)
class Library:
    """What runs the exports of a target.

    Attributes:
        name: What messages call it.
        package: What has to be installed, as it is imported.
        files: Files of the network; the first is the one that is opened.
        engine: Opens a file with a number of threads (0: as the library likes), which wait actively and stay on their
            core, or do not.
        more: Pattern of further files, of a network in several parts.
        tokenizer: Where the tokenizer lies, from the export's folder.
    """

    name: str
    package: str
    files: tuple[str, ...]
    engine: Callable[[Path, int, bool], Engine]
    more: str = ""
    tokenizer: str = "tokenizer.json"

    def of_one_task(self) -> Library:
        """Return what runs one of several tasks, whose network and tokenizer lie in the folder above."""
        above = tuple(f"{ABOVE}{file}" for file in (*self.files, self.tokenizer))
        return replace(self, files=above[:-1], tokenizer=above[-1])

    def open(self, folder: Path, threads: int, spinning: bool) -> Engine:
        """Load the network of an export folder.

        Args:
            folder: Where it lies.
            threads: Threads of one product; 0 leaves it to the library.
            spinning: Whether idle threads wait actively (ONNX Runtime) and stay on their core (OpenVINO).

        Raises:
            ExportError: If the library is not installed or refuses the file.
        """
        file = folder / self.files[0]
        try:
            return self.engine(file, threads, spinning)
        except ImportError as error:
            message = f"{self.package} is not installed ({first_line(error)}); run: pip install {self.package}"
            raise ExportError(message) from error
        except Exception as error:  # each library has a dozen unrelated error types
            raise ExportError(f"{file}: {self.name} cannot load it ({first_line(error)})") from error

    def files_of(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the files of a network, those of its further parts among ``names`` included."""
        return (*self.files, *sorted(name for name in names if fnmatchcase(name, self.more)))

    @property
    def is_onnx(self) -> bool:
        """Whether the network is an ONNX file that others run too, for it takes nothing but a text (no cache)."""
        return self.files[0].endswith(".onnx") and not self.has_cache

    @property
    def has_cache(self) -> bool:
        """Whether the network takes the keys and values of the tokens before, to go on with a text."""
        return hasattr(self.engine, "step")

    def problems(self, folder: Path) -> list[str]:
        """Return what is wrong with the network's file that its digest does not tell."""
        look: Callable[[Path], list[str]] | None = getattr(self.engine, "problems", None)
        return [] if look is None else look(folder / self.files[0])
