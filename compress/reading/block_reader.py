"""Turns the values of a document into typed blocks, collecting what is wrong with each and where it stands."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from compress.reading.validation_errors import FieldError, errors_in, validated
from compress.reading.wording import expected, shown
from compress.reading.yaml_places import Document, Location
from teachers.renamed import OLD_NAMES

Model = TypeVar("Model", bound=BaseModel)
Told = Callable[[Location], tuple[str, Location]]
"""Splits the location of a field into what messages call the part of a document, and the field in it."""


class BlockReader:
    """Reads blocks and remembers every problem.

    Args:
        document: Where the blocks come from; its own problems come first.

    Attributes:
        problems: One sentence each, with its place.
        old_names: Old names of fields that were read, with the new ones.
    """

    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems = document.problems
        self.old_names: dict[str, str] = {}

    def report(self, location: Location, sentence: str) -> None:
        """Add a problem of the value at ``location``."""
        self.problems.append(f"{self.document.place(location)}: {sentence}")

    def sorted_problems(self) -> list[str]:
        """Return the problems in the order of the file's lines; those without a line come first."""
        line = re.compile(re.escape(self.document.source) + r":(\d+): ")
        found = [(line.match(problem), problem) for problem in self.problems]
        return [problem for _, problem in sorted(found, key=lambda pair: int(pair[0][1]) if pair[0] else 0)]

    def block(self, model: type[Model], given: Any, location: Location, where: str) -> Model | None:
        """Read one block.

        Args:
            model: What it has to become.
            given: Its plain values.
            location: Where it stands in the document.
            where: What messages call it; empty for the top of the document.

        Returns:
            The typed block, or None if it has problems.
        """
        block, errors = self.attempt(model, given)
        for error in errors:
            self.tell(error, lambda field: (where, field), location)
        return block

    def attempt(self, model: type[Model], given: Any) -> tuple[Model | None, list[FieldError]]:
        """Return the block that some values make, or all of their errors; none is reported."""
        if not isinstance(given, Mapping):
            return None, [FieldError((), (), f"got {shown(given)}, must be {expected(model)}")]
        read = partial(model.model_validate, context={OLD_NAMES: self.old_names})
        try:
            return validated(read, model, given), []
        except ValidationError as error:
            return None, errors_in(error, model, given)

    def tell(self, error: FieldError, told: Told, location: Location = ()) -> None:
        """Report an error of a block that stands at ``location``."""
        where, field = told(error.field)
        sentence = FieldError((), field, error.words).sentence
        self.report((*location, *error.location), f"{where}: {sentence}" if where else sentence)

    def warning_of_old_names(self) -> str:
        """Return one line that says what to write in the place of the old names that were read; empty without any."""
        said = []
        for old, new in self.old_names.items():
            places = dict.fromkeys(map(self.document.place, _places_of(old, self.document.data)))
            lines = ", ".join(place.removeprefix(f"{self.document.source}:") for place in places)
            said.append(f"{new} for {old} ({lines})" if lines else f"{new} for {old}")
        return f"{self.document.source}: old names are still read; write {', '.join(said)}" if said else ""


def _places_of(name: str, values: Any, location: Location = ()) -> Iterator[Location]:
    """Find a name among the keys of some values, and as a value of its own."""
    if values == name:
        yield location
    items = values.items() if isinstance(values, Mapping) else enumerate(values) if isinstance(values, list) else ()
    for key, value in items:
        if key == name:
            yield (*location, key)
        yield from _places_of(name, value, (*location, key))
