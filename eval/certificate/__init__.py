"""Certificates: a claim about a model, with all that a stranger needs to check it; reading one takes numpy alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eval.certificate.rechecking import recheck as recheck

__all__ = ["recheck"]


def __getattr__(name: str) -> Any:
    if name == "recheck":
        from eval.certificate.rechecking import recheck

        return recheck
    raise AttributeError(f"module 'eval.certificate' has no attribute {name!r}")
