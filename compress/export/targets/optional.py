"""Optional packages, loaded where they are needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from eval.errors import UserError


def optional(module: str, extra: str) -> Any:
    """Return an optional module.

    Args:
        module: Its dotted name.
        extra: The extra of this package that installs it.

    Raises:
        UserError: If it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise UserError(f"{package} is not installed ({error}); run: pip install 'nlp-compress[{extra}]'") from error
