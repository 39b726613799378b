"""Registries: our own techniques, kinds, targets, families …, and those that packages add by entry points.

Whoever wants to add something declares it in the ``pyproject.toml`` of their own package::

    [project.entry-points."compress.techniques"]
    "acme.shrink" = "acme_shrink:Shrink"

Entry points are read when a name is asked for that is not built in, and code of a package runs when its name is used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from eval.errors import UserError, did_you_mean
from eval.one_line import first_line

logger = logging.getLogger(__name__)

Thing = TypeVar("Thing")
SHOWN = 60
"""Characters of an unknown name that a message repeats."""


def _anything(name: str, thing: Any) -> str:
    del name, thing
    return ""


def subclass_of(base: str) -> Callable[[str, Any], str]:
    """Return what says what is wrong with a class that a package gives, for ``Registry``'s ``problem``.

    Args:
        base: The class that it must be derived from, with its module; it is imported on use. What is derived from it
            has an attribute ``name``, which must be the name of the entry point.
    """

    def problem(name: str, thing: Any) -> str:
        module, _, attribute = base.rpartition(".")
        if not (isinstance(thing, type) and issubclass(thing, getattr(import_module(module), attribute))):
            return f"is no subclass of {base}"
        own = getattr(thing, "name", None)
        return "" if own == name else f"its class says name = {own!r}; the entry point must have the same name"

    return problem


class Registry(Generic[Thing]):
    """What there is of one sort, by name; built-in names cannot be taken by other packages.

    Args:
        what: What messages call one, such as ``technique``.
        group: The entry-point group that adds to it.
        built_in: Name -> the thing itself, or where it stands as ``module:attribute``, which is imported on use.
        problem: Returns what is wrong with a thing that a package gives for a name, or nothing.
        instances: Whether the places of things hold classes, of which the registry gives an instance each.
    """

    def __init__(
        self,
        what: str,
        group: str,
        built_in: Mapping[str, Thing | str],
        problem: Callable[[str, Any], str] = _anything,
        *,
        instances: bool = False,
    ) -> None:
        self.what, self.group = what, group
        self._built_in = dict(built_in)
        self._problem, self._instances = problem, instances
        self._loaded: dict[str, Thing] = {}
        self._told: set[str] = set()

    def names(self) -> tuple[str, ...]:
        """Return all names: the built-in ones in the order of the list, then those of packages by alphabet."""
        return (*self._built_in, *sorted(self._added))

    def get(self, name: str, where: str = "") -> Thing:
        """Return what stands behind a name, the same thing each time.

        Args:
            name: The name.
            where: What the message about an unknown name calls its place, such as ``--to``.

        Raises:
            UserError: If there is none (the nearest name is given), two packages claim the name, or what a package
                gives cannot be loaded; the package is named.
        """
        found = self._built_in.get(name)
        if found is not None and not isinstance(found, str):
            return found
        if name not in self._loaded:
            if isinstance(found, str):
                module, _, attribute = found.partition(":")
                self._loaded[name] = self._given(getattr(import_module(module), attribute))
            elif name in self._added:
                self._loaded[name] = self._from_package(name)
            else:
                place = f"{where}: " if where else ""
                raise UserError(f"{place}unknown {self.what} {_shown(name)}{did_you_mean(name, self.names())}")
        return self._loaded[name]

    def loadable(self) -> list[Thing]:
        """Return everything that can be loaded; whatever else a package offers is told once, in a warning."""
        found, problems = [], self.clashes()
        for name in self.names():
            try:
                found.append(self.get(name))
            except UserError as error:
                problems += error.problems
        for problem in problems:
            if problem not in self._told:
                logger.warning("%s", problem)
                self._told.add(problem)
        return found

    def add(self, name: str, thing: Thing) -> None:
        """Add a built-in thing that makes itself known when its module is imported."""
        self._built_in[name] = thing

    def reread(self) -> None:
        """Read the entry points again when they are next asked for, as after a package was installed or removed."""
        self._loaded.clear()
        self._told.clear()
        self.__dict__.pop("_claimed", None)

    def provider(self, name: str) -> tuple[str, str] | None:
        """Return name and version of the distribution that gives ``name``; None for a built-in one."""
        if name in self._built_in or name not in self._added:
            return None
        return _distribution(self._added[name][0])

    def place(self, name: str) -> str:
        """Return where a thing stands, as ``module:attribute``; nothing if it is in the list itself."""
        found = self._built_in.get(name)
        if found is not None:
            return found if isinstance(found, str) else ""
        return self._added[name][0].value if name in self._added else ""

    def clashes(self) -> list[str]:
        """Return a sentence for every name that a package cannot have, because it is built in or claimed by two."""
        taken = [point for name in self._claimed.keys() & self._built_in.keys() for point in self._claimed[name]]
        found = [
            f"{self.what} {point.name!r} of {_named(point)} is not used: the name is built in; the package must "
            "choose another"
            for point in taken
        ]
        return sorted(found) + [self._claimed_twice(name) for name, points in self._added.items() if len(points) > 1]

    def __contains__(self, name: object) -> bool:
        return name in self._built_in or name in self._added

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    @cached_property
    def _claimed(self) -> dict[str, list[EntryPoint]]:
        found: dict[str, list[EntryPoint]] = {}
        for point in sorted(entry_points(group=self.group), key=_named):
            found.setdefault(point.name, []).append(point)
        return dict(sorted(found.items()))

    @property
    def _added(self) -> dict[str, list[EntryPoint]]:
        return {name: points for name, points in self._claimed.items() if name not in self._built_in}

    def _from_package(self, name: str) -> Thing:
        point, *others = self._added[name]
        if others:
            raise UserError(self._claimed_twice(name))
        where = f"{self.what} {name!r} of {_named(point)} ({point.value})"
        try:
            offered: Any = point.load()
            if not (problem := self._problem(name, offered)):
                return self._given(offered)
        except Exception as error:  # whatever the code of a package raises
            package, _ = _distribution(point)
            raise UserError(
                f"{where}: cannot be loaded ({type(error).__name__}: {first_line(error)}); update {package} or "
                "uninstall it"
            ) from error
        raise UserError(f"{where}: {problem}")

    def _given(self, stands: Any) -> Thing:
        """Return what the registry gives of what stands in a module."""
        thing: Thing = stands() if self._instances else stands
        return thing

    def _claimed_twice(self, name: str) -> str:
        owners = " and ".join(_named(point) for point in self._added[name])
        return f"{self.what} {name!r} is claimed by {owners}; uninstall all but one of them"


def _distribution(point: EntryPoint) -> tuple[str, str]:
    return (point.dist.name, point.dist.version or "") if point.dist is not None else ("an unknown package", "")


def _named(point: EntryPoint) -> str:
    return " ".join(_distribution(point)).strip()


def _shown(name: object) -> str:
    text = repr(name)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
