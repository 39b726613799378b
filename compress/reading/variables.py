"""Environment variables in a recipe: ``${VAR}``, ``${VAR:-default}``, and ``$${`` for a literal ``${``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from compress.reading.wording import shown

PATTERN = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^{}]*))?\}|\$\{[^}\n]*\}?")


def expand(text: str, environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """Replace the variables in ``text``.

    Args:
        text: What the recipe says.
        environment: Values by name; an empty value counts as missing where there is a default, as in a shell.

    Returns:
        The text with its variables replaced, and one sentence for each that could not be.
    """
    problems: list[str] = []

    def value(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        name, default = match["name"], match["default"]
        if name is None:
            problems.append(
                f"{shown(match[0])} is no variable; write ${{NAME}}, ${{NAME:-default}}, or $${{ for a plain ${{"
            )
        elif default is not None:
            return environment.get(name) or default
        elif name not in environment:
            problems.append(
                f"the environment variable {name} is not set; set it, or write a default: ${{{name}:-…}}",
            )
        else:
            return environment[name]
        return match[0]

    return PATTERN.sub(value, text), problems


def escape(text: str) -> str:
    """Return ``text`` so written that ``expand`` gives it back unchanged."""
    return text.replace("${", "$${")
