"""Foreign modules that Python finds in place of ours: named with their path, before an import of them fails."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

OURS = {"teachers": "ModelTeacher", "eval": "load_task"}
"""Our packages beside ``compress``, each with a public name of it."""
COMMANDS = ("compress", "nlp-compress")
"""What the command is called."""


def require_own_packages(home: Path) -> None:
    """Find out whether ``teachers`` and ``eval`` are ours; a foreign one is not imported for it.

    Args:
        home: The folder that holds our packages.

    Raises:
        ImportError: A module or package of somebody else is found first.
        SystemExit: The same for the command, which says it on standard error and exits with 2.
    """
    problems = [
        f"{place}: is in the way: nlp-compress has a package {name!r} of its own, and Python finds this one first; "
        "rename or move it, or run from another folder or in an environment without it"
        for name, public in OURS.items()
        if (place := _foreign(name, public, home)) is not None
    ]
    if not problems:
        return
    if _is_command():
        sys.stderr.write("\n".join(problems) + "\n")
        raise SystemExit(2)
    raise ImportError("\n".join(problems), name="compress")


def _foreign(name: str, public: str, home: Path) -> str | None:
    """Return where a module is that stands in the place of ours, or None."""
    try:
        spec = find_spec(name)
    except ValueError:  # somebody put a module there that no file stands behind
        return f"the module {name!r} in sys.modules"
    if spec is None:  # ours is missing, which its import says best
        return None
    folders = [*(spec.submodule_search_locations or ())]
    if [Path(folder).resolve() for folder in folders] != [(home / name).resolve()]:
        return spec.origin or folders[0]
    if public not in getattr(import_module(name), "__all__", ()):  # another distribution was installed over it
        return spec.origin or folders[0]
    return None


def _is_command() -> bool:
    """Whether the command was called, so that nobody else could catch an error."""
    called = sys.argv[0] if sys.argv else ""
    return called == "-m" or Path(called).stem in COMMANDS  # "-m" until the module that was named is found
