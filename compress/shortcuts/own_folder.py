"""The folder that ``optimize`` and ``distill`` write: what may be replaced in it, and where its export is reached."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from compress.certification.certifying import Certified, certify
from compress.engine.claim_file import read_claims
from compress.engine.pipeline import Run, run_recipe
from compress.engine.run_folder import INSIDE, RECIPE_FILE, refuse_other_run
from compress.export.folder import occupied
from compress.export.runtime.manifest import sha256
from compress.export.targets.target_registry import FASTEST
from compress.recipe import Recipe, parse_recipe, read_recipe, recipe_to_plain
from eval.errors import UserError
from eval.files.json_text import JsonError, read_json
from eval.files.paths import place_beside, refuse_file
from eval.files.writing import atomic_folder, atomic_write

CERTIFICATE = "model.cert"
WRITTEN = ".written.json"
"""Says which files are as they were written here, by their digests; others are the user's."""
DATA_FILES = (".jsonl", ".tsv")
"""How the files end that are written as data."""
ANOTHER = "name another folder with --out (in Python: out)"


class Finished(NamedTuple):
    """A run that came to its end and was certified.

    Attributes:
        run: What the recipe made.
        export: Where its export is reached: beside the run, as an export without data is.
        certified: Its certificate.
    """

    run: Run
    export: Path
    certified: Certified


class OwnFolder:
    """The folder of one call.

    Args:
        path: Where it is.

    Attributes:
        data: Its folder of data.
        recipe: Its recipe, where one is kept to be changed.
        run: The folder of its run.
        export: Where its export is reached.

    Raises:
        UserError: If it is a file.
    """

    def __init__(self, path: Path) -> None:
        refuse_file(path)
        self.path = path
        self.data, self.recipe, self.run, self.export = (path / name for name in ("data", RECIPE_FILE, INSIDE, FASTEST))

    @property
    def again(self) -> str:
        """The command that runs the recipe, as it was changed, into a folder that is not there yet."""
        number = next(number for number in count(2) if not self.beside(number).exists())
        return f"compress run {quote(str(self.recipe))} --out {quote(str(self.beside(number)))}"

    def beside(self, number: int = 2) -> Path:
        """Return the folder for a further run of the recipe; that of this call is taken."""
        return place_beside(self.path, f"-{number}")

    def keep_data(self, files: Mapping[str, str]) -> None:
        """Write the data, unless it is there; data of an earlier call goes, if no run was made of it.

        Args:
            files: Their texts by name.

        Raises:
            UserError: Other data is there, and a run beside it, or it was not written here.
            CompressError: If the disk refuses.
        """
        wanted = {name: text.encode() for name, text in files.items()}
        names = (file.relative_to(self.data) for file in self.data.rglob("*") if file.is_file())
        there = [name for name in names if not any(part.startswith(".") for part in name.parts)]  # such as .DS_Store
        if {name.as_posix() for name in there if name.suffix in DATA_FILES} == wanted.keys() and all(
            (self.data / name).read_bytes() == content for name, content in wanted.items()
        ):
            return
        if there and (self.run / RECIPE_FILE).is_file():
            raise UserError(f"{self.data}: holds other data, from an earlier call whose run is beside it; {ANOTHER}")
        if self.data.is_file() or not self._may_replace(self.data / name for name in there):
            raise UserError(f"{self.data}: holds other data, which was not written by an earlier call; {ANOTHER}")
        with atomic_folder(self.data, "the data") as beside:
            for name, content in wanted.items():
                (beside / name).parent.mkdir(exist_ok=True)
                (beside / name).write_bytes(content)
        self._remember(self.data / name for name in wanted)

    def keep_recipe(self, text: str) -> Recipe:
        """Write a recipe, unless it is there; one of an earlier call goes, if it was not changed and its run fits.

        Args:
            text: As it is to be kept.

        Raises:
            UserError: A recipe is there that was changed, or the run beside it is of another one.
        """
        recipe = parse_recipe(text, str(self.recipe))
        if self.recipe.exists() and not self._may_replace([self.recipe]):
            if _settings(self.recipe) != _plain(recipe):
                raise UserError(
                    f"{self.recipe}: has other settings and was not left so by an earlier call, so it is not written "
                    f"over; run it by '{self.again}', or {ANOTHER}"
                )
            return recipe
        self._refuse_moved_margin(recipe)
        refuse_other_run(recipe, self.run, resume=self.run.exists())
        self.path.mkdir(parents=True, exist_ok=True)
        atomic_write(self.recipe, text.encode())
        self._remember([self.recipe])
        return recipe

    def finish(self, recipe: Recipe) -> Finished:
        """Run a recipe, or go on with its run, certify its fastest export, and put that where it is looked for.

        Raises:
            UserError: If recipe, data, model or folder are unusable.
            CompressError: If training, export or the disk fails.
        """
        if problems := occupied(self.export):
            raise UserError(*problems)
        self._refuse_moved_margin(recipe)
        done = run_recipe(recipe, self.run, resume=self.run.exists())
        try:
            certified = certify(self.run, self.path / CERTIFICATE, model=FASTEST)
        finally:  # the card of the export quotes the certificate
            with atomic_folder(self.export, "the export") as beside:
                shutil.copytree(done.exports[FASTEST], beside, copy_function=_linked, dirs_exist_ok=True)
        return Finished(done, self.export, certified)

    def _refuse_moved_margin(self, recipe: Recipe) -> None:
        """Refuse another margin than the run here fixed, before it is measured by one that nothing can be certified by.

        Raises:
            UserError: If it is another one.
        """
        fixed = [claimed.claim.margin for claimed in read_claims(self.run)][:1]
        if recipe.evaluate is not None and fixed not in ([], [recipe.evaluate.margin]):
            raise UserError(
                f"{self.run}: got the margin {recipe.evaluate.margin:g}; {fixed[0]:g} was fixed here before the test "
                f"examples were opened, and may not move; give --margin {fixed[0]:g}, or {ANOTHER}"
            )

    def _may_replace(self, files: Iterable[Path]) -> bool:
        """Whether all of these are as an earlier call left them."""
        known = self._written()
        return all(known.get(self._name(file)) == sha256(file) for file in files)

    def _remember(self, files: Iterable[Path]) -> None:
        known = self._written() | {self._name(file): sha256(file) for file in files}
        atomic_write(self.path / WRITTEN, (json.dumps(known, indent=1) + "\n").encode())

    def _written(self) -> dict[str, str]:
        with suppress(OSError, JsonError):
            known = read_json(self.path / WRITTEN)
            return known if isinstance(known, dict) else {}
        return {}

    def _name(self, file: Path) -> str:
        return file.relative_to(self.path).as_posix()


def _plain(recipe: Recipe) -> dict[str, object]:
    return {key: value for key, value in recipe_to_plain(recipe).items() if key != "track"}


def _settings(file: Path) -> dict[str, object] | None:
    """Return what a recipe says; None if it cannot be read."""
    try:
        return _plain(read_recipe(file))
    except UserError:
        return None


def _linked(source: str, place: str) -> None:
    """Give a file a second name, which takes no room; where the disk has none, copy it."""
    try:
        os.link(source, place)
    except OSError:
        shutil.copy2(source, place)
